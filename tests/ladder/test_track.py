"""Forecast against measured: residuals known elsewhere, what makes a point incomparable, trends, pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from repro.errors import RecordError
from repro.ladder.pace import project_end
from repro.ladder.recipe import resolve_recipe
from repro.ladder.track import Point, Track, segment_at, track_record
from repro.ladder.trends import Statement, drops, gradient_norm, read_spans
from repro.record.facts import Record, load_record
from repro.record.tables import Configuration, LineageSegment, RunConfiguration, TrainSample

RECORD = load_record()
HERO = resolve_recipe("d6144")


@pytest.fixture(scope="module")
def track() -> Track:
    return track_record(RECORD)


def at(track: Track, step: int) -> Point:
    return next(point for point in track.points if point.step == step)


def comparable_steps(track: Track) -> list[int]:
    return [point.step for point in track.points if point.comparable]


def segments(*changes: Mapping[str, Any]) -> tuple[LineageSegment, ...]:
    """The record's lineage with fields of its last segments replaced."""
    kept = len(RECORD.hero_lineage) - len(changes)
    pairs = zip(RECORD.hero_lineage[kept:], changes, strict=True)
    return RECORD.hero_lineage[:kept] + tuple(replace(segment, **change) for segment, change in pairs)


def configured(first: Mapping[str, Any], latest: Mapping[str, Any]) -> RunConfiguration:
    runs = (RECORD.hero_lineage[0].run_id, RECORD.hero_lineage[-1].run_id)
    one, other = (
        Configuration(run=run, as_of="", leaves=leaves) for run, leaves in zip(runs, (first, latest), strict=True)
    )
    return RunConfiguration(first=one, latest=other)


def said(quantity: str, low: float | None, high: float | None, printed: str = "", **scope: str) -> Statement:
    return Statement(
        id="X-1", quantity=quantity, label="", printed=printed, low=low, high=high, scope=scope, quote="", note="",
        date="", citation="", address="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("step", "residual"),  # a third party's, to five digits, from the same grid by the published script's constants
    [
        (38999, -0.05556),
        (56999, -0.03781),
        (197999, -0.00814),
        (209999, -0.02029),
        (212999, -0.0135),
        (218999, -0.00117),
    ],
)
def test_residuals_are_those_known_elsewhere(track: Track, step: int, residual: float) -> None:
    assert round(at(track, step).residual or 0, 5) == residual


def test_the_band_holds_the_forecast_and_is_linear_between_its_marks(track: Track) -> None:
    band = dict(zip((law.fraction for law in track.study.fit.points), track.study.band(), strict=True))
    point = at(track, 218999)  # between 55% and 60%
    share = (point.fraction - 0.55) / 0.05
    assert point.band == pytest.approx([a + share * (b - a) for a, b in zip(band[0.55], band[0.6], strict=True)])
    for one in track.points:
        assert (one.band is None) == (one.predicted is None)
        assert one.band is None or one.band[0] <= (one.predicted or 0) <= one.band[1]


def test_points_from_the_new_mixture_on_are_not_comparable(track: Track) -> None:
    assert comparable_steps(track)[-1] == 107_999  # the last update on the old mixture
    assert "hero_from_108000 since step 108,000" in (at(track, 110999).why_not or "")
    assert "33% of the tokens" in (at(track, 110999).why_not or "")
    assert at(track, 17999).why_not == "the forecast has no mark at 4.6% of the run"
    assert [one.what for one in track.from_the_start] == ["store", "epoching", "mixture"]
    assert "20% of the tokens" in track.from_the_start[-1].why


def test_what_is_still_to_come_is_not_told_as_done(track: Track) -> None:
    done, planned = track.changes
    assert (done.from_step, done.ahead) == (108_000, False)
    assert (planned.from_step, planned.ahead) == (312_192, True)
    assert planned.why.startswith(
        "the mixture would be hero_from_108000 from step 312,192, as planned now, not hero_launch as launched"
    )
    later = track_record(replace(RECORD, hero_lineage=segments({"summary_step": 312_192})))
    assert [one.ahead for one in later.changes] == [False, False]
    assert "is hero_from_108000 since step 312,192" in later.changes[1].why
    kept = tuple(data for data in RECORD.training_data if data.id != "d6144")
    staged = segments({"mixture_stage_starts": (0, 108_000, 300_000)})
    told = track_record(replace(RECORD, training_data=kept, hero_lineage=staged)).changes
    assert [one.from_step for one in told if one.ahead] == [300_000]


