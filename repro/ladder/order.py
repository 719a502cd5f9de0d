"""Which sequences a step reads: a pure function step → (cell, sequence) of every row of its batch.

Two things are put in order, one after the other:

    mixture   Sequences are drawn in blocks that hold the same count of each cell throughout a phase, permuted inside
              the block. Each cell is read from its front; its reading position goes on where the phase changes, and
              begins again at its end (an epoch, with no new shuffle).
    shuffle   A cell's reading position leads to a sequence of its store: groups of 256 neighbours are permuted over the
              cell, then sequences within windows of 512 groups. Simulated epoching cuts the shuffled cell short.

Nothing is remembered between steps, so a resumed run needs its step and nothing else, and however many processes share
a batch, each may ask for its own rows of it.

Sources: levanter's MixtureDataset and its block shuffle (marin-levanter 0.2.227); the loader's settings in the W&B
configs of hero-12d8b6f0-dee637 and rav-ladder-d1536. Bits come from `threefry`, as JAX makes them; round keys of the
Feistel networks from numpy's PCG64, as upstream makes them.

Letters: C cells, N rows asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from repro.errors import UsageError
from repro.ladder import mixture, threefry

IO_BLOCK = 256  # sequences that stay together in the outer shuffle; W&B config, data.shuffle.io_block_size
WINDOW_BLOCKS = 512  # of these, shuffled sequence by sequence; W&B config, data.shuffle.window_blocks
WINDOW = IO_BLOCK * WINDOW_BLOCKS  # 131,072 sequences
FEISTEL_ROUNDS = 5
FEISTEL_MULTIPLIER = np.uint64(2_654_435_761)
SEED_BITS = 30  # of a PCG64 seed
LARGEST_BLOCK = 65_536  # sequences; a draw's number inside its block has 16 bits

Ints = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Rows of a batch, [N] int64 each: the cell as its place in `Order.cells`, and the sequence of that cell."""

    cell: Ints
    sequence: Ints


class DataKeys(NamedTuple):
    """Random keys [2] of a run's data."""

    mixture: threefry.Key
    shuffle: threefry.Key


class Unread(NamedTuple):
    """A cell that has a weight in a phase and is never read in it, and why.

    `drawn` is what a block should hold of it: 0 where its share of a block is under one sequence, more where the cell
    has no sequence to give.
    """

    cell: str
    phase: int
    weight: float
    drawn: int


