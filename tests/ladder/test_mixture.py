"""The mixture's arithmetic: phase starts, block counts and exposure, on the run's own weights and on any weights."""

from __future__ import annotations

import csv
import hashlib
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import repro.record
from repro.errors import RecordError, UsageError
from repro.ladder import mixture

TABLE = Path(repro.record.__file__).parent / "marin_535b" / "mixture_weights.csv"
SEQ_LEN = 4096
HERO = (390_251, 11_264)  # steps, batch size
LADDER_STORE, HERO_STORE = "tokens.store_81e7e39a", "tokens.store_4d2e363d"

# Integer counts as levanter's own MixtureDataset (marin-levanter 0.2.227) makes them of the published weights at block
# size 49,152: SHA-256 of the 200 counts joined by commas, what the remainder was and where it went, cells with none,
# and the share of the cell with the remainder, configured → drawn, in percent.
BLOCKS = {
    "ladder.phase0": (
        "32cd979e5a757636531c76a8e44a25b4d70d4b94a82233bd54debb908aa9382c",
        97,
        "c30q4",
        10,
        4.760,
        4.956,
    ),
    "ladder.phase1": (
        "277ac986c6a348228b8731d3f32586a0e2ef5974f605248619bd2b3e63801871",
        99,
        "c32q3",
        11,
        4.045,
        4.246,
    ),
    "hero_launch.phase0": (
        *("171e08ba0e059469374ed882419ad6143ff9d0c29cc35f26d39245621815cb7b", 98, "c30q4", 17, 4.803, 5.001),
    ),
    "hero_launch.phase1": (
        *("60cdd6cd43113aab231f47ef2ae18a6598013c68f5f2d204b5e7be74898101b7", 101, "c13q3", 15, 5.202, 5.406),
    ),
    "hero_from_108000.phase0": (
        *("53b5fd9ef4be7abd7750a003bde100d07726b520c541efe44ef08c30c1f34425", 0, "c28q4", 1, 5.418, 5.418),
    ),
    "hero_from_108000.phase1": (
        *("4e6f8be0e0bc97d97af35d610c4bdc02dd29f00776b314fb1d909e0daea1c927", 0, "c30q4", 1, 9.117, 9.117),
    ),
}


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, str]]:
    with TABLE.open(newline="") as file:
        return {row["cell"]: row for row in csv.DictReader(file)}


def weights(table: dict[str, dict[str, str]], name: str) -> dict[str, float]:
    return {cell: float(row[f"weights.{name}"]) for cell, row in table.items()}


def tokens(table: dict[str, dict[str, str]], store: str) -> dict[str, int]:
    return {cell: int(row[store]) for cell, row in table.items()}


# Phase starts: resolved stage starts in the W&B configs of rav-ladder-d1536 and the hero; the rest by the same rule.


@pytest.mark.parametrize(
    ("steps", "batch", "multiple", "starts", "switched"),
    [
        (11_420, 1024, 48, (0, 9120), (0, 3168, 9120)),
        (15_276, 2048, 24, (0, 12_216), (0, 4248, 12_216)),
        (15_128, 6144, 8, (0, 12_096), (0, 4192, 12_096)),
        (20_072, 11_264, 48, (0, 16_032), (0, 5568, 16_032)),
        (*HERO, 48, (0, 312_192), (0, 108_000, 312_192)),
    ],
)
def test_phases_start_where_the_runs_had_them(
    steps: int, batch: int, multiple: int, starts: tuple[int, ...], switched: tuple[int, ...]
) -> None:
    assert mixture.step_multiple(batch) == multiple
    assert mixture.phase_starts(steps, batch) == starts
    assert mixture.phase_starts(steps, batch, switched=True) == switched


def test_the_hero_draws_whole_blocks_but_for_the_last() -> None:
    blocks = mixture.blocks_per_phase((0, 108_000, 312_192), *HERO)
    assert blocks[:2] == [24_750, 71_544 - 24_750]
    assert round(sum(blocks), 2) == 89_432.52


@given(steps=st.integers(1, 10**6), batch=st.integers(1, 20_000))
def test_phases_start_on_whole_blocks_and_the_cooldown_wins_a_tie(steps: int, batch: int) -> None:
    multiple = mixture.step_multiple(batch)
    starts = mixture.phase_starts(steps, batch, switched=True)
    assert all(start % multiple == 0 and start * batch % mixture.BLOCK_SIZE == 0 for start in starts)
    assert starts[-1] == mixture.phase_starts(steps, batch)[-1]
    assert list(starts) == sorted(set(starts))
    assert math.isclose(sum(mixture.blocks_per_phase(starts, steps, batch)), steps * batch / mixture.BLOCK_SIZE)


