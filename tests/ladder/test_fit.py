"""The published forecast comes out of the record's grid; what cannot be fitted is refused by its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import FitError, MarinReproError, RecordError
from repro.ladder.curves import fit_line
from repro.ladder.fit import Fit, compare, fit_power_law, fit_record
from repro.record.facts import Record, load_record
from repro.record.tables import GridPoint

# 5%, 50% and 100% are known from plot_scaling_ladder.py @d23e6e9c; all twenty from an independent recomputation,
# fudan-chen/pretrain, method marin-matched-progress-v1.
PUBLISHED = (
    *(2.3920926134624465, 2.326142719206298, 2.2871922615777764, 2.257103613906551, 2.240172269155165),
    *(2.2234135463202236, 2.214206859614373, 2.185278389370321, 2.191844206222697, 2.1724370145487124),
    *(2.1490894748724516, 2.1351902223317514, 2.1237420861955094, 2.1104975751824333, 2.097122917287479),
    *(2.085164085402634, 2.077456203681624, 2.064301283523292, 2.050528692774071, 2.0387845986743045),
)
DIGITS = 1e-12  # relative, from the issue; on x86-64 Linux all digits agree

RECORD = load_record()
FORECAST = RECORD.forecast
assert FORECAST is not None


@pytest.fixture(scope="module")
def fit() -> Fit:
    return fit_record(RECORD)


def with_points(rung: str, change: Callable[[tuple[GridPoint, ...]], Sequence[GridPoint]]) -> Record:
    grid = {**RECORD.ladder_grid, rung: tuple(change(RECORD.ladder_grid[rung]))}
    return replace(RECORD, ladder_grid=grid)


def with_loss(rung: str, step: int, loss: float) -> Record:
    return with_points(rung, lambda points: [GridPoint(p.step, loss if p.step == step else p.loss) for p in points])


def refused(record: Record, kind: type[MarinReproError] = FitError) -> str:
    with pytest.raises(kind) as caught:
        fit_record(record)
    return str(caught.value)


def test_the_published_forecast_is_regenerated_at_every_mark(fit: Fit) -> None:
    assert [law.fraction for law in fit.points] == [round(0.05 * mark, 2) for mark in range(1, 21)]
    assert [law.prediction for law in fit.points] == pytest.approx(PUBLISHED, rel=DIGITS, abs=0)


def test_the_laws_themselves_are_the_published_ones(fit: Fit) -> None:
    """A and alpha from the same recomputation as PUBLISHED."""
    assert (fit.points[0].coefficient, fit.points[0].alpha) == pytest.approx(
        (67.55030055780408, 0.08129593842130106), rel=DIGITS
    )
    assert (fit.final.coefficient, fit.final.alpha) == pytest.approx(
        (84.78759324113472, 0.08997567660738809), rel=DIGITS
    )
    assert fit.final.target_flops == 2.6108941613772703e24  # issue 8435's fit: compute without the LM head
    assert fit.extrapolation_factor == pytest.approx(337.2457465116268, rel=DIGITS)


def test_the_rung_that_stopped_is_continued_from_its_last_fifth(fit: Fit) -> None:
    tail = fit.tail
    assert tail is not None
    assert (tail.rung, tail.last_step, tail.last_fraction) == ("d2048", 16_063, 0.8)
    assert tail.window == (0.6, 0.65, 0.7, 0.75, 0.8)
    assert tail.line == pytest.approx((-0.35082387924194336, 2.75453200340271), rel=DIGITS)
    steps = [law.rungs["d2048"].step for law in fit.points]
    assert steps[15:] == [16_063, None, None, None, None]
    assert fit.final.rungs["d2048"].loss == pytest.approx(2.4087081241607664, rel=DIGITS)


def test_the_measured_losses_lie_where_they_were_found_to_lie(fit: Fit) -> None:
    """Residuals of six of the run's evaluations, worked out elsewhere to five decimals."""
    residuals = {point.step: round(point.residual, 5) for point in compare(fit, RECORD.hero_evaluations)}
    known = {
        **{38_999: -0.05556, 56_999: -0.03781, 197_999: -0.00814},
        **{209_999: -0.02029, 212_999: -0.0135, 218_999: -0.00117},
    }
    assert {step: residuals[step] for step in known} == known


