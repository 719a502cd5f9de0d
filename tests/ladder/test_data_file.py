"""A data file becomes the spec of a store; what is wrong in it is named by file, table and field."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from repro.errors import MissingExtraError, UsageError
from repro.ladder import data_file
from repro.ladder.corpus import HELD_OUT, StoreSpec, build_store
from repro.ladder.data_file import read_data_file
from repro.ladder.sources import HubDataset, TextFiles, describe, documents
from tests.ladder.small_tokenizer import write_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Texts of every kind beside the data file."""
    (tmp_path / "notes" / "old").mkdir(parents=True)
    (tmp_path / "notes" / "b.md").write_text("second")
    (tmp_path / "notes" / "a.txt").write_text("first")
    (tmp_path / "notes" / "old" / "c.txt.gz").write_bytes(gzip.compress(b"third"))
    line = b'{"body": "in Zstandard"}\n'
    (tmp_path / "more.ndjson.zst").write_bytes(zstandard.ZstdCompressor().compress(line))
    return tmp_path


def read(folder: Path, text: str) -> StoreSpec:
    (folder / "own.toml").write_text(text)
    return read_data_file(folder / "own.toml")


def refused(folder: Path, text: str) -> str:
    """The message, without the place of the test's folder."""
    with pytest.raises(UsageError) as caught:
        read(folder, text)
    return str(caught.value).replace(f"{folder}/", "").replace(str(folder), "FOLDER")


def texts(spec: StoreSpec, cell: str) -> list[str]:
    return ["".join(parts) for parts in documents(spec.sources[cell])]


def test_cells_come_from_patterns_folders_and_names(folder: Path) -> None:
    spec = read(
        folder,
        """
held_out = 0.25
[cells.every]
files = ["notes/**/*.*"]
[cells.flat]
files = ["notes/b.md", "notes/*.*"]
[cells.tree]
files = ["notes"]
documents = 2
[cells.lines]
files = ["*.ndjson.zst"]
text_field = "body"
""",
    )
    assert list(spec.sources) == ["every", "flat", "tree", "lines"]
    assert texts(spec, "every") == ["first", "second", "third"]
    assert texts(spec, "flat") == ["second", "first"]  # each once, in the order of the patterns
    assert texts(spec, "tree") == ["first", "second"]
    assert texts(spec, "lines") == ["in Zstandard"]
    assert (spec.held_out, spec.tokenizer.identity.name) == (0.25, "bytes")


def test_what_is_not_said_has_the_stores_defaults(folder: Path) -> None:
    spec = read(folder, '[cells.a]\nfiles = ["notes"]\n')
    source = spec.sources["a"]
    assert isinstance(source, TextFiles)
    assert (spec.held_out, source.text_field, source.documents) == (HELD_OUT, "text", None)


def test_a_data_set_at_a_commit_needs_no_hub(folder: Path) -> None:
    spec = read(
        folder,
        f"""
[cells.web]
dataset = "owner/name"
revision = "{COMMIT}"
config = "en"
split = "validation"
text_field = "body"
documents = 500
""",
    )
    assert spec.sources["web"] == HubDataset(
        name="owner/name", commit=COMMIT, config="en", split="validation", text_field="body", documents=500
    )


def test_a_branch_is_resolved_when_the_file_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pin(name: str, revision: str, **options: Any) -> HubDataset:
        asked.append((name, revision))
        return HubDataset(name=name, commit=COMMIT, **options)

    monkeypatch.setattr(data_file, "pin", pin)
    spec = read(folder, '[cells.web]\ndataset = "owner/name"\nrevision = "main"\n')
    assert asked == [("owner/name", "main")]
    assert describe(spec.sources["web"])["commit"] == COMMIT


def test_a_tokenizers_file_lies_beside_the_data_file(folder: Path) -> None:
    write_tokenizer(folder / "tokenizer.json")
    spec = read(folder, 'tokenizer = "tokenizer.json"\n[cells.a]\nfiles = ["notes"]\n')
    assert spec.tokenizer.identity.name == "tokenizer.json"
    store = build_store(spec_without_held_out(spec), folder / "store")
    assert store.tokenizer == spec.tokenizer.identity