def test_the_mixture_change_is_read_and_not_known(track: Track) -> None:
    moved = tuple(
        replace(data, stages=tuple(replace(one, from_step=min(one.from_step, 60_000)) for one in data.stages[:2]))
        if data.id == "d6144"
        else data
        for data in RECORD.training_data
    )
    assert comparable_steps(track_record(replace(RECORD, training_data=moved, hero_lineage=())))[-1] == 59_999
    kept = tuple(data for data in RECORD.training_data if data.id != "d6144")
    without = track_record(replace(RECORD, training_data=kept))  # the lineage's configurations still tell
    assert comparable_steps(without)[-1] == 107_999
    assert "not checked" in without.notes[0]
    quiet = tuple(replace(one, mixture_stage_starts=(0, 312_192)) for one in RECORD.hero_lineage)
    assert comparable_steps(track_record(replace(RECORD, training_data=kept, hero_lineage=quiet)))[-1] == 218_999


def test_a_longer_context_or_another_horizon_ends_what_is_comparable() -> None:
    kept = tuple(data for data in RECORD.training_data if data.id != "d6144")
    quiet = tuple(replace(one, mixture_stage_starts=(0, 312_192)) for one in RECORD.hero_lineage)
    record = replace(RECORD, training_data=kept, hero_lineage=quiet)

    def seen(first: tuple[int, int], latest: tuple[int, int]) -> Track:
        leaves = [
            {"model": {"max_seq_len": length}, "trainer": {"trainer": {"num_train_steps": steps}}}
            for length, steps in (first, latest)
        ]
        return track_record(replace(record, run_configuration=configured(*leaves)))

    assert comparable_steps(seen((4096, 390_251), (4096, 390_251)))[-1] == 218_999
    longer = seen((4096, 390_251), (16_384, 390_251))
    # Between the two configurations nobody says: those points are not passed over as comparable.
    assert comparable_steps(longer)[-1] == 56_999
    assert at(longer, 146_999).why_not == (
        "hero-fa4sm100-nomask-step146k has 16,384 tokens of context, where the ladder had 4,096"
    )
    assert "does not say model.max_seq_len of hero-main" in (at(longer, 131_999).why_not or "")
    told = tuple(replace(one, seq_len=4096) for one in quiet[:-1])
    record = replace(record, hero_lineage=(*told, quiet[-1]))
    assert comparable_steps(seen((4096, 390_251), (16_384, 390_251)))[-1] == 143_999
    record = replace(record, hero_lineage=(*told, replace(quiet[-1], seq_len=16_384)))
    own = track_record(replace(record, run_configuration=None))  # the lineage alone is enough
    assert comparable_steps(own)[-1] == 143_999
    assert [one.source for one in own.changes] == ["hero_lineage.csv"]
    assert [note for note in own.notes if "context" in note] == []
    record = replace(record, hero_lineage=quiet)
    shorter = seen((4096, 390_251), (4096, 300_000))
    assert "300,000 planned steps, where the forecast has 390,251" in (at(shorter, 146_999).why_not or "")


def test_a_discarded_step_and_a_wrong_number_of_tokens_are_told() -> None:
    changed = tuple(
        replace(one, run="hero-main-step121638")
        if one.step == 83_999
        else replace(one, tokens=one.tokens - 1)
        if one.step == 86_999
        else one
        for one in RECORD.hero_evaluations
    )
    track = track_record(replace(RECORD, hero_evaluations=changed))
    assert "whose step 83,999 was discarded" in (at(track, 83_999).why_not or "")
    assert at(track, 83_999).segment == "hero-ragged_a2a-nccl2307-ep-step81k"
    assert "tokens were read by then" in (at(track, 86_999).why_not or "")
    assert at(track, 89_999).comparable


