"""Bytes of tokens: by the text, and by upstream's table; and the gate that every document must pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.byte_counts import Gate, TokenBytes, document_bytes, token_bytes
from repro.ladder.tokenizing import TokenizerIdentity, load_tokenizer

# Byte-level BPE writes a space as Ġ, byte 0xC3 as Ã, 0xA9 as ©, 0xE2 0x82 0xAC as â Ĥ ¬.
VOCABULARY = {"h": 0, "i": 1, "Ġhi": 2, "Ã": 3, "©": 4, "Ã©": 5, "âĤ": 6, "¬": 7, "Ġ": 8, "ĠĠ": 9}
ADDED = [
    {"id": 10, "content": "<|begin|>", "special": True},
    {"id": 11, "content": "<|end|>", "special": True},
    {"id": 12, "content": "<tab>", "special": False},
]
BOS, EOS = 10, 11
IDENTITY = TokenizerIdentity(name="tokenizer.json", sha256="0" * 64, vocab_size=13, bos=BOS, eos=EOS)


@pytest.fixture
def table(tmp_path: Path) -> TokenBytes:
    found = token_bytes(IDENTITY, tokenizers_file(tmp_path))
    assert isinstance(found, TokenBytes)
    return found


def tokenizers_file(folder: Path, **changed: Any) -> Path:
    content = {
        "model": {"type": "BPE", "vocab": VOCABULARY},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": ADDED,
        **changed,
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder / "tokenizer.json"


def passes(table: TokenBytes, text: str, ids: list[int]) -> bool:
    gate = Gate()
    gate.check("set, document 1", text, document_bytes(np.array(ids), table).text)
    return not gate.why


@given(st.text())
def test_a_byte_is_a_byte_and_every_text_passes(text: str) -> None:
    tokenizer = load_tokenizer("bytes")
    table = token_bytes(tokenizer.identity, None)
    assert isinstance(table, TokenBytes)
    ids = np.concatenate(list(tokenizer.encode([text])))
    assert passes(table, text, ids.tolist())
    assert document_bytes(ids, table).logged.sum() == len(text.encode())


def test_a_token_has_the_bytes_that_its_name_spells_and_a_fragment_is_logged_as_three(table: TokenBytes) -> None:
    assert table.text.tolist() == [1, 1, 3, 1, 1, 2, 2, 1, 1, 2, 9, 7, 5]
    # Half a character decodes to U+FFFD, three bytes; a lone continuation byte too; é and the space decode as they are.
    assert table.logged.tolist() == [1, 1, 3, 3, 3, 2, 3, 3, 1, 2, 0, 0, 5]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("hi hi", [0, 1, 2]),
        ("é", [5]),
        ("é", [3, 4]),  # a character over two tokens
        ("€é", [6, 7, 5]),
        ("h<|end|>i", [0, EOS, 1]),  # the text spells the special token, which stands for it
        ("h<tab>", [0, 12]),
        ("", []),
    ],
)
def test_a_documents_tokens_have_its_bytes_and_the_appended_space_has_none(
    table: TokenBytes, text: str, ids: list[int]
) -> None:
    assert passes(table, text, [BOS, *ids, VOCABULARY["Ġ"], EOS])
    counted = document_bytes(np.array([BOS, *ids, VOCABULARY["Ġ"], EOS]), table)
    assert counted.text[[0, -2, -1]].tolist() == [0, 0, 0]
    assert counted.logged[[0, -2, -1]].tolist() == [0, 1, 0]  # upstream counts the space


def test_the_appended_space_may_have_joined_a_space_of_the_text(table: TokenBytes) -> None:
    assert passes(table, "h ", [BOS, 0, VOCABULARY["ĠĠ"], EOS])


@pytest.mark.parametrize("ids", [[0, 1, 2, 8], [0, 1], [0, 1, 2, 2]])
def test_a_byte_too_many_or_too_few_fails_and_names_the_document(table: TokenBytes, ids: list[int]) -> None:
    assert not passes(table, "hi hi", [BOS, *ids, VOCABULARY["Ġ"], EOS])


def test_a_leading_space_that_is_counted_twice_fails(table: TokenBytes) -> None:
    # https://github.com/openai/parameter-golf/pull/1672
    twice = table._replace(text=np.where(np.arange(13) == VOCABULARY["Ġhi"], 4, table.text))
    gate = Gate()
    for number in (1, 2):
        gate.check(f"ptb, document {number}", "hi hi", document_bytes(np.array([BOS, 0, 1, 2, 8, EOS]), twice).text)
    assert (gate.documents, gate.failed, gate.utf8_bytes, gate.token_bytes) == (2, 2, 10, 12)
    assert gate.why == "ptb, document 1: its tokens stand for 6 bytes, its text has 5"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "no byte-level BPE"),
        ({"decoder": {"type": "Metaspace"}}, "no byte-level BPE"),
        ({"decoder": None}, "no byte-level BPE"),
        (
            {"model": {"type": "BPE", "vocab": {"▁hi": 0}}},
            "token '▁hi' has the character '▁', which stands for no byte",
        ),
    ],
)
def test_of_another_kind_of_tokenizer_the_bytes_are_not_known(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    found = token_bytes(IDENTITY, tokenizers_file(tmp_path, **changed))
    assert isinstance(found, str)
    assert why in found


def test_a_decoder_in_several_parts_may_be_byte_level(tmp_path: Path) -> None:
    parts = {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]}
    assert isinstance(token_bytes(IDENTITY, tokenizers_file(tmp_path, decoder=parts)), TokenBytes)