@dataclass(frozen=True, kw_only=True)
class Phase:
    """From step `start` on, cells are drawn by these weights."""

    start: int
    weights: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of one run's data. UsageError where a phase starts inside a block or a drawn cell has nothing to read.

    `sequences` names all cells, in the order that settles ties and keys; phases may leave out cells, not add any.
    """

    sequences: Mapping[str, int]  # of each cell, whole ones
    phases: Sequence[Phase]
    batch_size: int  # sequences a step
    block_size: int = mixture.BLOCK_SIZE  # sequences of a mixture block
    epoch_ratio: float | None = None  # share of each cell that is read (`mixture.simulated_epoching_ratio`); None: all
    seed: int = 0  # W&B configs: trainer.seed 0 and no seed of the data's own, on every rung

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_phases(self)
        if empty := [odd for odd in self.unread_cells() if odd.drawn]:
            cell, phase, weight, drawn = empty[0]
            kept = f" of {self.sequences[cell]} after cutting to {self.epoch_ratio:g}" if self.sequences[cell] else ""
            more = f" ({len(empty) - 1} more like it.)" if len(empty) > 1 else ""
            raise UsageError(
                f"data order: phase {phase} draws {drawn:,} sequences a block from cell {cell} (weight {weight:g}), "
                f"which has 0{kept}. Add documents to it, or take it out of the mixture.{more}"
            )

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the cells, in order."""
        return tuple(self.sequences)

    @cached_property
    def lengths(self) -> Ints:
        """[C] sequences of each cell that are ever read: its first ones after the shuffle."""
        return np.array([mixture.truncated_sequences(n, self.epoch_ratio) for n in self.sequences.values()], np.int64)

    @cached_property
    def counts(self) -> Ints:
        """[phases, C] sequences of each cell in one block."""
        table = []
        for phase in self.phases:
            weights = {cell: phase.weights.get(cell, 0.0) for cell in self.sequences}
            table.append(list(mixture.block_counts(weights, self.block_size).values()))
        return np.array(table, np.int64)

    @cached_property
    def cell_keys(self) -> threefry.Key:
        """[C, 2] key of each cell's shuffle."""
        return cell_keys(data_keys(self.seed).shuffle, len(self.sequences))

    @cached_property
    def first_blocks(self) -> Ints:
        """[phases] the block that each phase begins with."""
        return np.array([phase.start * self.batch_size // self.block_size for phase in self.phases], np.int64)

    def read_positions(self, step: int, first: int = 0, count: int | None = None) -> Rows:
        """Rows `first` … `first + count − 1` of the step's batch (all of them by default) as reading positions.

        Positions count from 0 over all epochs; `rows` turns them into sequences.
        """
        count = self.batch_size - first if count is None else count
        if step < 0 or first < 0 or count < 0 or first + count > self.batch_size:
            raise UsageError(
                f"data order: step {step}, rows {first} to {first + count}: a batch has rows 0 to {self.batch_size}."
            )
        place = step * self.batch_size + first + np.arange(count)  # of the whole run
        block, inside = place // self.block_size, place % self.block_size
        cell, position = np.empty(count, np.int64), np.empty(count, np.int64)
        for number in np.unique(block):
            here = block == number
            phase = int(np.searchsorted(self.first_blocks, number, side="right")) - 1
            drawn = draw_block(self.counts[phase], data_keys(self.seed).mixture, int(number))
            cell[here], within = drawn.cell[inside[here]], drawn.sequence[inside[here]]
            position[here] = within + self._read_before(phase, int(number))[cell[here]]
        return Rows(cell, position)

    def rows(self, step: int, first: int = 0, count: int | None = None) -> Rows:
        """Rows `first` … `first + count − 1` of the step's batch (all of them by default) as sequences of the store."""
        cell, position = self.read_positions(step, first, count)
        sizes = np.array(list(self.sequences.values()), np.int64)
        return Rows(cell, shuffled(position % self.lengths[cell], cell, sizes, self.cell_keys))

    def unread_cells(self) -> tuple[Unread, ...]:
        """Every cell with a weight above 0 in a phase that never reads it."""
        found = []
        for number, phase in enumerate(self.phases):
            for place, cell in enumerate(self.sequences):
                weight, drawn = phase.weights.get(cell, 0.0), int(self.counts[number, place])
                if weight > 0 and not (drawn and self.lengths[place]):
                    found.append(Unread(cell, number, weight, drawn))
        return tuple(found)

    def _read_before(self, phase: int, block: int) -> Ints:
        """[C] sequences that were drawn of each cell before this block of this phase."""
        lengths = np.diff(self.first_blocks[: phase + 1])  # of earlier phases, in blocks
        return lengths @ self.counts[:phase] + self.counts[phase] * (block - self.first_blocks[phase])


# The mixture's blocks


def data_keys(seed: int) -> DataKeys:
    """Keys of a run's data; the other half of the seed is for the model's initial weights."""
    return DataKeys(*threefry.split(threefry.split(threefry.key_from_seed(seed))[0]))


def draw_block(counts: Ints, key: threefry.Key, block: int) -> Rows:
    """All draws of one block, in order, from the counts [C] of each cell: its cell, and the how-manieth draw of it."""
    cell = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(cell)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = threefry.permutation(threefry.fold_in(key, block), len(cell))
    return Rows(cell[order], within[order])


# The shuffle of a cell


def cell_keys(key: threefry.Key, cells: int) -> threefry.Key:
    """[cells, 2]: a key for each cell, drawn one after the other, so that a cell's key depends on its place alone."""
    keys = np.empty((cells, 2), np.uint32)
    for place in range(cells):
        key, keys[place] = threefry.split(key)
    return keys


def shuffled(position: Ints, cell: Ints, sequences: Ints, keys: threefry.Key) -> Ints:
    """Sequence at each reading position [N] of its cell [N], given all cells' sizes [C] and keys [C, 2].

    For each cell a permutation of 0 … size − 1: groups of 256 over the whole cell, then single sequences in windows of
    512 groups. The last size % 256 sequences are a tail: they stay at the end, permuted among themselves under the key
    of the window that they fall into, which is one of their own where the groups fill whole windows.
    """
    block_key, full_key, tail_key = np.moveaxis(threefry.split(keys, 3), -2, 0)
    blocks = sequences // IO_BLOCK
    window, offset = np.divmod(position, WINDOW)
    full = np.minimum(blocks[cell] - window * WINDOW_BLOCKS, WINDOW_BLOCKS) * IO_BLOCK  # of this window, without tail

    source = np.empty_like(position)
    tail = offset >= full
    at, w = cell[tail], window[tail]
    moved = _permute(offset[tail] - full[tail], sequences[at] % IO_BLOCK, threefry.fold_in(tail_key[at], w))
    source[tail] = blocks[at] * IO_BLOCK + moved

    at, w = cell[~tail], window[~tail]
    moved = _permute(offset[~tail], full[~tail], threefry.fold_in(full_key[at], w))
    block = _permute(w * WINDOW_BLOCKS + moved // IO_BLOCK, blocks[at], block_key[at])
    source[~tail] = block * IO_BLOCK + moved % IO_BLOCK
    return source


def _permute(index: Ints, length: Ints, key: threefry.Key) -> Ints:
    """index [N] in a Feistel permutation of 0 … length − 1 under each row's key [N, 2]."""
    # Rows of one cell and window share key and length: draw their round keys once.
    _, one, back = np.unique(
        key.astype(np.uint64) @ np.array([2**32, 1], np.uint64), return_index=True, return_inverse=True
    )
    rounds = [
        _round_keys(seed, size)
        for seed, size in zip(threefry.random_below(key[one], SEED_BITS), length[one], strict=True)
    ]
    return feistel(index, length, np.array(rounds, np.uint64).reshape(-1, FEISTEL_ROUNDS)[back])


def _half_bits(length: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Width of a half of the network: of the bits that 0 … length − 1 need, the larger half."""
    bits = np.frexp(np.asarray(length, np.float64) - 1)[1]  # bit length of length − 1, exact below 2^53
    return (bits - bits // 2).astype(np.uint64)


def _round_keys(seed: int, length: int) -> npt.NDArray[np.uint64]:
    generator = np.random.Generator(np.random.PCG64(int(seed)))
    return generator.integers(0, 2 ** int(_half_bits(length)), size=FEISTEL_ROUNDS, dtype=np.uint64)


def feistel(index: Ints, length: Ints, round_keys: npt.NDArray[np.uint64]) -> Ints:
    """Permute index [N] within 0 … length − 1 [N] under round keys [N, 5].

    The network permutes 2^(2 · half) numbers, of which an odd number of bits leaves half unused; whatever lands at or
    beyond `length` goes through it again until it does not (cycle walking).
    """
    half = _half_bits(length)
    mask = (np.uint64(1) << half) - np.uint64(1)
    result = index.astype(np.uint64)
    walking = np.arange(len(result))
    while walking.size:
        left, right = result[walking] >> half[walking], result[walking] & mask[walking]
        for key in round_keys[walking].T:
            left, right = right, left ^ ((right * FEISTEL_MULTIPLIER + key) & mask[walking])
        result[walking] = (left << half[walking]) | right
        walking = walking[result[walking] >= length[walking].astype(np.uint64)]
    return result.astype(np.int64)


# Checks


def _check_sizes(order: Order) -> None:
    if order.batch_size < 1 or not 1 <= order.block_size <= LARGEST_BLOCK:
        raise UsageError(
            f"data order: batch of {order.batch_size} and block of {order.block_size} sequences; both must be at least "
            f"1, and a block at most {LARGEST_BLOCK:,}."
        )
    if order.epoch_ratio is not None and not 0 < order.epoch_ratio <= 1:
        raise UsageError(f"data order: the share of a cell that is read is {order.epoch_ratio}; it must be in (0, 1].")
    for cell, number in order.sequences.items():
        if number < 0:
            raise UsageError(f"data order: cell {cell} has {number} sequences.")


def _check_phases(order: Order) -> None:
    starts = [phase.start for phase in order.phases]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        raise UsageError(f"data order: phases start at steps {starts}; they must ascend from 0.")
    for number, phase in enumerate(order.phases):
        if phase.start * order.batch_size % order.block_size:
            multiple = mixture.step_multiple(order.batch_size, order.block_size)
            raise UsageError(
                f"data order: phase {number} starts at step {phase.start}, inside a block; at a batch of "
                f"{order.batch_size} sequences, phases start at multiples of {multiple} steps."
            )
        if unknown := sorted(phase.weights.keys() - order.sequences.keys()):
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise UsageError(
                f"data order: phase {number} weighs cell {unknown[0]}{more}, which the data does not have."
            )