def test_steps_that_no_run_owns_are_told_and_not_comparable() -> None:
    lineage = tuple(one for one in RECORD.hero_lineage if one.start_step != 58_014)
    track = track_record(replace(RECORD, hero_lineage=lineage))
    assert "Steps 58,014 to 81,715 belong to no run of hero_lineage.csv: no point there is comparable." in track.notes
    assert at(track, 59_999).why_not == "no run of the lineage owns the step"
    assert (at(track, 56_999).comparable, at(track, 83_999).comparable) == (True, True)


def test_what_is_not_checked_without_a_lineage_is_told() -> None:
    notes = track_record(replace(RECORD, hero_lineage=())).notes
    assert [note.partition(" is not checked: the record has no hero_lineage.csv")[0] for note in notes] == [
        "Whether a point was measured on discarded steps",
        "Whether the context changed",
        "Whether the horizon changed",
    ]
    assert track_record(RECORD).notes == ()


def test_every_point_lies_in_the_segment_that_owns_it(track: Track) -> None:
    assert sum(one.points for one in track.segments) == len(track.points) == len(RECORD.hero_evaluations)
    for before, after in zip(RECORD.hero_lineage, RECORD.hero_lineage[1:], strict=False):
        assert segment_at(RECORD, after.start_step - 1) == before
        assert segment_at(RECORD, after.start_step) == after


def test_no_evaluations_is_an_error() -> None:
    files = tuple(file for file in RECORD.files if file.name != "hero_evaluations.csv")
    with pytest.raises(RecordError, match=r"has no hero_evaluations\.csv"):
        track_record(replace(RECORD, files=files, hero_evaluations=()))
    with pytest.raises(RecordError, match=r"hero_evaluations\.csv has no rows"):
        track_record(replace(RECORD, hero_evaluations=()))


def test_discarded_steps_are_no_history() -> None:
    history = {(span.first_step, span.run): span.history for span in read_spans(RECORD, "grad_norm")}
    assert history[81_716, "hero-ragged_a2a-nccl2307-ep-step81k"] == "whole"
    assert history[81_716, "hero-wd-gate-router-p02-step58k"] == "none"  # the control of the hand-over
    assert history[107_800, "hero-ragged_a2a-nccl2307-ep-step81k"] == "part"
    assert history[58_020, "hero-12d8b6f0-dee637"] == "none"


def test_one_step_from_two_sources_counts_once() -> None:
    sample = RECORD.hero_train[0]
    twice = (sample, replace(sample, source="another", grad_norm=9.0))
    (span,) = read_spans(replace(RECORD, hero_train=twice, hero_windows=()), "grad_norm")
    assert (span.n, span.value) == (1, sample.grad_norm)


def norms(*values: tuple[float, float]) -> Record:
    """A record whose gradient norm is known at some fractions of the run."""
    samples = tuple(
        TrainSample(step=int(fraction * HERO.steps), run="one", source="", tokens=1, grad_norm=norm)
        for fraction, norm in values
    )
    one = replace(RECORD.hero_lineage[0], run_id="one", end_step_exclusive=None)
    return replace(RECORD, hero_train=samples, hero_windows=(), hero_lineage=(one,))