def spec_without_held_out(spec: StoreSpec) -> StoreSpec:
    return StoreSpec(sources=spec.sources, tokenizer=spec.tokenizer, held_out=0)


FILES = '[cells.a]\nfiles = ["notes"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "own.toml: no [cells.NAME] with files or a dataset. A store has at least one cell."),
        ("cells = 3", "own.toml: no [cells.NAME]"),
        ("[cells", "data file own.toml: "),
        ("held_out = 0\n" + FILES, "own.toml, held_out: 0: should be greater than 0"),
        ("held_out = 1.5\n" + FILES, "own.toml, held_out: 1.5: should be less than 1"),
        ("heldout = 0.1\n" + FILES, "own.toml: unknown key 'heldout'; did you mean 'held_out'?"),
        ("tokenizer = 3\n" + FILES, "own.toml, tokenizer: 3: should be a valid string"),
        ('tokenizer = "none.json"\n' + FILES, "own.toml, tokenizer: cannot read none.json: No such file"),
        ('tokenizer = "hub:owner/name"\n' + FILES, "own.toml, tokenizer: tokenizer 'hub:owner/name': a tokenizer of"),
        ("[cells.a]\n", "own.toml, [cells.a]: must have either files or dataset"),
        ('[cells.a]\nfiles = ["x"]\ndataset = "y"\n', "own.toml, [cells.a]: must have either files or dataset"),
        ("[cells]\na = 3\n", "own.toml, [cells.a]: must have either files or dataset"),
        ("[cells.a]\nfiles = []\n", "own.toml, [cells.a], files: []: Tuple should have at least 1 item"),
        ('[cells.a]\nfiles = "notes"\n', "own.toml, [cells.a], files: 'notes': should be a valid"),
        ('[cells.a]\nfiles = ["*.tex"]\n', "own.toml, [cells.a], files: nothing in FOLDER matches '*.tex'. Paths are"),
        ('[cells.a]\nfiles = ["own.toml"]\n', "own.toml, [cells.a], files: own.toml: unknown ending; known are .txt"),
        (FILES + "text_feild = 'x'\n", "own.toml, [cells.a]: unknown key 'text_feild'; did you mean 'text_field'?"),
        (
            FILES + "split = 'train'\n",
            "own.toml, [cells.a]: unknown key 'split'; known are files, text_field, documents",
        ),
        (FILES + "documents = 0\n", "own.toml, [cells.a], documents: 0: should be greater than or equal to 1"),
        ('[cells.a]\ndataset = "x"\n', "own.toml, [cells.a]: revision is missing"),
    ],
)
def test_what_is_wrong_names_file_table_and_field(folder: Path, text: str, message: str) -> None:
    assert refused(folder, text).startswith(message)


def test_a_file_that_is_none_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"data file .*nowhere\.toml: cannot read"):
        read_data_file(folder / "nowhere.toml")
    (folder / "own.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"data file .*own\.toml: byte 0 is not UTF-8"):
        read_data_file(folder / "own.toml")


def test_the_hubs_answer_names_the_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pin(*_: Any, **__: Any) -> HubDataset:
        raise UsageError("data set owner/name at v9: RevisionNotFoundError: no.")

    monkeypatch.setattr(data_file, "pin", pin)
    message = refused(folder, '[cells.web]\ndataset = "owner/name"\nrevision = "v9"\n')
    assert message == "own.toml, [cells.web]: data set owner/name at v9: RevisionNotFoundError: no."


def test_a_missing_package_is_named_with_its_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'marin-repro[train]'")):
        read(folder, 'tokenizer = "tokenizer.json"\n' + FILES)


def test_the_example_of_the_documentation_can_be_read(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (folder / "web").mkdir()
    (folder / "web" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"body": "of the web"}\n'))
    spec = read(folder, page.split("```toml\n")[1].split("```")[0])
    assert texts(spec, "notes") == ["second"]
    assert texts(spec, "web") == ["of the web"]
    assert spec.held_out == 0.05
