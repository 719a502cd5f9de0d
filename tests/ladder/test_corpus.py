"""A token store: whole or not there, the same bytes however often its build was killed, and damage by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import OutputError, RecordError, UsageError
from repro.ladder import corpus
from repro.ladder.corpus import StoreSpec, build_store, open_store
from repro.ladder.shards import Stream
from repro.ladder.sources import Source, text_files
from repro.ladder.synthetic import harrier_synthetic, mixture_entropy
from repro.ladder.tokenizing import TokenizerIdentity, load_tokenizer
from repro.runs import HELD, hold_run

BOS, EOS = 256, 257


def lines(path: Path, texts: Iterable[str]) -> Source:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return text_files([path])


def spec(sources: Mapping[str, Source], **changes: Any) -> StoreSpec:
    return StoreSpec(**{"sources": sources, "tokenizer": load_tokenizer("bytes"), **changes})


def documents_of(stream: Stream) -> list[str]:
    """The text of each document, BOS and EOS checked and taken off."""
    tokens = stream.read(0, stream.tokens)
    ends = np.flatnonzero(tokens == EOS) + 1
    found = []
    for document in np.split(tokens, ends)[:-1]:
        assert document[0] == BOS
        found.append(bytes(document[1:-1].tolist()).decode())
    assert len(found) == stream.documents
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    """All files but the one that says which process is at work."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in files.items() if name != HELD}


@pytest.fixture
def small(tmp_path: Path) -> StoreSpec:
    """Two cells in shards of some 40 tokens; c00q1 has a document longer than that."""
    return spec(
        {
            "c00q0": lines(tmp_path / "a.jsonl", [f"doc {i}" for i in range(60)]),
            "c00q1": lines(tmp_path / "b.jsonl", ["short", "long " * 200, "", "end"] + ["é"] * 40),
        },
        held_out=0.2,
        shard_tokens=40,
    )


# What is inside


@given(
    texts=st.lists(st.text(min_size=1), min_size=1, max_size=15),
    shard_tokens=st.integers(1, 200),
    held_out=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=20, deadline=None)
def test_every_document_is_in_the_store_once_on_one_side_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard_tokens: int, held_out: float
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    given_spec = spec(
        {"c": lines(folder / "a.jsonl", texts), "sure": lines(folder / "b.jsonl", map(str, range(30)))},
        shard_tokens=shard_tokens,
        held_out=held_out,
    )
    store = build_store(given_spec, folder / "store")
    train, held = documents_of(store.train["c"]), documents_of(store.held_out["c"])
    assert not set(train) & set(held)
    assert train == [text for text in texts if text not in held]
    assert held == [text for text in texts if text in held]
    assert held_out or not held


def test_a_document_that_occurs_twice_is_never_on_both_sides(tmp_path: Path) -> None:
    texts = [f"document {i % 50}" for i in range(500)]
    (tmp_path / "c.txt").write_text("document 7")  # in a file of its own, too
    sources = {
        "a": lines(tmp_path / "a.jsonl", texts),
        "b": lines(tmp_path / "b.jsonl", texts),
        "c": text_files([tmp_path / "c.txt"]),
    }
    store = build_store(spec(sources, held_out=0.3), tmp_path / "store")
    train = {text for stream in store.train.values() for text in documents_of(stream)}
    held = {text for stream in store.held_out.values() for text in documents_of(stream)}
    assert train | held == set(texts)
    assert not train & held
    assert 5 <= len(held) <= 25  # 15 expected of 50


def test_a_document_longer_than_a_shard_is_whole(small: StoreSpec, tmp_path: Path) -> None:
    store = build_store(small, tmp_path / "store")
    assert "long " * 200 in documents_of(store.train["c00q1"]) + documents_of(store.held_out["c00q1"])


def test_a_text_file_larger_than_a_part_is_one_document(tmp_path: Path) -> None:
    text = "ö text of many parts " * 20_000
    (tmp_path / "a.txt").write_text(text)
    store = build_store(spec({"c": text_files([tmp_path / "a.txt"])}, held_out=0), tmp_path / "store")
    assert documents_of(store.train["c"]) == [text]


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), data=st.data())
def test_a_stream_reads_over_the_ends_of_its_shards(sizes: list[int], data: st.DataObject) -> None:
    flat = np.arange(sum(sizes), dtype=np.uint16)
    stream = Stream(tuple(np.split(flat, np.cumsum(sizes)[:-1])), documents=1)
    start = data.draw(st.integers(0, len(flat)))
    count = data.draw(st.integers(0, len(flat) - start))
    assert stream.tokens == len(flat)
    assert np.array_equal(stream.read(start, count), flat[start : start + count])


