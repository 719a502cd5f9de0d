"""Order and store → the arrays of a step. The step is all there is to know of the position, so a resume needs no more.

    tokens        [B, S] int32, sequences as the store has them
    loss_weight   [B, S] float32: 1, and 0 at the last position, whose target is in another sequence
    segment_ids   [B, S] int32: a document's positions share one, the first document's is 0; -1 at padding

A document ends with EOS, and attention stops there; that BOS follows EOS is a target like any other (as upstream's
loader has it, marin-levanter 0.2.227; W&B config of the hero, block_cross_document_attention).

Letters: B rows, S sequence length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from repro.errors import UsageError
from repro.ladder.corpus import Store
from repro.ladder.departures import Departure
from repro.ladder.order import Order, Phase
from repro.ladder.recipe import Recipe
from repro.ladder.shards import Stream

PUBLISHED_STORES = "store_81e7e39a (ladder), store_4d2e363d (hero), not published"
PUBLISHED_TOKENIZER = "marin-community/marin-tokenizer"


class Batch(NamedTuple):
    """Rows of a batch in the order of `marin_model.training.Batch`, in plain numpy."""

    tokens: npt.NDArray[np.int32]
    loss_weight: npt.NDArray[np.float32]
    segment_ids: npt.NDArray[np.int32]


def recipe_order(recipe: Recipe, store: Store, weights: Sequence[Mapping[str, float]], *, seed: int = 0) -> Order:
    """The order in which a recipe reads a store, by the weights of its phases: its own, or the record's for it.

    The first phase names all cells, in their order. Raises UsageError where the store lacks a cell, or has nothing in
    one that is drawn.
    """
    sequences = store.sequences(recipe.seq_len)
    if missing := [cell for cell in weights[0] if cell not in sequences]:
        raise UsageError(
            f"{store.folder} has no cell {missing[0]} ({len(missing)} of {len(weights[0])} cells of the mixture are "
            "missing). Build a store that has them all."
        )
    phases = [Phase(start=s, weights=w) for s, w in zip(recipe.mixture_phase_starts, weights, strict=True)]
    return Order(
        sequences={cell: sequences[cell] for cell in weights[0]},
        phases=phases,
        batch_size=recipe.batch_size,
        block_size=recipe.mixture_block_size,
        epoch_ratio=recipe.simulated_epoching_ratio,
        seed=seed,
    )


@dataclass(frozen=True, kw_only=True)
class Batches:
    """A run's data. UsageError where the order was made for another store or sequence length."""

    order: Order
    store: Store
    seq_len: int

    def __post_init__(self) -> None:
        there = self.store.sequences(self.seq_len)
        for cell, number in self.order.sequences.items():
            if there.get(cell) != number:
                raise UsageError(
                    f"the data order has {number:,} sequences in cell {cell}, {self.store.folder} has "
                    f"{there.get(cell, 0):,} of {self.seq_len} tokens. Make the order from this store."
                )

    def batch(self, step: int, first: int = 0, count: int | None = None) -> Batch:
        """Rows `first` … `first + count − 1` of the step's batch, all of them by default."""
        rows = self.order.rows(step, first, count)
        streams = [self.store.train[cell] for cell in self.order.cells]
        places = zip(rows.cell.tolist(), rows.sequence.tolist(), strict=True)
        return self._rows([(streams[cell], sequence) for cell, sequence in places])

    def held_out(self, tokens: int | None = None) -> Batch:
        """Whole sequences of documents that are never trained on, about so many tokens of them; None: all there are.

        By turns the first sequence of each cell, the second, and so on: cells count alike as far as they reach.
        Raises UsageError where there is none.
        """
        streams = [self.store.held_out[cell] for cell in self.order.cells]
        turns = [(number, place) for place, s in enumerate(streams) for number in range(s.tokens // self.seq_len)]
        wanted = len(turns) if tokens is None else max(1, tokens // self.seq_len)
        if not turns:
            raise UsageError(
                f"{self.store.folder}: no cell has {self.seq_len} held-out tokens, a sequence. Build a store with more "
                f"text, or hold out more than {self.store.origin.held_out:.1%} of its documents."
            )
        return self._rows([(streams[place], number) for number, place in sorted(turns)[:wanted]])

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """What the data is, whatever the machine: every token of it, and the order."""
        return {
            "store": self.store.sha256,
            "tokenizer": str(self.store.tokenizer),
            "seed": self.order.seed,
            "block_size": self.order.block_size,
            "epoch_ratio": self.order.epoch_ratio,
            "phases": [{"start": phase.start, "weights": dict(phase.weights)} for phase in self.order.phases],
        }

    @cached_property
    def departures(self) -> tuple[Departure, ...]:
        """What of the data is not as published."""
        kinds = sorted({str(source["kind"]) for source in self.store.origin.sources.values()})
        return (
            Departure("corpus", PUBLISHED_STORES, f"{', '.join(kinds)}, store {self.store.sha256[:12]}"),
            Departure("tokenizer", PUBLISHED_TOKENIZER, str(self.store.tokenizer)),
        )

    def _rows(self, places: Sequence[tuple[Stream, int]]) -> Batch:
        tokens = np.empty((len(places), self.seq_len), np.int32)
        for row, (stream, sequence) in zip(tokens, places, strict=True):
            row[:] = stream.read(sequence * self.seq_len, self.seq_len)
        weight = np.ones(tokens.shape, np.float32)
        weight[:, -1] = 0
        return Batch(tokens, weight, segment_ids(tokens, self.store.tokenizer.eos))


def segment_ids(tokens: npt.NDArray[np.int32], eos: int) -> npt.NDArray[np.int32]:
    """[B, S] how many documents of its row have ended before each position."""
    ended = np.cumsum(tokens == eos, axis=1, dtype=np.int32)
    return np.concatenate([np.zeros_like(ended[:, :1]), ended[:, :-1]], axis=1)
