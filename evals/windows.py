"""Texts → windows of tokens, as upstream cuts them, each with the bytes that its scored targets stand for.

A set's documents, each from BOS to EOS, are one stream; window i is tokens S · i … S · i + S − 1, and what is left at
the end is dropped. In a window every position but the last is scored on the token after it, EOS and the BOS after it
included; so the first token of a window is never a target. A document longer than a window fills several, without
memory of the ones before.

Source: the evaluator and loader of marin-levanter 0.2.227; the same rules as in training (`repro.ladder.batches`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evals.byte_counts import Gate, TokenBytes, document_bytes
from evals.sources import TextSet, documents
from repro.errors import UsageError
from repro.ladder.tokenizing import Tokenizer


class Window(NamedTuple):
    """One window of a set, and bytes of its targets by both counts."""

    tokens: npt.NDArray[np.int32]  # [S]
    text_bytes: int
    logged_bytes: int


def windows(
    texts: TextSet,
    tokenizer: Tokenizer,
    table: TokenBytes | str,
    gate: Gate,
    *,
    context: int,
    limit: int | None = None,
) -> Iterator[Window]:
    """The set's windows of `context` tokens, at most `limit`; every document that is read passes through the gate.

    Without a table bytes are 0. Raises UsageError where the set does not fill one window.
    """
    found = 0
    for window in islice(_windows(texts, tokenizer, table, gate, context), limit):
        found += 1
        yield window
    if not found:
        raise UsageError(
            f"{texts.label} does not fill one window of {context:,} tokens. Give it more text; a mean over fewer sets "
            "is another metric."
        )


def _windows(
    texts: TextSet, tokenizer: Tokenizer, table: TokenBytes | str, gate: Gate, context: int
) -> Iterator[Window]:
    rest = np.zeros((3, 0), np.int64)  # tokens, text bytes, logged bytes
    for number, text in enumerate(documents(texts), start=1):
        ids = np.concatenate(list(tokenizer.encode([text]))).astype(np.int64)
        counted = np.zeros((2, len(ids)), np.int64)
        if isinstance(table, TokenBytes):
            counted = np.stack(document_bytes(ids, table))
            gate.check(f"{texts.label}, document {number}", text, counted[0])
        rest = np.concatenate([rest, [ids, *counted]], axis=1)
        whole = rest.shape[1] // context
        for start in range(0, whole * context, context):
            tokens, text_bytes, logged = rest[:, start : start + context]
            yield Window(tokens.astype(np.int32), int(text_bytes[1:].sum()), int(logged[1:].sum()))
        rest = rest[:, whole * context :]