def test_the_manifest_says_what_there_is(small: StoreSpec, tmp_path: Path) -> None:
    store = build_store(small, tmp_path / "store")
    manifest = json.loads((tmp_path / "store" / corpus.MANIFEST).read_text())
    assert manifest["version"] == 1
    assert manifest["dtype"] == "uint16"
    assert manifest["origin"]["tokenizer"] == {
        "name": "bytes", "sha256": None, "vocab_size": 258, "bos": BOS, "eos": EOS
    }  # fmt: skip
    assert str(tmp_path) not in json.dumps(manifest)
    for cell, shards in manifest["cells"].items():
        assert sum(shard["tokens"] for shard in shards["train"]) == store.train[cell].tokens
        assert sum(shard["documents"] for shard in shards["held_out"]) == store.held_out[cell].documents
        assert len(shards["train"]) > 1
    assert store.sequences(7) == {cell: stream.tokens // 7 for cell, stream in store.train.items()}
    assert not (tmp_path / "store" / corpus.BUILDING).exists()


def test_a_vocabulary_beyond_16_bits_takes_32(tmp_path: Path) -> None:
    plain = load_tokenizer("bytes")
    identity = TokenizerIdentity(name="wide", sha256="0" * 64, vocab_size=70_000, bos=69_999, eos=EOS)
    wide = type(plain)(identity, lambda parts: (np.where(ids == BOS, 69_999, ids) for ids in plain.encode(parts)))
    given_spec = spec({"c": lines(tmp_path / "a.jsonl", ["some text"])}, tokenizer=wide, held_out=0)
    store = build_store(given_spec, tmp_path / "store")
    assert store.train["c"].read(0, 3).tolist() == [69_999, ord("s"), ord("o")]


# Builds


class Killed(BaseException):
    """What no part of the program catches."""


def dying(after: int) -> Any:
    """`documents` that die when the corpus has been asked for so many, over all cells."""
    left = after

    def documents(source: Source, skip: int = 0) -> Iterator[Iterable[str]]:
        nonlocal left
        for document in real(source, skip):
            if left == 0:
                raise Killed
            left -= 1
            yield document

    real = corpus.documents
    return documents


@given(deaths=st.lists(st.integers(0, 50), max_size=3))
@settings(max_examples=12, deadline=None)
def test_a_broken_off_build_goes_on_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, deaths: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("builds")
    given_spec = spec(
        {c: lines(folder / f"{c}.jsonl", [f"{c} {i}" for i in range(30)]) for c in ("a", "b")},
        held_out=0.2,
        shard_tokens=60,
    )
    build_store(given_spec, folder / "whole")
    for after in deaths:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(corpus, "documents", dying(after))
            try:
                build_store(given_spec, folder / "broken")
            except Killed:
                with pytest.raises(RecordError, match="its build was broken off; build it again, and it goes on"):
                    open_store(folder / "broken")
    build_store(given_spec, folder / "broken")
    assert files_of(folder / "broken") == files_of(folder / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
from repro.ladder import corpus, shards, sources, tokenizing
replace, renamed = os.replace, 0
def dying(*names):
    global renamed
    renamed += 1
    if renamed == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*names)
os.replace = dying
spec = corpus.StoreSpec(sources={"c": sources.text_files([sys.argv[1]])}, tokenizer=tokenizing.load_tokenizer("bytes"),
                        held_out=0.2, shard_tokens=100)
corpus.build_store(spec, Path(sys.argv[2]))
"""


def test_a_build_killed_with_9_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """Killed before a file gets its name: of the first progress, of shards, of later progress, of the manifest."""
    source = lines(tmp_path / "a.jsonl", [f"document {i}" for i in range(60)])
    given_spec = spec({"c": source}, held_out=0.2, shard_tokens=100)
    build_store(given_spec, tmp_path / "whole")
    whole = files_of(tmp_path / "whole")
    for rename in (1, 2, 3, 4, 2):  # each counted from where the last one was killed
        command = [sys.executable, "-c", KILLED, str(tmp_path / "a.jsonl"), str(tmp_path / "killed"), str(rename)]
        assert subprocess.run(command, check=False, cwd=Path(__file__).parents[2]).returncode == -9
        assert not (tmp_path / "killed" / corpus.MANIFEST).exists()
    build_store(given_spec, tmp_path / "killed")
    assert files_of(tmp_path / "killed") == whole


def test_a_whole_store_is_not_built_again(small: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_store(small, tmp_path / "store")
    monkeypatch.setattr(corpus, "documents", dying(0))
    assert build_store(small, tmp_path / "store").sha256 == first.sha256


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaks of Python's and numpy's allocations, of a corpus of 4 MiB and one of 32, in one document and in many.

    Without the manifest, for which `read_bounded` sets aside 64 MiB, whatever its size.
    """
    monkeypatch.setattr(corpus, "read_bounded", Path.read_bytes)

    def peak(name: str, megabytes: int) -> int:
        folder = tmp_path / f"{name}{megabytes}"
        folder.mkdir()
        if name == "one":
            (folder / "a.txt").write_text("one long document " * (megabytes * 2**20 // 18))
        else:
            lines(folder / "a.jsonl", ("many documents " * 6_000 + str(i) for i in range(megabytes * 11)))
        given_spec = spec({"c": text_files([folder])}, held_out=0, shard_tokens=2**21)
        tracemalloc.start()
        build_store(given_spec, folder / "store")
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for name in ("one", "many"):
        small, large = peak(name, 4), peak(name, 32)
        assert large < 1.1 * small + 2**16
        assert large < 4 * 2**20


def test_progress_is_reported(small: StoreSpec, tmp_path: Path) -> None:
    seen: dict[str, list[int]] = {}
    store = build_store(small, tmp_path / "store", lambda cell, tokens: seen.setdefault(cell, []).append(tokens))
    for cell, tokens in seen.items():
        assert tokens == sorted(tokens)
        assert tokens[-1] == store.train[cell].tokens + store.held_out[cell].tokens


# What cannot be built


@pytest.mark.parametrize(
    ("texts", "changes", "message"),
    [
        ([], {}, r"of the 0 documents of the corpus, none has text for train\. Give more text"),
        (["", ""], {}, "of the 2 documents of the corpus, none has text for train"),
        (["a"], {}, r"of the 1 documents of the corpus, none has text for held_out\. .*none at all with 0"),
        (["a"], {"held_out": 1.0}, r"held-out share 1\.0"),
        (["a"], {"shard_tokens": 0}, "shards of 0 tokens"),
    ],
)
def test_a_corpus_that_is_none_is_refused(
    tmp_path: Path, texts: list[str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build_store(spec({"c": lines(tmp_path / "a.jsonl", texts)}, **changes), tmp_path / "store")


def test_a_cell_without_text_is_no_error_and_has_no_sequences(tmp_path: Path) -> None:
    sources = {"a": lines(tmp_path / "a.jsonl", ["some text"]), "b": lines(tmp_path / "b.jsonl", [])}
    store = build_store(spec(sources, held_out=0), tmp_path / "store")
    assert store.sequences(4) == {"a": 2, "b": 0}


@pytest.mark.parametrize("cell", ["../up", "", "a b"])
def test_a_cell_cannot_name_a_file_elsewhere(tmp_path: Path, cell: str) -> None:
    with pytest.raises(UsageError, match="letters, digits"):
        build_store(spec({cell: lines(tmp_path / "a.jsonl", ["x"])}), tmp_path / "store")
    with pytest.raises(UsageError, match="no cells"):
        build_store(spec({}), tmp_path / "store")


def test_a_folder_of_something_else_is_left_alone(small: StoreSpec, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not empty and no store\. Choose a folder"):
        build_store(small, tmp_path)
    build_store(small, tmp_path / "store")
    before = files_of(tmp_path / "store")
    for changes, message in (
        ({"held_out": 0.1}, r"holds another store: its held_out is 0\.2, not 0\.1"),
        ({"shard_tokens": 41}, "its shard_tokens is 40, not 41"),
        ({"sources": {"c00q0": small.sources["c00q0"]}}, "the source of its cell c00q1 is another"),
    ):
        with pytest.raises(UsageError, match=message):
            build_store(spec(**{**vars(small), **changes}), tmp_path / "store")
    assert files_of(tmp_path / "store") == before


def test_a_source_that_changed_during_the_build_is_refused(
    small: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "documents", dying(30))
    with pytest.raises(Killed):
        build_store(small, tmp_path / "store")
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(UsageError, match="source of its cell c00q0 is another, or was changed"):
        build_store(small, tmp_path / "store")


def test_two_processes_do_not_build_one_store(small: StoreSpec, tmp_path: Path) -> None:
    with hold_run(tmp_path / "store"), pytest.raises(OutputError, match=f"is being written by process {os.getpid()}"):
        build_store(small, tmp_path / "store")


def test_a_folder_that_cannot_be_made_is_an_output_error(small: StoreSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        build_store(small, tmp_path / "file" / "store")


# What is damaged


@pytest.fixture
def built(small: StoreSpec, tmp_path: Path) -> Path:
    build_store(small, tmp_path / "store")
    return tmp_path / "store"


@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_flipped_byte_names_its_shard(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    given_spec = spec({"c": lines(folder / "a.jsonl", map(str, range(99)))}, held_out=0.2, shard_tokens=90)
    build_store(given_spec, folder / "store")
    shard = data.draw(st.sampled_from(sorted((folder / "store" / "shards").iterdir())))
    content = bytearray(shard.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    shard.write_bytes(content)
    with pytest.raises(RecordError, match=rf"{shard.name}: SHA-256 is .*, the manifest has"):
        open_store(folder / "store")
    open_store(folder / "store", verify=False)  # what is not looked at is not found


def test_a_shard_cut_short_or_lost_is_named_even_unverified(built: Path) -> None:
    shard = built / "shards" / "c00q0.train.00001.bin"
    content = shard.read_bytes()
    shard.write_bytes(content[:-2])
    with pytest.raises(RecordError, match=r"c00q0\.train\.00001\.bin: \d+ bytes; the manifest has \d+ tokens of 2"):
        open_store(built, verify=False)
    shard.unlink()
    with pytest.raises(RecordError, match=r"cannot read .*c00q0\.train\.00001\.bin: No such file"):
        open_store(built, verify=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"version 2; this program reads version 1\. Build"),
        ({"version": None}, "version None"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"dtype": "uint8"}, "dtype"),
        ({"origin": {}}, "origin.tokenizer is missing"),
    ],
)
def test_a_manifest_of_another_version_or_form_is_refused(built: Path, change: dict[str, Any], message: str) -> None:
    manifest = json.loads((built / corpus.MANIFEST).read_text())
    (built / corpus.MANIFEST).write_text(json.dumps(manifest | change))
    with pytest.raises(RecordError, match=message):
        open_store(built)


def test_a_manifest_cannot_lead_out_of_its_folder(built: Path) -> None:
    text = (built / corpus.MANIFEST).read_text().replace("shards/c00q0.train.00000.bin", "../a.jsonl")
    (built / corpus.MANIFEST).write_text(text)
    with pytest.raises(RecordError, match="leads out of"):
        open_store(built)


def test_a_folder_without_a_manifest_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"is not a token store: it has no manifest\.json"):
        open_store(tmp_path)


def test_another_tokenizer_than_the_stores_is_refused(built: Path) -> None:
    assert open_store(built, tokenizer=load_tokenizer("bytes").identity).tokenizer.name == "bytes"
    other = TokenizerIdentity(name="tokenizer.json", sha256="ab" * 32, vocab_size=128_256, bos=128_000, eos=128_001)
    with pytest.raises(RecordError, match=r"tokens of bytes \(258 ids, .*, not of tokenizer\.json \(SHA-256 abab"):
        open_store(built, tokenizer=other)


# The synthetic text


def test_a_synthetic_store_knows_its_entropy_and_another_does_not(built: Path, tmp_path: Path) -> None:
    cells = harrier_synthetic(tokens_per_cell=20_000, topics=2, qualities=2)
    store = build_store(spec(cells, held_out=0.05), tmp_path / "synthetic")
    shares = {"c00q0": 1.0, "c01q1": 3.0}
    assert store.entropy(shares) == mixture_entropy(cells, shares)
    assert open_store(built).entropy({"c00q0": 1.0}) is None


def test_a_synthetic_store_holds_about_what_was_asked_for(tmp_path: Path) -> None:
    store = build_store(spec(harrier_synthetic(tokens_per_cell=100_000, topics=1, qualities=2)), tmp_path / "store")
    for cell in ("c00q0", "c00q1"):
        assert (
            abs(store.train[cell].tokens + store.held_out[cell].tokens - 100_000) < 25_000
        )  # 5 sigma of 300 documents
