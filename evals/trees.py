"""Sequences that begin alike, as trees: what they share is computed once, and many trees lie in one row.

Sequences are put in order, so that each one follows the one it shares most with. A row then holds, token after token,
of every sequence what the one before it has not: a walk through the tree of their beginnings, parents before children.
A token's past are its parents up to the root. Along the row these are no longer the tokens just before it, but they are
easily told: they are those from the root on whose own branch has not ended yet. So attention needs two bounds a token
(`lowest`, from which place on it sees, and `until`, up to which place it is seen), and a convolution its parent.

What comes out at a token is what a pass over its sequence alone makes there (`tests/evals/test_trees.py`). All rows are
equally long, so that one program serves all of them.

Letters: R rows, L places of a row, D hidden, J taps of a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from evals import forward
from evals.forward import Weights
from marin_model import attention, model
from marin_model.config import ModelConfig


class Trees(NamedTuple):
    """Rows of trees, all arrays [R, L] int32, NumPy's or on devices. At padding `until` is 0 and `lowest` L."""

    tokens: Int[Any, "R L"]
    position: Int[Any, "R L"]  # in the sequence
    parent: Int[Any, "R L"]  # place of the token before; -1 at a root
    lowest: Int[Any, "R L"]  # root of the token's tree
    lowest_near: Int[Any, "R L"]  # the first place that it sees through the sliding window
    until: Int[Any, "R L"]  # where its branch ends: the first place that does not see it


class Packed(NamedTuple):
    """One row, and where it holds the last tokens that were asked for of each sequence, by its index."""

    row: Trees  # arrays [L]
    places: dict[int, npt.NDArray[np.int32]]


def pack(sequences: Sequence[tuple[int, ...]], last: Sequence[int], *, length: int, window: int) -> list[Packed]:
    """Rows of `length` places for all sequences; of each, the places of its last so many tokens.

    A sequence lies in one row, so none may be longer than one. One that no longer fits begins the next row, with all of
    its tokens.
    """
    packed: list[Packed] = []
    row = _Row(length, window)
    for index in sorted(range(len(sequences)), key=lambda index: sequences[index]):
        if not row.add(index, sequences[index], last[index]):
            packed.append(row.packed())
            row = _Row(length, window)
            assert row.add(index, sequences[index], last[index]), (len(sequences[index]), length)
    return [*packed, row.packed()] if row.places else packed


class _Row:
    """A row that is being filled. `path`: places of the newest sequence's tokens."""

    def __init__(self, length: int, window: int) -> None:
        self.arrays = Trees(*(np.zeros(length, np.int32) for _ in Trees._fields))
        self.arrays.lowest[:] = length
        self.window, self.used = window, 0
        self.path = np.zeros(0, np.int32)
        self.sequence: Sequence[int] = ()
        self.places: dict[int, npt.NDArray[np.int32]] = {}

    def add(self, index: int, sequence: Sequence[int], last: int) -> bool:
        """Whether it fitted."""
        shared = _agree(self.sequence, sequence)
        start, end = self.used, self.used + len(sequence) - shared
        to = self.arrays
        if end > len(to.tokens):
            return False
        to.until[self.path[shared:]] = start
        new = np.arange(start, end, dtype=np.int32)
        self.path = np.concatenate([self.path[:shared], new])
        position = np.arange(shared, len(sequence), dtype=np.int32)
        to.tokens[start:end] = sequence[shared:]
        to.position[start:end] = position
        to.parent[start:end] = np.where(position > 0, self.path[position - 1], -1)
        to.lowest[start:end] = self.path[0]
        to.lowest_near[start:end] = self.path[np.maximum(position - self.window + 1, 0)]
        self.sequence, self.used = sequence, end
        self.places[index] = self.path[len(sequence) - last :]
        return True

    def packed(self) -> Packed:
        self.arrays.until[self.path] = self.used
        self.arrays.lowest_near[self.used :] = len(self.arrays.tokens)
        return Packed(self.arrays, self.places)


def _agree(first: Sequence[int], second: Sequence[int]) -> int:
    """In how many tokens from their beginning."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def stack(rows: Sequence[Trees], count: int) -> Trees:
    """A batch of so many rows, the last of them perhaps empty."""
    length = len(rows[0].tokens)
    empty = _Row(length, 1).packed().row
    return Trees(*(np.stack(arrays) for arrays in zip(*rows, *[empty] * (count - len(rows)), strict=True)))


@partial(jax.jit, static_argnames=("config", "mesh"))
def hidden_states(params: Weights, rows: Trees, *, config: ModelConfig, mesh: Mesh | None) -> Float[Array, "R L D"]:
    """After the final norm, zero at padding. `params` in the compute dtype."""
    length = rows.tokens.shape[1]
    valid = rows.lowest < length

    def before(x: Float[Array, "R L C"]) -> Float[Array, "R L C"]:
        """What stands at each token's parent, zero at roots."""
        parents = jnp.take_along_axis(x, jnp.maximum(rows.parent, 0)[..., None], axis=1)
        return jnp.where(rows.parent[..., None] >= 0, parents, jnp.zeros((), x.dtype))

    def conv(site: str, x: Array, taps: Array) -> Array:
        """As `layers.short_conv`, lag after lag."""
        out = x * taps[:1, None]
        for lag in range(1, taps.shape[0]):
            x = before(x)
            out = out + x * taps[lag : lag + 1, None]
        return out

    def of_layer(x: Array, layer: tuple[Weights, Array]) -> tuple[Array, None]:
        weights, is_long = layer

        def attend(q: Array, k: Array, v: Array) -> Array:
            lowest = jnp.where(is_long, rows.lowest, rows.lowest_near)
            return attention.attend_blocks(q, k, v, lowest, config.sliding_window, rows.until)

        x, *_ = forward.block(
            x,
            weights,
            is_long,
            valid=valid,
            position=rows.position,
            conv=conv,
            attend=attend,
            config=config,
            mesh=mesh,
        )
        return x, None

    x = model.embed(params, rows.tokens, config=config)
    x, _ = jax.lax.scan(of_layer, x, (model.stacked(params), model.long_layers(config)))
    return model.final_norm(params, x, valid, config=config)
