"""The record's evaluations → each rung's loss and compute at each mark of progress: the points that laws go through.

A mark is a fraction of a run's planned steps, 5%, 10%, … 100%; an evaluation belongs to the mark nearest to its
zero-based step. A rung that stopped early is continued on the straight line through the marks of a window, plus a
correction that is the same at each mark. What cannot be on a loss curve is refused by rung and step.

Comes in: ladder_grid.csv, and the steps and FLOPs of `repro.ladder.recipe`. Goes out: `Curves`.
Source of the procedure: plot_scaling_ladder.py of marin-community/marin@d23e6e9c.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from repro.errors import FitError, RecordError
from repro.ladder.recipe import Recipe, resolve_recipe
from repro.ladder.rungs import RUNGS
from repro.record.artifacts import Extrapolation, Forecast
from repro.record.facts import Record
from repro.record.tables import GridPoint

GRID = "ladder_grid.csv"
MIN_RUNGS = 3  # two points lie on every power law


class Line(NamedTuple):
    """y = slope · x + intercept."""

    slope: float
    intercept: float


class RungPoint(NamedTuple):
    """A rung at a mark. `step` is the zero-based log step of the evaluation; None where the loss is extrapolated."""

    flops: float  # spent up to the mark
    loss: float  # nats a token
    step: int | None


@dataclass(frozen=True, kw_only=True)
class Tail:
    """How the rung that stopped early was continued: loss = line(fraction) + correction."""

    rung: str
    window: tuple[float, ...]  # fractions that the line goes through
    line: Line  # over fractions; nats a token
    correction: float
    last_step: int
    last_fraction: float

    def loss_at(self, fraction: float) -> float:
        """The loss that stands in for a measured one, nats a token."""
        return self.line.slope * fraction + self.line.intercept + self.correction


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Per mark, in the order of progress: the rungs' points and the target's compute."""

    fractions: tuple[float, ...]
    points: tuple[Mapping[str, RungPoint], ...]
    target_flops: tuple[float, ...]
    tail: Tail | None
    notes: tuple[str, ...]  # what a reader should know of how the points came about


def read_curves(record: Record, forecast: Forecast) -> Curves:
    """The points that `forecast` goes through.

    Raises FitError, naming rung and step, for fewer than three rungs, a loss that is not finite or not above the
    asymptote, one step with two values, a mark without a loss. Raises RecordError where the record has no grid, names a
    rung whose FLOPs are unknown, or has marks or a window that cannot be.
    """
    record.require(GRID)
    marks = _count_marks(forecast)
    _check_rungs(forecast, record.ladder_grid)
    notes: list[str] = []
    flops: dict[str, int] = {}
    observed: dict[str, dict[int, GridPoint]] = {}
    for rung in forecast.fitted_on:
        recipe = _recipe(record, rung)
        flops[rung] = recipe.steps * _flops_per_step(recipe, forecast)
        _check_points(rung, record.ladder_grid[rung], recipe.steps, forecast.asymptote)
        observed[rung] = _by_mark(rung, record.ladder_grid[rung], recipe.steps, marks, notes)
    tail = _tail(forecast.extrapolated, observed, marks, notes) if forecast.extrapolated else None
    target_flops = forecast.target_steps * _flops_per_step(_recipe(record, forecast.target), forecast)
    fractions = tuple(mark / marks for mark in range(1, marks + 1))
    return Curves(
        fractions=fractions,
        points=tuple(
            {
                rung: _point_at(mark, fraction, rung, curve, tail, flops[rung], forecast.asymptote)
                for rung, curve in observed.items()
            }
            for mark, fraction in enumerate(fractions, start=1)
        ),
        target_flops=tuple(target_flops * fraction for fraction in fractions),
        tail=tail,
        notes=tuple(notes),
    )


def _point_at(
    mark: int,
    fraction: float,
    rung: str,
    curve: Mapping[int, GridPoint],
    tail: Tail | None,
    flops: int,
    asymptote: float,
) -> RungPoint:
    """What the rung's curve has at the mark, else what its tail gives. `flops` are those of the whole run."""
    if mark in curve:
        return RungPoint(flops * fraction, curve[mark].loss, curve[mark].step)
    if tail and tail.rung == rung and fraction > tail.last_fraction:
        loss = tail.loss_at(fraction)
        if math.isfinite(loss) and loss > asymptote:
            return RungPoint(flops * fraction, loss, None)
        raise FitError(
            f"{rung} at {fraction:.0%}: {loss!r}, extrapolated from step {tail.last_step}, is not above the asymptote "
            f"{asymptote}. Choose a lower asymptote, or another window."
        )
    last = f"step {max(point.step for point in curve.values())}" if curve else "none"
    raise FitError(
        f"{GRID}, {rung}: no evaluation at {fraction:.0%} (the last is {last}). A law goes through all rungs at every "
        "mark: add it, name the rung under [forecast] extrapolated, or leave it out of fitted_on."
    )


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """Least squares in closed form, centred on the mean. ZeroDivisionError where all x are equal."""
    mean_x, mean_y = _sum(xs) / len(xs), _sum(ys) / len(ys)
    spread = _sum((x - mean_x) ** 2 for x in xs)
    slope = _sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return Line(slope, mean_y - slope * mean_x)


def _sum(values: Iterable[float]) -> float:
    """Sum from left to right. The builtin compensates for rounding from Python 3.12 on: other last digits."""
    total = 0.0
    for value in values:
        total += value
    return total