def test_a_run_sampled_evenly_for_weeks_is_no_single_median() -> None:
    """As fetch writes it: a row every 500 steps, from the first on."""
    samples = tuple(
        TrainSample(
            step=step,
            run="one",
            source="wandb",
            tokens=1,
            grad_norm=9.0 if step < 2_000 else 1 - abs(step / HERO.steps - 0.22),
            drop_fraction=0.30 if 170_000 <= step < 195_000 else 0.03,
        )
        for step in range(0, 219_000, 500)
    )
    one = replace(RECORD.hero_lineage[0], run_id="one", end_step_exclusive=None)
    record = replace(RECORD, hero_train=samples, hero_windows=(), hero_lineage=(one,))
    spans = read_spans(record, "drop_fraction")
    assert {span.n for span in spans[:-1]} == {10}
    assert sum(span.n for span in spans) == len(samples)
    claims = [said("routing.drop_alert", 0.07, 0.07), said("gradient.norm_peak_fraction", 0.245, 0.255)]
    (alert,) = drops(record, HERO.steps, HERO.warmup_steps, claims).judgements
    assert (alert.verdict, "30.00%, at step 170,000" in alert.found) == ("reached", True)
    (peak,) = gradient_norm(record, HERO.steps, HERO.warmup_steps, claims).judgements
    assert (peak.verdict, "stands at 21.8%" in peak.found) == ("not as said", True)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (((0.1, 0.2), (0.2, 0.3)), "open"),  # not there yet
        (((0.1, 0.2), (0.25, 0.3)), "open"),  # largest at the last that is known
        (((0.1, 0.2), (0.25, 0.3), (0.3, 0.2)), "as said"),
        (((0.1, 0.3), (0.25, 0.2), (0.3, 0.1)), "not as said"),
        (((0.1, 0.2), (0.25, 0.3), (0.4, 0.4)), "not as said"),
        (((0.001, 9.0), (0.25, 0.3), (0.3, 0.2)), "as said"),  # warm-up is left out
        (((0.1, 0.2), (0.3, 0.3)), "open"),  # nothing of where it was expected
        (((0.1, 0.3), (0.3, 0.2)), "open"),
        (((0.3, 0.3), (0.4, 0.2)), "open"),
        ((), "open"),
    ],
)
def test_a_peak_is_judged_as_far_as_the_record_reaches(values: tuple[tuple[float, float], ...], verdict: str) -> None:
    claims = [said("gradient.norm_peak_fraction", 0.245, 0.255)]
    trend = gradient_norm(norms(*values), HERO.steps, HERO.warmup_steps, claims)
    assert [one.verdict for one in trend.judgements] == [verdict]


def test_what_was_said_of_the_builtin_run() -> None:
    claims = [
        said("gradient.norm_peak_fraction", 0.24, 0.26),
        said("gradient.norm_peak_fraction", 0.38, 0.40, run="129B"),
        said("routing.drop_fraction", 0.02, 0.08),
        said("routing.drop_fraction", 0.1, 0.2, run="MHEP-118"),
        said("routing.drop_alert", 0.07, 0.07),
    ]
    norm = gradient_norm(RECORD, HERO.steps, HERO.warmup_steps, claims)
    assert [one.verdict for one in norm.judgements] == ["open", "another run"]
    assert "0.681, stands at 37.4%" in norm.judgements[0].found
    assert norm.judgements[0].found.endswith("none that counts is of steps 81,917 to 107,999")
    dropped = drops(RECORD, HERO.steps, HERO.warmup_steps, claims)
    assert [one.verdict for one in dropped.judgements] == ["not as said", "not reached"]
    assert "(below) from step 81,716 to 219,518" in dropped.judgements[0].found


def test_the_pace_and_where_it_leads() -> None:
    claims = [
        said("run.planned_end", None, None, "2026-12-01"),
        said("run.planned_days", 95.0, 105.0, "about 100"),
        said("throughput.calendar_rate", 2880695.5, 2880696.5, segment="steps 214913 to 219518"),
    ]
    pace = project_end(RECORD, HERO, HERO.steps, claims)
    assert pace is not None
    whole, latest, claimed, *logged = pace.projections
    assert (pace.completed, pace.state) == (219_519, "running")
    # 2026-08-20T02:04:58 to 2026-10-07T13:03:32 are 4,186,714 seconds.
    assert whole.seconds_per_step == pytest.approx(4_186_714 / 219_519, abs=1e-9)
    assert f"{whole.ends:%Y-%m-%d}" == "2026-11-14"
    assert f"{latest.ends:%Y-%m-%d}" == "2026-11-08"
    assert claimed.seconds_per_step == pytest.approx(73_753.87 / 4605, rel=1e-6)
    assert {one.kind for one in logged} == {"without stops"}
    assert all(one.seconds_per_step < latest.seconds_per_step for one in logged)
    end, days = pace.plans
    assert days.ends.isoformat() == "2026-11-28T02:04:58+00:00"
    assert [round(late) for late in end.days_late] == [-23, -17]


