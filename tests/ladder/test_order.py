"""The data order against the original's own draws, and the laws that any order must keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from repro.errors import UsageError
from repro.ladder import mixture, threefry
from repro.ladder.order import IO_BLOCK, WINDOW, Order, Phase, data_keys, draw_block, feistel, shuffled
from repro.record.facts import load_record

GOLDENS = Path(__file__).parents[1] / "goldens"
VECTORS = json.loads((GOLDENS / "07_data_order.json").read_text())
SEQ_LEN = 4096
LADDER_STORE, HERO_STORE = "store_81e7e39a", "store_4d2e363d"


def weights(name: str, phase: str) -> dict[str, float]:
    return {row.cell: getattr(row.weights[name], phase) for row in load_record().mixture_weights}


def sequences(store: str) -> dict[str, int]:
    return {row.cell: row.tokens[store] // SEQ_LEN for row in load_record().mixture_weights}


@pytest.fixture(scope="module")
def orders() -> Mapping[str, Order]:
    launch, main = weights("hero_launch", "phase0"), weights("hero_from_108000", "phase0")
    return {
        "hero": Order(
            sequences=sequences(HERO_STORE),
            phases=(Phase(start=0, weights=launch), Phase(start=312_192, weights=weights("hero_launch", "phase1"))),
            batch_size=11_264,
        ),
        "hero3": Order(
            sequences=sequences(HERO_STORE),
            phases=(
                Phase(start=0, weights=launch),
                Phase(start=108_000, weights=main),
                Phase(start=312_192, weights=weights("hero_from_108000", "phase1")),
            ),
            batch_size=11_264,
        ),
        "d768": Order(
            sequences=sequences(LADDER_STORE),
            phases=(
                Phase(start=0, weights=weights("ladder", "phase0")),
                Phase(start=9_120, weights=weights("ladder", "phase1")),
            ),
            batch_size=1_024,
            epoch_ratio=mixture.simulated_epoching_ratio(tokens=47_898_951_680, flops_with_lm_head=5.480525e19),
        ),
    }


# The original's draws, on the run's own weights and stores


def test_the_keys_of_the_data_are_those_of_the_run() -> None:
    assert [key.tolist() for key in data_keys(0)] == [VECTORS["keys"]["mix"], VECTORS["keys"]["shuffle"]]


@pytest.mark.parametrize("name", VECTORS["shuffle"])
def test_a_cell_is_shuffled_as_the_original_shuffles_it(orders: Mapping[str, Order], name: str) -> None:
    store, cell = name.split("/")
    vector = VECTORS["shuffle"][name]
    order = orders["hero" if store in HERO_STORE else "d768"]
    place = order.cells.index(cell)
    sizes = np.array(list(order.sequences.values()))
    assert sizes[place] == vector["n_sequences"]
    assert order.cell_keys[place].tolist() == vector["key"]
    position = np.array(vector["indices"])
    found = shuffled(position, np.full(len(position), place), sizes, order.cell_keys)
    assert found.tolist() == vector["mapped"]


@pytest.mark.parametrize("name", VECTORS["blocks"])
def test_a_block_is_drawn_as_the_original_draws_it(orders: Mapping[str, Order], name: str) -> None:
    run, block = name.split("_block_")
    order, vector = orders[run], VECTORS["blocks"][name]
    phase = np.searchsorted(order.first_blocks, int(block), side="right") - 1
    drawn = draw_block(order.counts[phase], data_keys(0).mixture, int(block))
    ids = (drawn.cell * 65_536 + drawn.sequence).astype("<i4")
    assert hashlib.sha256(ids.tobytes()).hexdigest() == vector["sha256_int32_le"]
    step, first = divmod(int(block) * order.block_size, order.batch_size)
    read = order.read_positions(step, first, 12)
    names = [f"{order.cells[cell]}:{position}" for cell, position in zip(*read, strict=True)]
    assert names == vector["first12"]


def test_steps_of_the_hero_read_what_blocks_and_shuffle_say(orders: Mapping[str, Order]) -> None:
    """Across the switch at step 108,000: the batch cut out of its blocks by hand."""
    order = orders["hero3"]
    sizes = np.array(list(order.sequences.values()))
    for step in (107_999, 108_000, 312_193):
        whole = [], []
        first_block = step * order.batch_size // order.block_size
        for block in (first_block, first_block + 1):
            phase = sum(block >= start for start in (24_750, 71_544))
            drawn = draw_block(order.counts[phase], data_keys(0).mixture, block)
            before = [24_750 * order.counts[0], 46_794 * order.counts[1]][:phase]
            before.append((block - (0, 24_750, 71_544)[phase]) * order.counts[phase])
            whole[0].append(drawn.cell)
            whole[1].append(drawn.sequence + np.sum(before, axis=0)[drawn.cell])
        cut = slice(at := step * order.batch_size % order.block_size, at + order.batch_size)
        cell, position = (np.concatenate(part)[cut] for part in whole)
        rows = order.rows(step)
        assert np.array_equal(rows.cell, cell)
        assert np.array_equal(rows.sequence, shuffled(position % sizes[cell], cell, sizes, order.cell_keys))


def test_the_ladder_reads_the_first_of_each_shuffled_cell_over_and_over(orders: Mapping[str, Order]) -> None:
    order = orders["d768"]
    rows, read = order.rows(9_000), order.read_positions(9_000)
    kept = np.array([int(n * (47_898_951_680 / 18.75e12)) for n in order.sequences.values()])
    assert (read.sequence >= kept[read.cell]).any()  # some cell is in its second epoch
    sizes = np.array(list(order.sequences.values()))
    assert np.array_equal(rows.sequence, shuffled(read.sequence % kept[read.cell], read.cell, sizes, order.cell_keys))


def test_golden_mixture_of_made_up_weights() -> None:
    golden = np.load(GOLDENS / "07_mixture_blocks.npz")
    names = [f"c{i:03}" for i in range(200)]
    order = Order(
        sequences=dict.fromkeys(names, 10**6),
        phases=[
            Phase(start=0, weights=dict(zip(names, golden["w0"], strict=True))),
            Phase(start=64, weights=dict(zip(names, golden["w1"], strict=True))),
        ],
        batch_size=2048,
        block_size=2048,
    )
    assert np.array_equal(order.counts, [golden["counts_phase0"], golden["counts_phase1"]])
    assert np.array_equal(64 * order.counts[0], golden["counts_after_phase0"])
    key = threefry.key_from_seed(5)
    for block in (0, 1, 63, 64, 70):
        phase = int(block >= 64)
        drawn = draw_block(order.counts[phase], key, block)
        before = 64 * order.counts[0] if phase else 0 * order.counts[0]
        position = drawn.sequence + (before + order.counts[phase] * (block - 64 * phase))[drawn.cell]
        assert np.array_equal(drawn.cell, golden[f"block{block}/dataset_id"])
        assert np.array_equal(position, golden[f"block{block}/index_in_dataset"])


# Laws of the shuffle


@given(length=st.integers(1, 3_000), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_a_feistel_network_permutes(length: int, seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 2**20, size=5, dtype=np.uint64)
    index = np.arange(length)
    found = feistel(index, np.full(length, length), np.tile(keys, (length, 1)))
    assert np.array_equal(np.sort(found), index)


@given(sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=3), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=50)
def test_each_position_of_a_cell_has_a_sequence_of_its_own(sizes: list[int], seed: int) -> None:
    keys = threefry.split(threefry.key_from_seed(seed), len(sizes))
    cell = np.repeat(np.arange(len(sizes)), sizes)
    position = np.concatenate([np.arange(n) for n in sizes])
    mixed = np.random.default_rng(seed).permutation(len(cell))  # whatever else is asked for beside it
    found = shuffled(position[mixed], cell[mixed], np.array(sizes), keys)
    for place, size in enumerate(sizes):
        assert np.array_equal(np.sort(found[cell[mixed] == place]), np.arange(size))


@pytest.mark.parametrize("size", [WINDOW - 1, WINDOW, WINDOW + 100, WINDOW + 3 * IO_BLOCK + 7])
def test_a_cell_of_several_windows_is_permuted_and_reads_near_its_groups(size: int) -> None:
    keys = threefry.key_from_seed(1)[None]
    found = shuffled(np.arange(size), np.zeros(size, int), np.array([size]), keys)
    assert np.array_equal(np.sort(found), np.arange(size))
    full = size // IO_BLOCK * IO_BLOCK
    assert np.array_equal(np.sort(found[full:]), np.arange(full, size))  # the tail stays at the end
    groups = np.unique(found[: min(WINDOW, full)] // IO_BLOCK)
    assert len(groups) == min(512, size // IO_BLOCK)  # a window holds whole groups
    assert (found != np.arange(size)).mean() > 0.99


# Laws of the mixture


@st.composite
def small_orders(draw: st.DrawFn) -> Order:
    cells = [f"c{i}" for i in range(draw(st.integers(1, 5)))]
    size = st.integers(1, 700)
    some = st.lists(st.integers(0, 20), min_size=len(cells), max_size=len(cells))
    batch, block = draw(st.integers(1, 40)), draw(st.integers(8, 96))
    multiple = mixture.step_multiple(batch, block)
    starts = sorted({0, *(multiple * n for n in draw(st.lists(st.integers(1, 4), max_size=2)))})
    tables = [draw(some) for _ in starts]
    assume(all(any(table) for table in tables))
    return Order(
        sequences={cell: draw(size) for cell in cells},
        phases=[Phase(start=s, weights=dict(zip(cells, t, strict=True))) for s, t in zip(starts, tables, strict=True)],
        batch_size=batch,
        block_size=block,
        seed=draw(st.integers(0, 2**32)),
    )


@given(order=small_orders(), step=st.integers(0, 500), data=st.data())
@settings(deadline=None, max_examples=50)
def test_the_number_of_processes_changes_no_batch(order: Order, step: int, data: st.DataObject) -> None:
    whole = order.rows(step)
    cuts = sorted({0, order.batch_size, *data.draw(st.lists(st.integers(0, order.batch_size), max_size=4))})
    parts = [order.rows(step, first, end - first) for first, end in pairwise(cuts)]
    assert np.array_equal(np.concatenate([part.cell for part in parts]), whole.cell)
    assert np.array_equal(np.concatenate([part.sequence for part in parts]), whole.sequence)
    assert len(whole.cell) == order.batch_size
    assert (whole.sequence < np.array(list(order.sequences.values()))[whole.cell]).all()


@given(order=small_orders(), steps=st.integers(1, 60))
@settings(deadline=None, max_examples=50)
def test_at_every_step_each_cell_is_within_one_block_of_its_share(order: Order, steps: int) -> None:
    """Of each phase that `steps` reaches: draws of a cell against its share of the sequences drawn in the phase."""
    ends = [*(phase.start for phase in order.phases[1:]), steps]
    for phase, counts, end in zip(order.phases, order.counts, ends, strict=True):
        drawn = np.zeros(len(order.cells), int)
        for step in range(phase.start, min(end, steps)):
            drawn += np.bincount(order.read_positions(step).cell, minlength=len(drawn))
            seen = (step + 1 - phase.start) * order.batch_size
            assert (abs(drawn - seen * counts / order.block_size) <= counts).all()
            if seen % order.block_size == 0:
                assert np.array_equal(drawn, seen // order.block_size * counts)


def test_over_the_second_phase_of_the_hero_each_cell_is_within_one_block_of_its_weight(
    orders: Mapping[str, Order],
) -> None:
    """The weights after step 108,000 are whole counts: nothing is lost to rounding, so the weight itself is kept.

    What was read of a cell over all 46,794 blocks, by its last reading position in the phase.
    """
    order = orders["hero3"]
    w = np.array(list(order.phases[1].weights.values()))
    phase_sequences = (312_192 - 108_000) * 11_264
    read_until = np.zeros(200, int)
    for step in range(312_187, 312_192):  # the last block, and a little before it
        read = order.read_positions(step)
        np.maximum.at(read_until, read.cell, read.sequence + 1)
    drawn = read_until - 24_750 * order.counts[0]
    drawn[w == 0] = 0  # c22q0, which the last block does not hold
    assert (abs(drawn - w * phase_sequences) < order.counts[1] + 1e-3).all()
    assert drawn.sum() == phase_sequences


@given(order=small_orders(), steps=st.integers(1, 50))
@settings(deadline=None, max_examples=25)
def test_no_sequence_is_read_twice_within_an_epoch(order: Order, steps: int) -> None:
    """Over whole blocks each cell is read once from 0 on, across phases; its epochs repeat in one order."""
    multiple = mixture.step_multiple(order.batch_size, order.block_size)
    steps = max(1, steps // multiple) * multiple
    read = [order.read_positions(step) for step in range(steps)]
    rows = [order.rows(step) for step in range(steps)]
    cell = np.concatenate([part.cell for part in read])
    position = np.concatenate([part.sequence for part in read])
    sequence = np.concatenate([part.sequence for part in rows])
    for place, size in enumerate(order.sequences.values()):
        here = np.argsort(position[cell == place])
        assert np.array_equal(position[cell == place][here], np.arange(len(here)))
        in_turn = sequence[cell == place][here]
        first_epoch = in_turn[:size]
        assert len(np.unique(first_epoch)) == len(first_epoch)
        assert np.array_equal(in_turn, np.resize(first_epoch, len(in_turn)))  # and so each later epoch


def test_the_seed_changes_the_order(orders: Mapping[str, Order]) -> None:
    order = orders["d768"]
    other = replace(order, seed=1)
    assert not np.array_equal(other.rows(0).cell, order.rows(0).cell)
    assert not np.array_equal(other.cell_keys, order.cell_keys)


# Cells that are never read


def test_the_launch_mixture_reports_the_17_cells_that_it_never_reads(orders: Mapping[str, Order]) -> None:
    odd = [unread for unread in orders["hero"].unread_cells() if unread.phase == 0]
    assert [unread.cell for unread in odd] == [
        f"c{topic:02}q0" for topic in (0, 2, 4, 6, 8, 9, 13, 15, 19, 22, 26, 27, 28, 30, 31, 33, 34)
    ]
    assert {unread.drawn for unread in odd} == {0}  # their shares of a block are under one sequence
    assert [unread.phase for unread in orders["hero3"].unread_cells()] == [0] * 17  # later weights: only c22q0, at 0


def test_a_drawn_cell_without_sequences_is_an_error_and_one_never_drawn_a_report() -> None:
    phases = [Phase(start=0, weights={"a": 0.9, "b": 0.1, "c": 0.0})]
    order = Order(sequences={"a": 5, "b": 0, "c": 0}, phases=phases, batch_size=2, block_size=8)
    assert [(unread.cell, unread.weight) for unread in order.unread_cells()] == [("b", 0.1)]
    with pytest.raises(UsageError, match=r"draws 1 sequences a block from cell b \(weight 0\.1\), which has 0\."):
        Order(sequences={"a": 5, "b": 0, "c": 0}, phases=phases, batch_size=2, block_size=10)
    with pytest.raises(UsageError, match=r"from cell b .*, which has 0 of 9 after cutting to 0\.1\."):
        Order(sequences={"a": 50, "b": 9, "c": 0}, phases=phases, batch_size=2, block_size=10, epoch_ratio=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": []}, r"phases start at steps \[\]; they must ascend from 0"),
        ({"phases": [Phase(start=4, weights={"a": 1})]}, "must ascend from 0"),
        ({"phases": [Phase(start=0, weights={"z": 1, "a": 1})]}, "weighs cell z, which the data does not have"),
        (
            {"phases": [Phase(start=0, weights={"a": 1}), Phase(start=3, weights={"a": 1})]},
            "phase 1 starts at step 3, inside a block; .* multiples of 4 steps",
        ),
        ({"batch_size": 0}, "batch of 0"),
        ({"block_size": 70_000}, "a block at most 65,536"),
        ({"epoch_ratio": 0.0}, r"must be in \(0, 1\]"),
        ({"sequences": {"a": -1}}, "cell a has -1 sequences"),
    ],
)
def test_an_order_that_cannot_be_meant_says_why(change: dict[str, Any], message: str) -> None:
    sound = {"sequences": {"a": 9}, "phases": [Phase(start=0, weights={"a": 1})], "batch_size": 2, "block_size": 8}
    Order(**sound)
    with pytest.raises(UsageError, match=message):
        Order(**{**sound, **change})


@pytest.mark.parametrize(("step", "first", "count"), [(-1, 0, 1), (0, -1, 1), (0, 1, 2), (0, 0, -1)])
def test_rows_outside_the_batch_are_refused(step: int, first: int, count: int) -> None:
    order = Order(sequences={"a": 9}, phases=[Phase(start=0, weights={"a": 1})], batch_size=2, block_size=8)
    with pytest.raises(UsageError, match="a batch has rows 0 to 2"):
        order.rows(step, first, count)