def test_the_two_starts_round_in_opposite_ways() -> None:
    assert mixture.phase_starts(100, 1024, switched=True) == (0, 48)  # 27.7 up and 80 down: both 48, cooldown wins
    assert mixture.phase_starts(20, 1024) == (0, 48)  # too short for one block: never reached
    assert mixture.blocks_per_phase((0, 48), 20, 1024) == [20 / 48, 0]


# Block counts


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_hold_what_upstream_counts(table: dict[str, dict[str, str]], name: str) -> None:
    digest, remainder, cell, empty, configured, drawn = BLOCKS[name]
    given_weights = weights(table, name)
    counts = mixture.block_counts(given_weights)
    assert hashlib.sha256(",".join(map(str, counts.values())).encode()).hexdigest() == digest
    assert len(mixture.zero_quota_cells(counts)) == empty
    share = given_weights[cell] * mixture.BLOCK_SIZE
    assert counts[cell] - math.floor(share + 1e-6) == remainder  # 1e-6: weights that are whole counts, less a rounding
    assert abs(100 * given_weights[cell] - configured) < 6e-4
    assert abs(100 * mixture.effective_shares(counts)[cell] - drawn) < 6e-4


def test_the_launch_mixture_never_draws_17_lowest_quality_cells(table: dict[str, dict[str, str]]) -> None:
    lost = mixture.zero_quota_cells(mixture.block_counts(weights(table, "hero_launch.phase0")))
    topics = (0, 2, 4, 6, 8, 9, 13, 15, 19, 22, 26, 27, 28, 30, 31, 33, 34)
    assert lost == tuple(f"c{topic:02}q0" for topic in topics)


def test_the_remainder_goes_to_the_first_of_the_largest_counts() -> None:
    assert mixture.block_counts({"a": 1.0, "b": 3.0, "c": 3.0}, 10) == {"a": 1, "b": 5, "c": 4}
    assert mixture.block_counts({"a": 0.0, "b": 1.0, "c": 1.0}, 1) == {"a": 0, "b": 1, "c": 0}


cells = st.dictionaries(st.text("abc", min_size=1), st.floats(0, 1e3), min_size=1).filter(
    lambda w: math.fsum(w.values()) > 0
)


