"""How many bytes a token stands for, counted in two ways, and the gate that every document must pass.

    text      bytes of the document's own text; BOS, EOS and a space that the tokenizer's use appends have none
    logged    by upstream's table of ids (marin-levanter 0.2.227): 0 for special tokens, 1 for a token that is one
              byte, else the UTF-8 length of what "." and the id decode to, less 1; a fragment of a character decodes
              to U+FFFD, of three bytes, and the appended space counts

The gate: the text bytes of a document's tokens sum to the document's UTF-8 length. Where one document fails, the table
is wrong (a tokenizer that normalises, or one that adds spaces), and no bits a byte of any kind may be printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from repro.files import parse_json, read_bounded
from repro.ladder.tokenizing import BYTES, TokenizerIdentity

Counts = npt.NDArray[np.int64]


class TokenBytes(NamedTuple):
    """Bytes by token id, [V] each; `appended`: bytes that the tokenizer's use puts behind every document's text."""

    text: Counts
    logged: Counts
    appended: int
    bos: int
    eos: int


class DocumentBytes(NamedTuple):
    """Bytes of each token of one document."""

    text: Counts
    logged: Counts


@dataclass
class Gate:
    """What was seen of the gate so far. `why` is empty while every document passed."""

    documents: int = 0
    utf8_bytes: int = 0
    token_bytes: int = 0
    failed: int = 0
    why: str = ""

    def check(self, where: str, text: str, counted: Counts) -> None:
        """Count one document in."""
        expected, found = len(text.encode()), int(counted.sum())
        self.documents += 1
        self.utf8_bytes += expected
        self.token_bytes += found
        if expected != found:
            self.failed += 1
            self.why = self.why or f"{where}: its tokens stand for {found:,} bytes, its text has {expected:,}"


def token_bytes(identity: TokenizerIdentity, file: Path | None) -> TokenBytes | str:
    """The table of a tokenizer, or in words why there is none; `file` is the tokenizers file, None for bytes.

    Of files, byte-level BPE has one: every character of a token's name is one byte.
    """
    if identity.name == BYTES and identity.sha256 is None:
        one = (np.arange(identity.vocab_size) < 256).astype(np.int64)
        return TokenBytes(one, one, 0, identity.bos, identity.eos)
    assert file is not None
    return _byte_level(identity, parse_json(read_bounded(file), str(file)))


def document_bytes(ids: npt.NDArray[Any], table: TokenBytes) -> DocumentBytes:
    """Bytes of one document's tokens, BOS first and EOS last; inside, these two stand for text that spells them."""
    text = table.text[ids]
    text[0] = text[-1] = 0
    if table.appended and len(ids) > 2:
        text[-2] -= table.appended
    return DocumentBytes(text, table.logged[ids])


def _byte_level(identity: TokenizerIdentity, content: Any) -> TokenBytes | str:
    model, decoder = (content.get(key) or {} for key in ("model", "decoder"))
    kinds = {part.get("type") for part in (decoder, *decoder.get("decoders", ()))}
    if model.get("type") != "BPE" or "ByteLevel" not in kinds:
        return f"{identity.name} is no byte-level BPE, so the bytes of its tokens are not known"
    text = np.zeros(identity.vocab_size, np.int64)
    logged = np.zeros(identity.vocab_size, np.int64)
    added = {entry["id"]: entry for entry in content.get("added_tokens", ())}
    for token, number in model["vocab"].items():
        if number in added:
            continue
        if odd := [char for char in token if char not in _bytes_of_characters()]:
            return f"{identity.name}: token {token!r} has the character {odd[0]!r}, which stands for no byte"
        spelled = bytes(_bytes_of_characters()[char] for char in token)
        text[number], logged[number] = len(spelled), _decoded_length(spelled)
    for number, entry in added.items():
        text[number] = len(entry["content"].encode())
        logged[number] = 0 if entry.get("special") else text[number]
    return TokenBytes(text, logged, len(b" "), identity.bos, identity.eos)


def _decoded_length(spelled: bytes) -> int:
    """UTF-8 length of what a "." and the bytes decode to, less the "."."""
    return len((b"." + spelled).decode("utf-8", errors="replace").encode()) - 1


@cache
def _bytes_of_characters() -> dict[str, int]:
    """The character by which byte-level BPE writes a byte: itself where printable, else one from U+0100 on (GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