def test_a_logged_rate_is_of_one_table_and_names_it() -> None:
    def logged(record: Record) -> tuple[float, str]:
        pace = project_end(record, HERO, HERO.steps)
        assert pace is not None
        (one,) = (one for one in pace.projections if one.pace == "the latest W&B run as logged")
        return round(HERO.tokens_per_step / one.seconds_per_step), one.source

    # One window of 200 steps (3,144,409 tokens/s) and one single step (3,097,380 tokens/s) are of the latest run.
    assert logged(RECORD) == (3_144_409, "hero_windows.csv, steps 146,139 to 146,338")
    assert logged(replace(RECORD, hero_windows=())) == (3_097_380, "hero_train.csv, steps 219,518 to 219,518")


def test_a_finished_run_has_no_projection_and_a_bad_date_is_told() -> None:
    done = replace(RECORD, hero_lineage=segments({"summary_step": HERO.steps - 1, "state": "finished"}))
    pace = project_end(done, HERO, HERO.steps)
    assert pace is not None
    assert (pace.projections, pace.notes) == ((), ())
    stopped = project_end(replace(RECORD, hero_lineage=segments({"state": "crashed"})), HERO, HERO.steps)
    assert stopped is not None
    assert [note.partition(":")[0] for note in stopped.notes] == [
        "hero-fa4sm100-nomask-step146k is crashed, 170,732 steps before the planned end"
    ]
    odd = replace(RECORD, hero_lineage=segments({"launched": "some day in September"}))
    pace = project_end(odd, HERO, HERO.steps)
    assert pace is not None
    assert [one.pace for one in pace.projections][:2] == ["the whole run", "the latest W&B run as logged"]
    assert "'some day in September' is no date" in pace.notes[0]
    assert project_end(replace(RECORD, hero_lineage=()), HERO, HERO.steps) is None


@pytest.mark.parametrize("heartbeat", ["9999-12-31T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:00-05:00"])
def test_a_date_at_the_end_of_the_calendar_is_a_note(heartbeat: str) -> None:
    pace = project_end(replace(RECORD, hero_lineage=segments({"last_heartbeat": heartbeat})), HERO, HERO.steps)
    assert pace is not None
    assert all(one.kind == "without stops" for one in pace.projections)
    assert "beyond any date" in pace.notes[0] or "is no date that can be read" in pace.notes[0]
    pace.as_json()


def test_a_pace_or_a_plan_beyond_the_calendar_is_a_note() -> None:
    claims = [
        said("throughput.calendar_rate", 1.0, 1.0),
        said("run.planned_days", 10_000_000.0, 10_000_000.0, "10000000"),
        said("run.planned_end", None, None, "2026-12-01"),
    ]
    pace = project_end(RECORD, HERO, HERO.steps, claims)
    assert pace is not None
    assert "as claimed" not in [one.pace for one in pace.projections]
    assert [one.announced for one in pace.plans] == ["2026-12-01"]
    assert [note.split(":")[0] for note in pace.notes] == ["the pace of as claimed", "claim X-1"]


def test_a_pace_is_of_a_thousand_steps_or_more_and_of_a_rate_above_nothing() -> None:
    def paces(steps: int) -> list[str]:
        latest = segments({"summary_step": RECORD.hero_lineage[-1].start_step + steps - 1})
        pace = project_end(replace(RECORD, hero_lineage=latest), HERO, HERO.steps)
        assert pace is not None
        return [one.pace for one in pace.projections if one.kind == "calendar"]

    assert paces(1) == paces(999) == ["the whole run"]
    assert paces(1_000) == ["the whole run", "the latest W&B run"]
    still = tuple(replace(row, median=0.0) for row in RECORD.hero_windows)
    pace = project_end(replace(RECORD, hero_windows=still, hero_train=()), HERO, HERO.steps)
    assert pace is not None
    assert "the latest W&B run as logged" not in [one.pace for one in pace.projections]