def _recipe(record: Record, rung: str) -> Recipe:
    """The published recipe of the shape that ladder_rungs.csv gives the rung, else of its name."""
    if record.run.recipe != "marin":
        raise RecordError(
            f"record {record.run.name}: FLOPs can be counted for Marin's recipe only. If this run follows it, say "
            'recipe = "marin" in record.toml, [run].'
        )
    row = next((row for row in record.ladder_rungs if row.rung == rung), None)
    if row is None and rung in RUNGS:
        return resolve_recipe(rung)
    for known in RUNGS.values() if row else ():
        shape = (known.model.hidden_dim, known.model.num_layers, known.batch_size, known.seq_len)
        if row and shape == (row.hidden_dim, row.num_layers, row.batch_size, row.seq_len):
            return resolve_recipe(known.name)
    raise RecordError(
        f"record {record.run.name}: the FLOPs of rung {rung!r} are unknown. Known by name, or by a shape in "
        f"ladder_rungs.csv, are {', '.join(RUNGS)}."
    )


def _flops_per_step(recipe: Recipe, forecast: Forecast) -> int:
    with_head = forecast.compute == "with_lm_head"
    return recipe.flops_per_step_with_lm_head if with_head else recipe.flops_per_step_without_lm_head


def _count_marks(forecast: Forecast) -> int:
    """Marks up to 100%."""
    marks = round(1 / forecast.mark) if 0.001 <= forecast.mark <= 1 else 0
    if not marks or not math.isclose(marks * forecast.mark, 1):
        raise RecordError(f"record.toml, [forecast], mark: {forecast.mark} does not divide 1 into 1 to 1000 parts.")
    return marks


def _check_rungs(forecast: Forecast, grid: Mapping[str, Sequence[GridPoint]]) -> None:
    rungs = forecast.fitted_on
    for rung in rungs:
        if not grid.get(rung):
            raise FitError(
                f"{GRID}: no evaluation of {rung}, which [forecast] fitted_on names. Add it, or leave it out."
            )
        if rungs.count(rung) > 1:
            raise FitError(f"record.toml, [forecast], fitted_on: {rung} stands twice.")
    if len(rungs) < MIN_RUNGS:
        raise FitError(
            f"{len(rungs)} rungs to fit on ({', '.join(rungs) or 'none'}); a power law needs at least {MIN_RUNGS}. "
            "Add rungs to [forecast] fitted_on and to the grid."
        )


def _check_points(rung: str, points: Sequence[GridPoint], steps: int, asymptote: float) -> None:
    """Refuse what cannot be on a loss curve, by rung and step."""
    seen: dict[int, float] = {}
    for step, loss in points:
        where = f"{GRID}, {rung}, step {step}"
        if not 0 <= step < steps:
            raise FitError(f"{where}: outside of the rung's {steps:,} steps, which count from 0.")
        if not math.isfinite(loss):
            raise FitError(f"{where}: the loss is {loss}. Remove the row, or put the measured value.")
        if loss <= asymptote:
            raise FitError(
                f"{where}: the loss {loss!r} is not above the asymptote {asymptote}, so no law can reach it. Choose a "
                "lower asymptote in [forecast], or mend the loss."
            )
        if seen.setdefault(step, loss) != loss:
            raise FitError(
                f"{where}: two losses, {seen[step]!r} and {loss!r}. Keep the one that was measured, or give the rows "
                "their own steps."
            )


def _by_mark(rung: str, points: Sequence[GridPoint], steps: int, marks: int, notes: list[str]) -> dict[int, GridPoint]:
    """Each mark's evaluation, the nearest mark to each step; where two lie on one mark, the later."""
    result: dict[int, GridPoint] = {}
    for point in sorted(set(points)):
        mark = round(point.step / steps * marks)
        if mark == 0:
            notes.append(f"{rung}: step {point.step:,} lies before the first mark and is left out.")
            continue
        if earlier := result.get(mark):
            notes.append(
                f"{rung}: steps {earlier.step:,} and {point.step:,} both lie at {mark / marks:.0%}; the later is used."
            )
        result[mark] = point
    return result


def _tail(
    rule: Extrapolation, observed: Mapping[str, Mapping[int, GridPoint]], marks: int, notes: list[str]
) -> Tail | None:
    """The line that continues the rung of the rule; None where the rung reached all marks, or is not fitted on."""
    curve = observed.get(rule.rung)
    if not curve or (last := max(curve)) == marks:
        return None
    window = range(round(rule.window[0] * marks), round(rule.window[1] * marks) + 1)
    if len(window) < 2:
        raise RecordError(f"record.toml, [forecast], extrapolated: the window {list(rule.window)} holds no two marks.")
    for mark in window:
        if mark not in curve:
            raise FitError(
                f"{GRID}, {rule.rung}: no evaluation at {mark / marks:.0%}, which the line that continues it goes "
                f"through; the last is step {curve[last].step}. Add it, or choose another window."
            )
    fractions = tuple(mark / marks for mark in window)
    notes.append(
        f"{rule.rung} stops at step {curve[last].step:,} ({last / marks:.0%}); from there on its losses are no "
        f"measurements but a line through {fractions[0]:.0%} to {fractions[-1]:.0%}, plus {rule.correction}."
    )
    return Tail(
        rung=rule.rung,
        window=fractions,
        line=fit_line(fractions, [curve[mark].loss for mark in window]),
        correction=rule.correction,
        last_step=curve[last].step,
        last_fraction=last / marks,
    )
