"""Text → token ids and back, without the begin and end that a document has: what a prompt is made of.

`repro.ladder.tokenizing` turns whole documents into BOS … EOS; a prompt ends nowhere, and what a model writes must be
read again. The tokens of a text are the same in both, but for a document of more than 10,000 characters, which is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.errors import UsageError
from repro.files import read_bounded
from repro.ladder.extras import require
from repro.ladder.tokenizing import TokenizerIdentity


@dataclass(frozen=True)
class PlainText:
    """`decode` leaves out BOS, EOS and other special tokens, and shows U+FFFD for bytes that are no UTF-8."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    bos: int
    eos: int


def plain_text(identity: TokenizerIdentity, file: str | Path | None) -> PlainText:
    """The tokenizer of this identity; `file` is its tokenizers file, None for bytes.

    Raises UsageError where a file is needed and none is named, MissingExtraError where `tokenizers` is missing.
    """
    if identity.sha256 is None:
        return PlainText(
            encode=lambda text: list(text.encode()),
            decode=lambda ids: bytes(one for one in ids if one < 256).decode(errors="replace"),
            bos=identity.bos,
            eos=identity.eos,
        )
    if file is None:
        raise UsageError(f"the tokenizer {identity} needs its file. Name it with --tokenizer.")
    made = require("tokenizers", f"The tokenizer {file}").Tokenizer.from_str(read_bounded(Path(file)).decode())
    made.no_truncation()
    made.no_padding()
    return PlainText(
        encode=lambda text: list(made.encode(text, add_special_tokens=False).ids),
        decode=lambda ids: str(made.decode(list(ids), skip_special_tokens=True)),
        bos=identity.bos,
        eos=identity.eos,
    )