def test_evaluations_before_the_first_mark_have_no_forecast(fit: Fit) -> None:
    assert fit.predicted_at(19_512) is None  # 4.9999%
    assert fit.predicted_at(19_513) is not None
    assert fit.predicted_at(390_251) == fit.final.prediction
    assert fit.predicted_at(390_252) is None
    assert min(point.step for point in compare(fit, RECORD.hero_evaluations)) == 20_999


def test_of_two_steps_on_one_mark_the_later_wins_and_it_is_said(fit: Fit) -> None:
    assert fit.final.rungs["d1536"].step == 15_127
    assert "d1536: steps 15,119 and 15,127 both lie at 100%; the later is used." in fit.notes
    alone = fit_record(with_points("d1536", lambda points: [p for p in points if p.step != 15_119]))
    assert alone.points == fit.points
    assert not any("15,119" in note for note in alone.notes)
    earlier = fit_record(with_points("d1536", lambda points: [p for p in points if p.step != 15_127]))
    assert earlier.final.prediction != fit.final.prediction


def test_a_forecast_that_rises_is_said_to(fit: Fit) -> None:
    assert [note.split(":")[0] for note in fit.notes if "rises" in note] == ["The forecast rises from 40% to 45%"]


def test_the_order_of_rows_and_a_row_told_twice_change_nothing(fit: Fit) -> None:
    assert fit_record(with_points("d768", lambda points: [*reversed(points), points[3]])) == fit


def test_a_rung_is_known_by_its_shape_where_its_name_is_another(fit: Fit) -> None:
    new = {rung: f"run-{number}" for number, rung in enumerate((*RECORD.ladder_grid, "d6144"))}
    assert FORECAST is not None
    assert FORECAST.extrapolated is not None
    renamed = replace(
        RECORD,
        ladder_grid={new[rung]: points for rung, points in RECORD.ladder_grid.items()},
        ladder_rungs=tuple(replace(row, rung=new[row.rung]) for row in RECORD.ladder_rungs),
        forecast=replace(
            FORECAST,
            fitted_on=tuple(new[rung] for rung in FORECAST.fitted_on),
            target=new["d6144"],
            extrapolated=replace(FORECAST.extrapolated, rung=new["d2048"]),
        ),
    )
    assert [law.prediction for law in fit_record(renamed).points] == [law.prediction for law in fit.points]
    assert "the FLOPs of rung 'run-0' are unknown" in refused(replace(renamed, ladder_rungs=()), RecordError)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (with_loss("d1024", 3819, math.nan), "ladder_grid.csv, d1024, step 3819: the loss is nan"),
        (with_loss("d1024", 3819, math.inf), "ladder_grid.csv, d1024, step 3819: the loss is inf"),
        (with_loss("d768", 570, 1.5), "d768, step 570: the loss 1.5 is not above the asymptote 1.5"),
        (with_loss("d768", 570, -1.0), "d768, step 570: the loss -1.0 is not above the asymptote"),
        (
            with_points("d1536", lambda points: [*points, GridPoint(755, 3.2)]),
            "d1536, step 755: two losses, 3.1583311557769775 and 3.2",
        ),
        (
            with_points("d768", lambda points: [*points, GridPoint(11_420, 3.0)]),
            "d768, step 11420: outside of the rung's 11,420 steps",
        ),
        (with_points("d768", lambda points: [*points, GridPoint(-1, 9.0)]), "d768, step -1: outside"),
        (with_points("d768", lambda points: ()), "no evaluation of d768"),
        (with_points("d768", lambda points: points[:-1]), "d768: no evaluation at 100% (the last is step 10848)"),
        (with_points("d768", lambda points: [GridPoint(3, 9.0)]), "d768: no evaluation at 5% (the last is none)"),
        (
            with_points("d2048", lambda points: [p for p in points if p.step != 13_051]),
            "d2048: no evaluation at 65%, which the line that continues it goes through; the last is step 16063",
        ),
        (with_loss("d2048", 12_047, 4.9), "d2048 at 90%: "),  # a line so steep that it goes below the asymptote
    ],
)
def test_points_without_a_law_are_refused_by_rung_and_step(record: Record, words: str) -> None:
    message = refused(record)
    assert words in message, message


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"fitted_on": ("d768", "d1536")}, FitError, "2 rungs to fit on (d768, d1536); a power law needs at least 3"),
        ({"fitted_on": ()}, FitError, "0 rungs to fit on (none)"),
        ({"fitted_on": ("d768", "d1024", "d768")}, FitError, "fitted_on: d768 stands twice"),
        ({"fitted_on": ("d768", "d1024", "d1537")}, FitError, "no evaluation of d1537"),
        ({"extrapolated": None}, FitError, "d2048: no evaluation at 85% (the last is step 16063)"),
        ({"target": "d9000"}, RecordError, "the FLOPs of rung 'd9000' are unknown"),
        ({"mark": 0.03}, RecordError, "mark: 0.03 does not divide 1"),
        ({"mark": 0.0}, RecordError, "mark: 0.0 does not divide 1"),
        ({"mark": -0.05}, RecordError, "mark: -0.05"),
    ],
)
def test_choices_without_a_law_are_refused(changes: dict[str, object], kind: type[MarinReproError], words: str) -> None:
    assert FORECAST is not None
    message = refused(replace(RECORD, forecast=replace(FORECAST, **changes)), kind)
    assert words in message, message


