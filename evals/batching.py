"""Requests of any length → batches of few shapes, placed where the model's arrays lie.

Every shape is compiled once, so lengths are rounded up to *buckets*, and the rows of a batch to powers of two. Rows are
dealt to the devices of a mesh; what fills a batch up is empty rows, which cost their products and change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from marin_model import model, sharding
from marin_model.config import ModelConfig
from repro.errors import UsageError
from repro.ladder.meshes import parse_mesh
from repro.ladder.world import ALONE, World, world_of

TOKENS = 8192  # of a batch where its rows are not given; more rows were no faster on a CPU (benchmarks/eval.py)
SHORTEST = 16  # smallest bucket of a row
COMPILING = 2**14  # tokens that one more shape must save to be compiled: seconds of a CPU, at some 10⁴ a second

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A model where it is computed. `params` in the compute dtype; `rows` of every batch, None: by `TOKENS`."""

    params: Mapping[str, jax.Array]
    config: ModelConfig
    world: World = ALONE
    rows: int | None = None
    most_rows: int | None = None


def place(
    params: Mapping[str, jax.Array],
    config: ModelConfig,
    *,
    dtype: str = "float32",
    world: World = ALONE,
    rows: int | None = None,
    most_rows: int | None = None,
) -> Placed:
    """Cast a model's arrays and lay them on the mesh. ValueError where an array cannot be cut as the mesh asks."""
    made = model.cast(params, jnp.dtype(dtype))
    if world.mesh is not None:
        made = jax.device_put(made, sharding.parameter_shardings(config, world.mesh))
    return Placed(params=made, config=config, world=world, rows=rows, most_rows=most_rows)


def parse_world(text: str | None) -> World:
    """The world of a mesh RxE or RxDxE of replicas, data and expert devices. None: all accelerators as replicas, or a
    CPU alone.

    Raises UsageError where it is no mesh, larger than what is there, or leaves out some of several processes.
    """
    if text is None:
        count = len(jax.devices())
        alone = jax.default_backend() == "cpu" or count == 1
        return world_of(None if alone else sharding.make_mesh(replica=count))
    try:
        return world_of(sharding.make_mesh(**parse_mesh(text)))
    except ValueError as error:
        raise UsageError(f"--mesh {text}: {error}") from error


def bucket(length: int, most: int, smallest: int = SHORTEST, step: int = 2) -> int:
    """The least of smallest, smallest · step, smallest · step², … or half way between two, that holds `length`.

    None is above `most`.
    """
    assert length <= most, (length, most)
    size = smallest
    while size < length:
        size *= step
    between = (size // step + size) // 2
    return min(between if smallest < size and length <= between else size, most)


def fewer_shapes(
    shapes: Sequence[S], cost: Callable[[S], int], join: Callable[[S, S], S], compiling: int = COMPILING
) -> list[S]:
    """Each shape, or a larger one that it shares with others where the tokens more are fewer than compiling is worth.

    `cost` is the tokens of a row of a shape; `join` the least shape that holds both.
    """
    counts = Counter(shapes)
    into = {shape: shape for shape in counts}

    def saved(one: S, other: S) -> int:
        more = cost(join(one, other))
        return compiling - counts[one] * (more - cost(one)) - counts[other] * (more - cost(other))

    gains = {pair: saved(*pair) for pair in combinations(counts, 2)}
    while gains and gains[pair := max(gains, key=gains.__getitem__)] > 0:
        both = join(*pair)
        count = sum(counts.pop(one) for one in pair)  # before: `both` may be one of the pair
        counts[both] += count
        into |= {shape: both for shape, now in into.items() if now in pair}
        gains = {other: gain for other, gain in gains.items() if not {*other} & {*pair, both}}
        gains |= {(both, other): saved(both, other) for other in counts if other != both}
    return [into[shape] for shape in shapes]


def in_batches(
    placed: Placed, shapes: Sequence[Hashable], tokens_of_row: Sequence[int]
) -> Iterator[tuple[list[int], int]]:
    """Indices of items of equal shape, and the rows of their batch, at least as many. Dearest shapes come first."""
    alike: dict[Hashable, list[int]] = {}
    for index, shape in enumerate(shapes):
        alike.setdefault(shape, []).append(index)
    for indices in sorted(alike.values(), key=lambda indices: -tokens_of_row[indices[0]]):
        rows = rows_of_batch(placed, tokens_of_row[indices[0]], len(indices))
        for start in range(0, len(indices), rows):
            yield indices[start : start + rows], rows


def filled(rows: Sequence[Sequence[int]], count: int, length: int) -> npt.NDArray[np.int32]:
    """Lists of ids as an array [count, length], zero where there is nothing."""
    array = np.zeros((count, length), np.int32)
    for place, ids in enumerate(rows):
        array[place, : len(ids)] = ids
    return array


def rows_of_batch(placed: Placed, tokens_of_row: int, items: int) -> int:
    """How many rows are computed together of so many that there are."""
    wanted = placed.rows
    if wanted is None:
        wanted = min(max(1, TOKENS // tokens_of_row), placed.most_rows or items)
        wanted = 1 << (wanted.bit_length() - 1)
    wanted = min(wanted, 1 << (items - 1).bit_length())  # what there is, rounded up
    return ceil(wanted / placed.world.devices) * placed.world.devices
