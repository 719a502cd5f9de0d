"""Text to tokens: what every document begins and ends with, and that cutting it into parts changes nothing."""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import MissingExtraError, RecordError, UsageError
from repro.ladder.tokenizing import BOS_TOKEN, EOS_TOKEN, LONGEST_PIECE, load_tokenizer, pieces
from tests.ladder.small_tokenizer import write_tokenizer


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]


def encode(tokenizer: Any, *parts: str) -> list[int]:
    return np.concatenate(list(tokenizer.encode(parts))).tolist()


@given(st.text(), st.lists(st.integers(0, 100)))
def test_bytes_are_utf_8_between_bos_and_eos_in_however_many_parts(text: str, places: list[int]) -> None:
    tokenizer = load_tokenizer("bytes")
    ids = encode(tokenizer, *cut(text, places))
    assert ids == [256, *text.encode(), 257]
    assert max(ids) < tokenizer.identity.vocab_size == 258


@given(
    st.lists(st.tuples(st.sampled_from(["x", " ", "\n", "é"]), st.integers(1, 12_000))),
    st.lists(st.integers(0, 40_000)),
)
def test_pieces_are_the_text_cut_at_white_space_and_do_not_depend_on_its_parts(
    runs: list[tuple[str, int]], places: list[int]
) -> None:
    text = "".join(letter * count for letter, count in runs)
    found = list(pieces(cut(text, places)))
    assert "".join(found) == text
    assert found == list(pieces([text]))
    for piece, after in pairwise(found):
        assert len(piece) >= LONGEST_PIECE
        assert after[0].isspace()
        assert not re.search(r"\s", piece[LONGEST_PIECE:])
    if found:
        assert not re.search(r"\s", found[-1][LONGEST_PIECE:])


# A tokenizers file: with a stand-in for the package, and with the package itself


class StandIn:
    """As much of `tokenizers.Tokenizer` as we use: special tokens are found first, every other character is one."""

    def __init__(self, special: list[str]) -> None:
        self.special = special

    @classmethod
    def from_str(cls, text: str) -> StandIn:
        return cls(json.loads(text)["special"])

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def token_to_id(self, token: str) -> int | None:
        return self.special.index(token) if token in self.special else None

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        return {chr(i): len(self.special) + i for i in range(128)} | {t: i for i, t in enumerate(self.special)}

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {i: SimpleNamespace(content=token, special=True) for i, token in enumerate(self.special)}

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        ids: list[int] = []
        for part in re.split("(" + "|".join(map(re.escape, self.special)) + ")", text):
            ids += [self.special.index(part)] if part in self.special else [len(self.special) + ord(c) for c in part]
        return SimpleNamespace(ids=ids)


@pytest.fixture
def tokenizer_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=StandIn))  # type: ignore[arg-type]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"special": [EOS_TOKEN, BOS_TOKEN, "<|other|>"]}))
    return path


def test_a_document_ends_in_a_space_and_eos_as_upstream_has_it(tokenizer_file: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_file)
    assert encode(tokenizer, "ab", "c") == [1, *(3 + ord(c) for c in "abc "), 0]
    assert (tokenizer.identity.bos, tokenizer.identity.eos, tokenizer.identity.vocab_size) == (1, 0, 131)


def test_a_document_longer_than_a_piece_has_the_same_tokens(tokenizer_file: Path) -> None:
    text = "some words " * 3_000
    assert encode(load_tokenizer(tokenizer_file), text) == [1, *(3 + ord(c) for c in text + " "), 0]


def test_tokenizers_are_told_apart_by_what_they_do(tokenizer_file: Path) -> None:
    one = load_tokenizer(tokenizer_file).identity
    renamed = tokenizer_file.rename(tokenizer_file.with_name("again.json"))
    assert load_tokenizer(renamed).identity.same_as(one)
    assert not load_tokenizer(renamed, bos="<|other|>").identity.same_as(one)
    renamed.write_text(renamed.read_text() + " ")
    assert not load_tokenizer(renamed).identity.same_as(one)
    assert not load_tokenizer("bytes").identity.same_as(one)
    assert str(one).startswith("tokenizer.json (SHA-256 ")


def test_a_file_without_the_named_tokens_says_which_it_has(tokenizer_file: Path) -> None:
    with pytest.raises(UsageError, match=r"no token '<s>'.* special tokens are '<\|end_of_text\|>', "):
        load_tokenizer(tokenizer_file, bos="<s>")


def test_a_file_that_is_no_tokenizer_is_named(tokenizer_file: Path) -> None:
    tokenizer_file.write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json is not a tokenizers file: 'special'"):
        load_tokenizer(tokenizer_file)
    tokenizer_file.write_text("{")
    with pytest.raises(RecordError, match=r"tokenizer\.json: not JSON at line 1"):
        load_tokenizer(tokenizer_file)
    with pytest.raises(RecordError, match=r"cannot read .*nowhere"):
        load_tokenizer(tokenizer_file.with_name("nowhere"))


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        MissingExtraError, match=r"needs the package tokenizers, .* Run: pip install 'marin-repro\[train\]'"
    ):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_with_the_package_itself_long_documents_are_whole_and_end_in_a_space(tmp_path: Path) -> None:
    trained_file = write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(trained_file)
    text = "the quick brown fox " * 3_000
    ids = encode(tokenizer, *cut(text, [777, 12_345, 30_000]))
    assert ids == encode(tokenizer, text)
    plain = tokenizers.Tokenizer.from_file(str(trained_file))
    assert plain.decode(ids[1:-1]) == text + " "
    assert [plain.id_to_token(ids[place]) for place in (0, -2, -1)] == [BOS_TOKEN, "Ġ", EOS_TOKEN]  # Ġ: a space alone
    assert max(ids) < tokenizer.identity.vocab_size