def test_a_window_of_one_mark_is_no_line() -> None:
    assert FORECAST is not None
    assert FORECAST.extrapolated is not None
    rule = replace(FORECAST.extrapolated, window=(0.8, 0.8))
    assert "holds no two marks" in refused(replace(RECORD, forecast=replace(FORECAST, extrapolated=rule)), RecordError)


def test_a_record_without_a_forecast_or_a_grid_says_what_is_missing() -> None:
    assert "no [forecast]" in refused(replace(RECORD, forecast=None), RecordError)
    assert "has no ladder_grid.csv" in refused(replace(RECORD, files=()), RecordError)


def test_rungs_of_one_compute_have_no_law() -> None:
    assert FORECAST is not None
    row = next(row for row in RECORD.ladder_rungs if row.rung == "d768")
    same = replace(
        RECORD,
        ladder_grid={rung: RECORD.ladder_grid["d768"] for rung in "abc"},
        ladder_rungs=tuple(replace(row, rung=rung) for rung in "abc"),
        forecast=replace(FORECAST, fitted_on=("a", "b", "c"), extrapolated=None),
    )
    assert "a, b, c at 5%: no power law of finite size" in refused(same)


asymptotes = st.floats(0.5, 2.5)
alphas = st.floats(0.02, 0.5)
# FLOPs of three to six rungs, each at least a factor e^0.5 above the last
computes = st.lists(st.floats(0.5, 3), min_size=3, max_size=6).map(
    lambda gaps: [math.exp(43 + sum(gaps[:n])) for n in range(1, len(gaps) + 1)]
)


@given(asymptotes, alphas, st.floats(0.5, 3), computes)
def test_points_on_an_exact_law_give_it_back(asymptote: float, alpha: float, above: float, flops: list[float]) -> None:
    """`above`: the first point's distance from the asymptote. Losses round at 1e-16 of themselves, so logs at 1e-13."""
    coefficient = above * flops[0] ** alpha
    losses = [asymptote + coefficient * c**-alpha for c in flops]
    fitted = fit_power_law(flops, losses, asymptote)
    assert fitted[1] == pytest.approx(alpha, abs=1e-10)
    assert fitted[0] == pytest.approx(coefficient, rel=1e-8)


@given(computes, st.data(), st.floats(1e-6, 1e6))
def test_the_unit_of_compute_changes_no_prediction(flops: list[float], data: st.DataObject, unit: float) -> None:
    losses = [data.draw(st.floats(1.6, 4)) for _ in flops]
    target = 1e24

    def predicted(scale: float) -> float:
        coefficient, alpha = fit_power_law([c * scale for c in flops], losses, 1.5)
        return math.log(coefficient) - alpha * math.log(target * scale)

    assert predicted(unit) == pytest.approx(predicted(1), abs=1e-9)


@given(st.permutations(range(5)))
def test_a_line_does_not_depend_on_the_order_of_its_points(order: list[int]) -> None:
    xs, ys = (0.0, 1.0, 2.5, 4.0, 7.0), (1.0, -2.0, 0.25, 3.0, 8.0)
    line = fit_line([xs[i] for i in order], [ys[i] for i in order])
    assert line == pytest.approx(fit_line(xs, ys), rel=1e-12)
