"""Where the sets come from: a folder, the hub (a stand-in), and the built-in miniature."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from huggingface_hub import constants

from evals.miniature import WHAT, write_miniature
from evals.sources import DATASET, FOLDERS, SETS, documents, hub_texts, local_texts, named, survey
from repro.errors import NoAnswerError, UsageError
from repro.ladder.corpus import StoreSpec, build_store
from repro.ladder.synthetic import harrier_synthetic
from repro.ladder.tokenizing import load_tokenizer
from tests.servers.base import Answer, Request
from tests.servers.hub import Hub

REVISION = "65cd6fc" + "0" * 33
TOKEN = "hf_0123456789abcdefghijABCDEFGHIJ0123"
PALOMA = SETS["paloma"]


def lines(*texts: str) -> bytes:
    return gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts).encode(), mtime=0)


def files(name: str) -> dict[str, bytes]:
    folder = FOLDERS.get(name, name)
    return {f"{folder}/val/val.jsonl.gz": lines(f"{name}, a"), f"{folder}/test/test.jsonl.gz": lines("never read")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in PALOMA:
        for path, data in files(name).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(data)
    return tmp_path


def test_the_record_has_sixteen_sets_and_seven_in_this_order() -> None:
    assert (len(PALOMA), len(SETS["uncheatable"])) == (16, 7)
    assert [label for label, _ in named(["paloma", "uncheatable"])] == ["paloma"] * 16 + ["uncheatable"] * 7
    with pytest.raises(UsageError, match="suite 'pile': of texts there are paloma and uncheatable"):
        named(["pile"])


def test_a_folder_in_the_published_layout_gives_the_sets_in_order(folder: Path) -> None:
    texts = local_texts(folder, ["paloma"])
    assert (texts.kind, [one.name for one in texts.sets]) == ("local", list(PALOMA))
    assert [list(documents(one)) for one in texts.sets] == [[f"{name}, a"] for name in PALOMA]
    assert texts.sets[0].files == (folder / "4chan_meta_sep" / "val" / "val.jsonl.gz",)


def test_a_set_may_lie_under_its_own_name_and_its_files_are_read_in_order(folder: Path) -> None:
    (folder / "4chan_meta_sep").rename(folder / "4chan")
    (folder / "4chan" / "val" / "a.jsonl.gz").write_bytes(lines("first"))
    assert list(documents(local_texts(folder, ["paloma"]).sets[0])) == ["first", "4chan, a"]


def test_a_folder_or_set_that_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere is no folder\. Name one that holds <source>/val/\*\.jsonl\.gz"):
        local_texts(folder / "nowhere", ["paloma"])
    (folder / "ptb" / "val" / "val.jsonl.gz").unlink()
    with pytest.raises(UsageError, match=r"nothing of paloma/ptb: no \*\.jsonl\.gz in .*ptb/val\."):
        local_texts(folder, ["paloma"])
    with pytest.raises(UsageError, match="nothing of uncheatable/wikipedia_english"):
        local_texts(folder, ["uncheatable"])


# The miniature


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("miniature")


def test_the_miniature_has_the_names_and_the_layout_and_says_what_it_is(miniature: Path) -> None:
    texts = write_miniature(miniature, ["paloma", "uncheatable"])
    assert [one.label for one in texts.sets] == [f"{suite}/{name}" for suite in SETS for name in SETS[suite]]
    assert local_texts(miniature, ["paloma"]).sets == texts.sets[:16]
    assert (texts.kind, texts.what) == ("miniature", WHAT)
    assert "made-up" in WHAT
    surveys = [survey(one) for one in texts.sets]
    assert sum(one.utf8_bytes for one in surveys[:16]) == 136_924
    assert len({one.utf8_bytes for one in surveys}) == len(surveys)  # sets differ in size: macro is not micro


def test_no_document_of_the_miniature_is_trained_on_or_stands_twice(miniature: Path, tmp_path: Path) -> None:
    texts = write_miniature(miniature, ["paloma", "uncheatable"])
    drawn = [text for one in texts.sets for text in documents(one)]
    assert len(set(drawn)) == len(drawn)
    sources = harrier_synthetic(tokens_per_cell=20_000, topics=4, qualities=2)
    store = build_store(StoreSpec(sources=sources, tokenizer=load_tokenizer("bytes"), held_out=0), tmp_path / "store")
    for cell, stream in store.train.items():
        trained = bytes(token for token in stream.read(0, stream.tokens).tolist() if token < 256)
        assert not any(text.encode() in trained for text in drawn), cell


# The hub


@dataclass
class PalomaHub(Hub):
    """The gated repository; a listing asked for by the short revision names the whole."""

    kind: str = "datasets"
    repo: str = DATASET
    revision: str = REVISION
    gated: str = "auto"
    accepted: str = TOKEN


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PalomaHub]:
    with PalomaHub() as hub:
        hub.files = {path: data for name in PALOMA for path, data in files(name).items()}
        hub.lfs = set(list(hub.files)[::2])
        hub.names = {"65cd6fc": REVISION}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "harnesses.json"), raising=False)
        yield hub


def test_without_a_token_the_gate_says_how_to_get_in(hub: PalomaHub, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        hub_texts(["paloma"], tmp_path / "cache")
    message = str(refused.value)
    assert message.startswith("allenai/paloma is gated: ")
    for said in ("https://huggingface.co/datasets/allenai/paloma", "set HF_TOKEN to it", "--data"):
        assert said in message
    assert not hub.asked("/resolve/")


def test_with_a_token_the_val_files_of_the_pinned_revision_are_read(
    hub: PalomaHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    texts = hub_texts(["paloma"], tmp_path / "cache")
    assert (texts.kind, texts.what) == ("published", f"allenai/paloma at {REVISION}, val")
    assert [list(documents(one)) for one in texts.sets] == [[f"{name}, a"] for name in PALOMA]
    assert all(f"/resolve/{REVISION}/" in request.target for request in hub.asked("/resolve/"))
    assert not hub.asked("/test/")
    asked = len(hub.asked("/resolve/"))
    hub_texts(["paloma"], tmp_path / "cache")
    assert len([one for one in hub.asked("/resolve/")[asked:] if one.method == "GET"]) == 0  # from the cache


def test_bytes_that_are_not_the_listed_ones_are_refused(
    hub: PalomaHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def flip(request: Request, answer: Answer) -> Answer:
        return Answer(answer.status, answer.headers, answer.body[:-1] + bytes([answer.body[-1] ^ 1]))

    hub.change(flip, where="/ptb/val/")
    with pytest.raises(NoAnswerError, match=r"its (sha256|git-sha1) is \w+, the hub's listing has \w+\. Remove it"):
        hub_texts(["paloma"], tmp_path / "cache")


def test_a_hub_that_fails_or_has_moved_on_is_no_verdict(
    hub: PalomaHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.names = {"65cd6fc": "1" * 40, "1" * 40: "1" * 40}
    with pytest.raises(NoAnswerError, match="asked for 65cd6fc, the hub names 1111"):
        hub_texts(["paloma"], tmp_path / "cache")
    hub.names = {}
    with pytest.raises(NoAnswerError, match="no such revision"):
        hub_texts(["paloma"], tmp_path / "cache")


def test_a_set_that_the_hub_lacks_is_named_and_the_uncheatable_ones_are_read_from_a_folder(
    hub: PalomaHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    del hub.files["ptb/val/val.jsonl.gz"]
    with pytest.raises(UsageError, match="has nothing of paloma/ptb"):
        hub_texts(["paloma"], tmp_path / "cache")
    with pytest.raises(UsageError, match="uncheatable sets are not on the hub in this layout"):
        hub_texts(["uncheatable"])