@given(cells, st.integers(1, 50_000))
def test_a_block_is_full_and_no_cell_but_one_gets_more_than_its_share(w: dict[str, float], size: int) -> None:
    counts = mixture.block_counts(w, size)
    assert list(counts) == list(w)
    assert sum(counts.values()) == size
    assert all(counts[cell] == 0 for cell, weight in w.items() if weight == 0)
    total = math.fsum(w.values())
    assert sum(counts[cell] > w[cell] / total * size for cell in w) <= 1
    assert math.isclose(math.fsum(mixture.effective_shares(counts).values()), 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_a_weight_that_is_none_names_its_cell(bad: float) -> None:
    with pytest.raises(RecordError, match="cell c01q2 is"):
        mixture.block_counts({"c00q0": 1.0, "c01q2": bad})


@pytest.mark.parametrize("nothing", [{}, {"c00q0": 0.0}])
def test_a_mixture_of_nothing_is_refused(nothing: dict[str, float]) -> None:
    with pytest.raises(RecordError, match="no cell has a weight above 0"):
        mixture.block_counts(nothing)


# Distance


@pytest.mark.parametrize(
    ("first", "second", "distance", "digits"),
    [
        # The first: 0.20391888499269867 in an independent audit of the two runs' configurations
        # (fudan-chen/marin-pretrain-research, SCALE_TRANSFER_ZH.md @87e3d473).
        ("ladder.phase0", "hero_launch.phase0", 0.20391888499269867, 1e-15),
        ("ladder.phase1", "hero_launch.phase1", 0.4046241872980046, 1e-15),
        ("hero_launch.phase0", "hero_from_108000.phase0", 0.3331114227556697, 1e-15),
        ("hero_launch.phase1", "hero_from_108000.phase1", 0.5361337807282555, 1e-15),
        ("hero_from_108000.phase0", "hero_from_108000.phase1", 0.1726685, 5e-8),
        ("hero_launch.phase0", "hero_launch.phase1", 0.5644799, 5e-8),
    ],
)
def test_mixtures_lie_as_far_apart_as_measured(
    table: dict[str, dict[str, str]], first: str, second: str, distance: float, digits: float
) -> None:
    found = mixture.half_l1(weights(table, first), weights(table, second))
    assert abs(found - distance) < digits


def test_distance_is_0_to_oneself_and_1_to_the_disjoint_and_needs_one_set_of_cells() -> None:
    a, b = {"x": 1.0, "y": 0.0}, {"y": 1.0, "x": 0.0}
    assert mixture.half_l1(a, a) == 0
    assert mixture.half_l1(a, b) == mixture.half_l1(b, a) == 1
    with pytest.raises(RecordError, match="only one of two tables names y"):
        mixture.half_l1(a, {"x": 1.0})


# Simulated epoching and exposure


@pytest.mark.parametrize(
    ("run_tokens", "flops", "ratio", "kept"),
    [  # FLOPs with the LM head; kept: sequences of c22q0, 826 long in both stores
        (47_898_951_680, 5.480525e19, 0.0025546107562666666, 2),
        (128_144_375_808, 2.735902e20, 0.00683436670976, 5),
        (380_708_585_472, 1.831326e21, 0.02030445789184, 16),  # W&B config of rav-ladder-d1536: both budgets
        (926_068_768_768, 9.201308e21, 0.04939033433429333, 40),
        (18_005_144_633_344, 2.696023e24, None, 826),  # W&B config of the hero: both budgets null
    ],
)
def test_only_the_ladder_repeats_as_the_reference_would(
    run_tokens: int, flops: float, ratio: float | None, kept: int
) -> None:
    found = mixture.simulated_epoching_ratio(tokens=run_tokens, flops_with_lm_head=flops)
    assert found == ratio
    assert mixture.truncated_sequences(826, found) == kept


def test_a_small_run_longer_than_the_reference_is_refused() -> None:
    with pytest.raises(UsageError, match="exceed the reference of 18,750,000,000,000"):
        mixture.simulated_epoching_ratio(tokens=18_750_000_000_001, flops_with_lm_head=1e23)


def test_exposure_by_weights_has_the_published_maxima(table: dict[str, dict[str, str]]) -> None:
    """2.09: issue 8435, job summary ("~2.1"); 7.02: the loader's own check, which allows 8."""
    two, three = mixture.reference_phase_tokens(), mixture.reference_phase_tokens(switched=True)
    assert two == (15e12, 3.75e12)
    assert math.isclose(sum(three), 18.75e12)

    def worst(names: tuple[str, ...], budgets: tuple[float, ...], store: str) -> tuple[str, float]:
        phases = list(zip((weights(table, name) for name in names), budgets, strict=True))
        cell, epochs = mixture.most_exposed(mixture.exposure_by_weights(phases, tokens(table, store)))
        return cell, round(epochs, 3)

    assert worst(("ladder.phase0", "ladder.phase1"), two, LADDER_STORE) == ("c12q4", 2.094)
    assert worst(("hero_launch.phase0", "hero_launch.phase1"), two, HERO_STORE) == ("c27q4", 2.962)
    later = ("hero_launch.phase0", "hero_from_108000.phase0", "hero_from_108000.phase1")
    assert worst(later, three, HERO_STORE) == ("c27q0", 7.020)


def test_exposure_by_block_counts_has_another_maximum_in_another_cell(table: dict[str, dict[str, str]]) -> None:
    """Over the real 390,251 steps; by weights over the same steps an audit has 6.741 in c27q0 (DEEP_DIVE_ZH.md)."""
    names = ("hero_launch.phase0", "hero_from_108000.phase0", "hero_from_108000.phase1")
    blocks = mixture.blocks_per_phase(mixture.phase_starts(*HERO, switched=True), *HERO)
    store = tokens(table, HERO_STORE)
    drawn = mixture.exposure_by_block_counts(
        [(mixture.block_counts(weights(table, name)), n) for name, n in zip(names, blocks, strict=True)], store, SEQ_LEN
    )
    cell, epochs = mixture.most_exposed(drawn)
    assert (cell, round(epochs, 2)) == ("c13q0", 6.73)
    assert sum(epochs > 1 for epochs in drawn.values()) == 45
    assert drawn["c22q0"] == 0
    per_block = mixture.BLOCK_SIZE * SEQ_LEN
    configured = mixture.exposure_by_weights(
        [(weights(table, name), n * per_block) for name, n in zip(names, blocks, strict=True)], store
    )
    assert (mixture.most_exposed(configured)[0], round(configured["c27q0"], 3)) == ("c27q0", 6.741)


def test_exposure_needs_one_set_of_cells_with_tokens() -> None:
    with pytest.raises(RecordError, match="cell a has 0 tokens"):
        mixture.exposure_by_weights([({"a": 1.0}, 10)], {"a": 0})
    with pytest.raises(RecordError, match="only one of two tables names b"):
        mixture.exposure_by_block_counts([({"a": 1}, 10)], {"a": 5, "b": 5}, SEQ_LEN)
