"""Text → token ids, a document at a time and in pieces, so that a document may be larger than memory.

    bytes               the UTF-8 bytes, BOS 256 and EOS 257; needs nothing and knows every text
    a tokenizers file   tokenizer.json as the `tokenizers` package reads it, with its own BOS and EOS
    hub:NAME@REVISION   the same from the Hugging Face hub; its identity has the commit, and the file's SHA-256

Every document becomes BOS … EOS. A tokenizers file is used as upstream uses it (marin-levanter 0.2.227): a space and
the EOS token's text are appended to the document before it is encoded, so that one more token stands before EOS; text
is cut at white space after 10,000 characters, and the pieces' tokens are joined.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass as plain_dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic.dataclasses import dataclass

from repro.errors import UsageError
from repro.files import parse_json, read_bounded
from repro.ladder.extras import require
from repro.ladder.hub import tokenizer_file
from repro.record.entries import ENTRY

BYTES, HUB = "bytes", "hub:"
BOS, EOS = 256, 257  # of `bytes`
BOS_TOKEN, EOS_TOKEN = "<|begin_of_text|>", "<|end_of_text|>"  # of Llama 3's tokenizer, which the run's is made from
LONGEST_PIECE = 10_000  # characters; a piece ends at the first white space from there on
WHITE_SPACE = re.compile(r"\s")

Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class TokenizerIdentity:
    """What makes two tokenizers the same: equal but for `name`. `vocab_size` is one more than the largest id."""

    name: str
    sha256: str | None  # of the file; None: bytes
    vocab_size: int
    bos: int
    eos: int

    def same_as(self, other: TokenizerIdentity) -> bool:
        """Whether both give the same tokens."""
        mine, theirs = ((one.sha256, one.vocab_size, one.bos, one.eos) for one in (self, other))
        return mine == theirs

    def __str__(self) -> str:
        digest = f"SHA-256 {self.sha256[:12]}…, " if self.sha256 else ""
        return f"{self.name} ({digest}{self.vocab_size:,} ids, BOS {self.bos}, EOS {self.eos})"


@plain_dataclass(frozen=True)
class Tokenizer:
    """`encode` takes the parts of one document and gives the parts of its tokens, BOS first and EOS last."""

    identity: TokenizerIdentity
    encode: Callable[[Iterable[str]], Iterator[Ids]]


def load_tokenizer(name: str | Path, bos: str = BOS_TOKEN, eos: str = EOS_TOKEN) -> Tokenizer:
    """The tokenizer called "bytes", or that of a tokenizers file or of hub:NAME@REVISION, whose BOS and EOS are named.

    Raises UsageError where the file is none or has no such tokens, or where the hub has none; MissingExtraError where
    `tokenizers` is missing.
    """
    if name == BYTES:
        return _bytes_tokenizer()
    if not str(name).startswith(HUB):
        return _tokenizer_from_file(Path(name), Path(name).name, bos, eos)
    repository, _, revision = str(name).removeprefix(HUB).partition("@")
    if not repository or not revision:
        raise UsageError(f"tokenizer {name!r}: a tokenizer of the hub is named {HUB}NAME@REVISION, best by its commit.")
    path, commit = tokenizer_file(repository, revision)
    return _tokenizer_from_file(path, f"{HUB}{repository}@{commit}", bos, eos)


def _bytes_tokenizer() -> Tokenizer:
    identity = TokenizerIdentity(name=BYTES, sha256=None, vocab_size=EOS + 1, bos=BOS, eos=EOS)

    def encode(parts: Iterable[str]) -> Iterator[Ids]:
        yield np.array([identity.bos], np.uint32)
        for part in parts:
            yield np.frombuffer(part.encode(), np.uint8).astype(np.uint32)
        yield np.array([identity.eos], np.uint32)

    return Tokenizer(identity, encode)


def _tokenizer_from_file(path: Path, name: str, bos: str, eos: str) -> Tokenizer:
    tokenizers = require("tokenizers", f"The tokenizer {path}")
    data = read_bounded(path)
    parse_json(data, str(path))  # its own errors say less
    try:
        made = tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # the package raises nothing narrower
        raise UsageError(f"{path} is not a tokenizers file: {error}. Give a tokenizer.json, or say bytes.") from error
    made.no_truncation()
    made.no_padding()
    ids = {}
    for token in (bos, eos):
        ids[token] = made.token_to_id(token)
        if ids[token] is None:
            special = [entry.content for entry in made.get_added_tokens_decoder().values() if entry.special]
            raise UsageError(
                f"{path} has no token {token!r}. Name its tokens for the begin and the end of a document; its special "
                f"tokens are {', '.join(map(repr, special[:8])) or 'none'}."
            )
    if made.encode(f" {eos}", add_special_tokens=False).ids[-1:] != [ids[eos]]:
        raise UsageError(f"{path} does not read {eos!r} as one token. Declare it as a special token of the tokenizer.")
    identity = TokenizerIdentity(
        name=name,
        sha256=hashlib.sha256(data).hexdigest(),
        vocab_size=max(made.get_vocab(with_added_tokens=True).values()) + 1,
        bos=ids[bos],
        eos=ids[eos],
    )

    def encode(parts: Iterable[str]) -> Iterator[Ids]:
        yield np.array([identity.bos], np.uint32)
        for piece in pieces(chain(parts, [f" {eos}"])):
            yield np.array(made.encode(piece, add_special_tokens=False).ids, np.uint32)

    return Tokenizer(identity, encode)


def pieces(parts: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that end before the first white space from their 10,000th character on."""
    held: list[str] = []  # of the piece that has not ended
    size = 0
    for part in parts:
        start = 0
        while space := WHITE_SPACE.search(part, start + max(0, LONGEST_PIECE - size)):
            yield "".join([*held, part[start : space.start()]])
            held, size, start = [], 0, space.start()
        held.append(part[start:])
        size += len(part) - start
    if size:
        yield "".join(held)
