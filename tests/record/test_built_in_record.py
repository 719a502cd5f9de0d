"""The facts of the built-in record: sums and identities that its sources state or that must hold."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from repro.record.facts import Record, load_record

TOKENS_PER_STEP = 11264 * 4096  # batch and sequence length of the W&B configuration


@pytest.fixture(scope="module")
def record() -> Record:
    return load_record()


def test_every_table_is_there_and_names_its_sources(record: Record) -> None:
    empty = [name for name, value in vars(record).items() if name != "claims" and not value]
    assert empty == []
    assert all(file.urls and file.left_out and file.checked for file in record.files)


def test_the_grid_has_77_points_with_both_last_steps_of_d1536(record: Record) -> None:
    assert {rung: len(points) for rung, points in record.ladder_grid.items()} == {
        "d768": 20,
        "d1024": 20,
        "d1536": 21,
        "d2048": 16,
    }
    assert [point.step for point in record.ladder_grid["d1536"][-2:]] == [15119, 15127]
    assert record.ladder_grid["d2048"][-1].step == 16063  # stopped before 20,072


def test_the_mean_of_16_domains_is_the_grid(record: Record) -> None:
    grid = {(rung, point.step): point.loss for rung, points in record.ladder_grid.items() for point in points}
    assert {(row.rung, row.step) for row in record.ladder_domains} == set(grid)
    for row in record.ladder_domains:
        assert row.macro_loss == grid[row.rung, row.step]
        assert len(row.losses) == 16
        assert abs(math.fsum(row.losses.values()) / 16 - row.macro_loss) < 3e-7  # float32 on both sides


def test_the_mean_of_16_domains_is_the_hero_macro_loss(record: Record) -> None:
    assert len(record.hero_evaluations) == 73
    residuals = {
        row.step: abs(math.fsum(row.domain_losses.values()) / 16 - row.dropless_macro_loss)
        for row in record.hero_evaluations
    }
    assert max(residuals, key=residuals.__getitem__) == 119999
    assert residuals[119999] == pytest.approx(2.1606683731079102e-07, abs=1e-15)  # the archive's own largest


def test_hero_steps_come_every_3000_but_for_the_one_that_is_not_stored(record: Record) -> None:
    steps = [row.step for row in record.hero_evaluations]
    assert steps == [0, *(s for s in range(2999, 219000, 3000) if s != 215999)]


def test_tokens_are_completed_steps_times_tokens_a_step(record: Record) -> None:
    for row in (*record.hero_evaluations, *record.hero_train):
        assert row.tokens == (row.step + 1) * TOKENS_PER_STEP


def test_the_lineage_has_no_gap_and_every_evaluation_its_owner(record: Record) -> None:
    segments = record.hero_lineage
    assert segments[0].start_step == 0
    assert segments[-1].end_step_exclusive is None
    assert all(before.end_step_exclusive == after.start_step for before, after in pairwise(segments))
    for row in record.hero_evaluations:
        (owner,) = (
            segment.run_id
            for segment in segments
            if segment.start_step <= row.step and row.step < (segment.end_step_exclusive or math.inf)
        )
        assert row.run == owner


def test_1221_trained_steps_were_discarded_at_the_six_handovers(record: Record) -> None:
    closed = [segment for segment in record.hero_lineage if segment.end_step_exclusive is not None]
    assert sum(segment.summary_step + 1 - (segment.end_step_exclusive or 0) for segment in closed) == 1221


def test_the_mixture_has_200_cells_and_the_published_token_sums(record: Record) -> None:
    cells = record.mixture_weights
    assert [cell.cell for cell in cells] == [f"c{c:02d}q{q}" for c in range(40) for q in range(5)]
    assert sum(cell.tokens["store_4d2e363d"] for cell in cells) == 23_106_103_007_622  # the mixture file's own sum
    assert sum(cell.tokens["store_81e7e39a"] for cell in cells) == 23_014_297_198_129
    assert all(cell.tokens["store_4d2e363d"] >= cell.tokens["store_81e7e39a"] for cell in cells)


def test_every_phase_of_every_weight_set_sums_to_one(record: Record) -> None:
    for name in ("ladder", "hero_launch", "hero_from_108000"):
        for phase in (0, 1):
            total = math.fsum(cell.weights[name][phase] for cell in record.mixture_weights)
            assert abs(total - 1) < 1e-9, (name, phase)  # the bound of the run's own loader


def test_ladder_and_hero_differ_by_the_published_half_l1(record: Record) -> None:
    gaps = (abs(cell.weights["ladder"][0] - cell.weights["hero_launch"][0]) for cell in record.mixture_weights)
    assert math.fsum(gaps) / 2 == pytest.approx(0.2039189, abs=1e-7)


def test_training_data_speaks_of_weight_sets_stores_and_rungs_that_exist(record: Record) -> None:
    cell = record.mixture_weights[0]
    rungs = {rung.rung: rung for rung in record.ladder_rungs}
    for data in record.training_data:
        assert data.store in cell.tokens
        starts = [stage.from_step for stage in data.stages]
        assert starts == sorted(starts)
        assert starts[0] == 0
        assert starts[-1] < rungs[data.rung].steps
        assert {stage.weights for stage in data.stages} <= set(cell.weights)


def test_the_forecast_speaks_of_rungs_that_exist(record: Record) -> None:
    assert record.forecast is not None
    assert record.forecast.fitted_on == tuple(record.ladder_grid)
    (target,) = (rung for rung in record.ladder_rungs if rung.rung == record.forecast.target)
    assert target.steps == record.forecast.target_steps


def test_gpus_are_64_a_rack_and_batches_1024(record: Record) -> None:
    for rung in record.ladder_rungs:
        assert (rung.gpus, rung.batch_size) == (64 * rung.racks, 1024 * rung.racks)
        assert rung.num_kv_heads == max(rung.local_kv_heads, rung.global_kv_heads)


def test_the_summary_agrees_with_its_own_throughput(record: Record) -> None:
    assert record.run_configuration is not None
    summary = record.run_configuration.summary
    tokens = summary["throughput/tokens_per_second"] * summary["throughput/duration"]
    assert tokens == pytest.approx(TOKENS_PER_STEP, rel=1e-12)
    assert summary["throughput/total_tokens"] == (summary["_step"] + 1) * TOKENS_PER_STEP
    # MFU counts 3 × forward FLOPs a token against 704 devices of 2.5e15
    flops = 3 * summary["throughput/flops_per_token_analytic"] * summary["throughput/tokens_per_second"]
    assert 100 * flops / summary["throughput/theoretical_flops"] == pytest.approx(summary["throughput/mfu"], rel=1e-12)
    assert summary["throughput/theoretical_flops"] == 704 * summary["throughput/theoretical_flops_per_device"]


def test_samples_and_windows_hold_one_ratio_of_rate_to_mfu(record: Record) -> None:
    # 704 × 2.5e15 FLOP/s over 3 × 49,912,086,528 FLOPs a token, per percent
    expected = 1.76e18 / (3 * 49_912_086_528) / 100
    for row in record.hero_train:
        if row.mfu_percent is not None and row.tokens_per_second is not None:
            assert row.tokens_per_second / row.mfu_percent == pytest.approx(expected, rel=1e-6), row.step
    medians = {(row.window, row.metric): row.median for row in record.hero_windows}
    for window in {row.window for row in record.hero_windows}:
        ratio = medians[window, "tokens_per_second"] / medians[window, "mfu"]
        assert ratio == pytest.approx(expected, rel=1e-6)


def test_drops_of_sender_and_receiver_add_up(record: Record) -> None:
    rows = [row for row in record.hero_train if row.sender_drop_fraction is not None]
    assert len(rows) >= 15
    for row in rows:
        parts = (row.sender_drop_fraction or 0) + (row.receiver_drop_fraction or 0)
        assert parts == pytest.approx(row.drop_fraction, abs=1e-7)


def test_the_configuration_is_the_published_run(record: Record) -> None:
    configuration = record.run_configuration
    assert configuration is not None
    assert configuration.value("trainer.trainer.num_train_steps") == 390251
    assert configuration.value("optimizer.learning_rate") == 0.003290470163258143
    assert configuration.value("trainer.trainer.train_batch_size") == 11264
    assert configuration.value("data.train_weights_stage_starts") == [0, 108000, 312192]
    assert configuration.value("data.train_weights_stage_starts", at="first") == [0, 312192]
