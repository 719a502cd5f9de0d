"""Documents out of files and data sets: each once, in order, from any number on; what is broken names its place."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import MissingExtraError, UsageError
from repro.ladder import sources
from repro.ladder.sources import HubDataset, TextFiles, describe, documents, text_files
from repro.ladder.synthetic import Synthetic

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def texts(source: sources.Source, skip: int = 0) -> list[str]:
    return ["".join(parts) for parts in documents(source, skip)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five documents: two lines of JSON, one compressed, and two text files, between files of no known ending."""
    (tmp_path / "b").mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "\\u00fc\\ud800 two", "id": 1}\n')
    (tmp_path / "b" / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three\\u2028"}'))
    (tmp_path / "b" / "d.txt").write_bytes("\ufefffour\r\n ".encode())
    (tmp_path / "e.md").write_text("")
    (tmp_path / "b" / "image.png").write_bytes(b"\x89PNG")
    return tmp_path


def test_documents_come_in_the_order_of_the_files_names(folder: Path) -> None:
    whole = ["one", "ü\ufffd two", "three\u2028", "four\r\n ", ""]
    assert texts(text_files([folder])) == whole
    for skip in range(7):
        assert texts(text_files([folder]), skip) == whole[skip:]


def test_of_a_source_only_the_first_documents_are_taken(folder: Path) -> None:
    for count in (1, 3, 9):
        for skip in (0, 1, 4):
            found = texts(text_files([folder], documents=count), skip)
            assert found == ["one", "ü\ufffd two", "three\u2028", "four\r\n ", ""][skip:count]


def test_a_text_file_comes_in_parts(tmp_path: Path) -> None:
    text = "söme text " * 20_000
    (tmp_path / "long.txt.gz").write_bytes(gzip.compress(text.encode()))
    (document,) = documents(text_files([tmp_path]))
    parts = list(document)
    assert "".join(parts) == text
    assert max(map(len, parts)) == sources.PART < len(text)


@given(st.lists(st.text(), max_size=5))
def test_any_text_comes_back_from_json_lines(tmp_path_factory: pytest.TempPathFactory, written: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "some.jsonl"
    path.write_text("".join(json.dumps({"content": text}) + "\n" for text in written))
    assert texts(text_files([path], text_field="content")) == written


def test_a_description_tells_files_apart_and_names_no_folder(folder: Path) -> None:
    found = describe(text_files([folder]))
    assert str(folder) not in json.dumps(found)
    assert found["files"][0] == {"name": "a.jsonl", "bytes": 55}
    (folder / "a.jsonl").write_text('{"text": "one"}\n')
    assert describe(text_files([folder])) != found
    cell = Synthetic(seed=0, topic=1, quality=0, qualities=2, documents=3)
    assert describe(cell) == {"kind": "synthetic", "seed": 0, "topic": 1, "quality": 0, "qualities": 2, "documents": 3}


# What is broken


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"body": "x"}\n', r"a\.jsonl, line 1: no field 'text'; it has 'body'"),
        ("a.jsonl", b'{"texts": "x", "b": 1}\n', r"no field 'text'; it has 'texts'\."),
        ("a.jsonl", b'"x"\n', r"line 1: no field 'text'; it has no fields"),
        ("a.jsonl", b'{"text": null}\n', r"line 1: field 'text' holds NoneType, not text"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"a\.jsonl: not UTF-8 \(invalid start byte\)"),
        ("a.txt", b"fine\xc3", r"a\.txt: not UTF-8 \(unexpected end of data\)"),
        ("a.txt.gz", b"no archive", r"a\.txt\.gz cannot be read: Not a gzipped file"),
        ("a.txt.gz", gzip.compress(b"x" * 99, mtime=0)[:-9], r"a\.txt\.gz cannot be read: .*ended before"),
        ("a.jsonl", b"[" * 100_000, r"line 1: not JSON"),
    ],
)
def test_what_cannot_be_read_names_file_and_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        texts(text_files([tmp_path]))


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.txt cannot be read: .*No such file"):
        texts(TextFiles(paths=(tmp_path / "gone.txt",)))


def test_paths_that_hold_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(UsageError, match=r"has no file to read; known endings are \.txt, \.md, \.jsonl"):
        text_files([tmp_path])
    with pytest.raises(UsageError, match=r"x\.bin: unknown ending"):
        text_files([tmp_path / "x.bin"])
    with pytest.raises(UsageError, match="nowhere does not exist"):
        text_files([tmp_path / "nowhere"])


# Zstandard


def test_zstandard_is_read_over_frames_and_a_cut_off_archive_is_an_error(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"döcument {i} " * 100}) + "\n" for i in range(500)]
    compressor = zstandard.ZstdCompressor()
    frames = b"".join(compressor.compress("".join(lines[i : i + 100]).encode()) for i in range(0, 500, 100))
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(frames)
    assert texts(text_files([path])) == [json.loads(line)["text"] for line in lines]
    path.write_bytes(frames[:-20])
    with pytest.raises(UsageError, match=r"a\.jsonl\.zst cannot be read: the archive is cut off"):
        texts(text_files([path]))
    path.write_bytes(b"no archive")
    with pytest.raises(UsageError, match=r"a\.jsonl\.zst cannot be read: zstd"):
        texts(text_files([path]))


def test_without_zstandard_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.txt.zst").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=r"Reading .*a\.txt\.zst needs the package zstandard"):
        texts(text_files([tmp_path]))


# The hub, with a stand-in for `datasets`; run by hand against datasets 5.2.0 on a local data set


class Rows:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def skip(self, count: int) -> Rows:
        return Rows(self.rows[count:])

    def __iter__(self) -> Iterator[Any]:
        for row in self.rows:
            if row is None:
                raise ConnectionError("the line is dead")
            yield row


def data_set(**changes: Any) -> HubDataset:
    return HubDataset(**{"name": "owner/name", "commit": COMMIT, **changes})


def test_a_data_set_is_streamed_at_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*args: Any, **options: Any) -> Rows:
        asked.append((args, options))
        return Rows([{"body": f"text {i}"} for i in range(4)])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))  # type: ignore[arg-type]
    assert texts(data_set(text_field="body", config="en"), 2) == ["text 2", "text 3"]
    assert texts(data_set(text_field="body", documents=3), 2) == ["text 2"]
    asked.pop()
    assert asked == [(("owner/name", "en"), {"split": "train", "revision": COMMIT, "streaming": True})]
    with pytest.raises(UsageError, match="data set owner/name, row 2: no field 'text'; it has 'body'"):
        texts(data_set(), 1)


def test_a_data_set_that_breaks_off_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(load_dataset=lambda *_, **__: Rows([{"text": "x"}, None]))
    monkeypatch.setitem(sys.modules, "datasets", stand_in)  # type: ignore[arg-type]
    found = documents(data_set())
    next(found)
    with pytest.raises(UsageError, match="data set owner/name: ConnectionError: the line is dead"):
        next(found)


def test_only_a_commit_is_a_revision() -> None:
    with pytest.raises(UsageError, match="'main' is not a commit"):
        data_set(commit="main")


def test_without_datasets_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"data set owner/name needs .* pip install 'marin-repro\[data\]'"):
        texts(data_set())
