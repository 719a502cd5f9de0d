"""The published loss forecast: a power law at each mark of progress over the ladder's rungs, read off at the target.

    L(C) = E + A · C^-alpha                  L: loss, nats a token; C: FLOPs spent so far; E: asymptote, fixed by hand

At each mark g (5%, 10%, … of a run) the line ln(L - E) over ln C goes through the rungs by plain least squares, and the
target's loss at g is what the law gives at its own C. Between marks the forecast is linear in progress.

Comes in: a record, whose [forecast] holds the choices, and its points as `repro.ladder.curves` reads them. Goes out: a
`Fit`; `repro.ladder.sensitivity` asks how far it hangs on the choices.
Source of the procedure: plot_scaling_ladder.py of marin-community/marin@d23e6e9c. Sums are sequential and centred on
the mean, which gives all twenty published digits; numpy.polyfit differs by up to 2e-15 (measured).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from repro.errors import FitError, RecordError
from repro.ladder.curves import GRID, Curves, RungPoint, Tail, fit_line, read_curves
from repro.record.artifacts import Forecast
from repro.record.facts import Record
from repro.record.tables import HeroEvaluation


@dataclass(frozen=True, kw_only=True)
class Law:
    """The power law of one mark, and what it says of the target."""

    fraction: float  # of each run's planned steps
    rungs: Mapping[str, RungPoint]
    coefficient: float  # A
    alpha: float
    target_flops: float  # spent up to the mark
    prediction: float  # the target's loss, nats a token

    def loss_at(self, flops: float, asymptote: float) -> float:
        """The law's loss at a compute, nats a token."""
        return asymptote + self.coefficient * flops**-self.alpha


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One law a mark, in the order of progress. `notes` says what a reader should know of how the points came about."""

    forecast: Forecast  # the choices made: rungs, asymptote, compute, extrapolation
    points: tuple[Law, ...]
    tail: Tail | None
    notes: tuple[str, ...]

    @property
    def final(self) -> Law:
        """The law at 100%: the forecast proper."""
        return self.points[-1]

    @property
    def extrapolation_factor(self) -> float:
        """The target's compute over that of the largest rung fitted on."""
        return self.final.target_flops / max(point.flops for point in self.final.rungs.values())

    def predicted_at(self, step: int) -> float | None:
        """The target's loss at a zero-based log step, between marks linear in progress; None outside of all marks."""
        fraction = step / self.forecast.target_steps
        for left, right in pairwise(self.points):
            if left.fraction <= fraction <= right.fraction:
                share = (fraction - left.fraction) / (right.fraction - left.fraction)
                return left.prediction + share * (right.prediction - left.prediction)
        return None

    def as_json(self) -> dict[str, Any]:
        """The keys asymptote, procedure, points and final of the command line's `fit` object."""
        final = self.final
        return {
            "asymptote": self.forecast.asymptote,
            "procedure": self._procedure(),
            "points": [
                {
                    "fraction": law.fraction,
                    "rungs": {
                        name: {**point._asdict(), "status": "extrapolated" if point.step is None else "observed"}
                        for name, point in law.rungs.items()
                    },
                    "A": law.coefficient,
                    "alpha": law.alpha,
                    "target_flops": law.target_flops,
                    "prediction": law.prediction,
                }
                for law in self.points
            ],
            "final": {"prediction": final.prediction, "A": final.coefficient, "alpha": final.alpha},
        }

    def _procedure(self) -> dict[str, Any]:
        tail = self.tail
        return {
            "law": "loss = asymptote + A * flops^-alpha",
            "method": "least squares of ln(loss - asymptote) over ln(flops), unweighted, one law a mark of progress",
            "compute": self.forecast.compute,
            "fitted_on": list(self.forecast.fitted_on),
            "target": self.forecast.target,
            "target_steps": self.forecast.target_steps,
            "mark": self.forecast.mark,
            "between_marks": "linear in step / planned steps, steps zero-based",
            "extrapolated": {
                "rung": tail.rung,
                "window": list(tail.window),
                **tail.line._asdict(),
                "correction": tail.correction,
                "last_step": tail.last_step,
                "last_fraction": tail.last_fraction,
            }
            if tail
            else None,
            "extrapolation_factor": self.extrapolation_factor,
            "source": self.forecast.source,
            "notes": list(self.notes),
        }


class Comparison(NamedTuple):
    """A measured loss of the target beside the forecast at the same step; nats a token."""

    step: int
    fraction: float
    measured: float
    predicted: float
    residual: float  # measured - predicted


def fit_record(record: Record, forecast: Forecast | None = None) -> Fit:
    """Forecast the target's loss by the record's own procedure, or by another `forecast` on the same record.

    Raises FitError and RecordError as `read_curves` does, and FitError where no finite law goes through the points.
    """
    forecast = forecast or published_forecast(record)
    return fit_curves(read_curves(record, forecast), forecast)


def fit_curves(curves: Curves, forecast: Forecast) -> Fit:
    """One law a mark through the points. FitError where no finite law goes through them."""
    laws = tuple(
        _fit_law(*mark, asymptote=forecast.asymptote)
        for mark in zip(curves.fractions, curves.points, curves.target_flops, strict=True)
    )
    rises = tuple(
        f"The forecast rises from {left.fraction:.0%} to {right.fraction:.0%}: each mark is fitted by itself, so the "
        "noise of single evaluations enters it."
        for left, right in pairwise(laws)
        if right.prediction > left.prediction
    )
    return Fit(forecast=forecast, points=laws, tail=curves.tail, notes=curves.notes + rises)


def compare(fit: Fit, evaluations: Iterable[HeroEvaluation]) -> tuple[Comparison, ...]:
    """The target's evaluations without drops against the forecast; those before its first mark are left out."""
    result = []
    for evaluation in evaluations:
        predicted = fit.predicted_at(evaluation.step)
        if predicted is not None:
            measured, fraction = evaluation.dropless_macro_loss, evaluation.step / fit.forecast.target_steps
            result.append(Comparison(evaluation.step, fraction, measured, predicted, measured - predicted))
    return tuple(result)


def published_forecast(record: Record) -> Forecast:
    """The choices that the record's forecast was published with. RecordError where it has none."""
    if record.forecast is None:
        raise RecordError(
            f"record.toml of record {record.run.name} has no [forecast]: which rungs a law is fitted on, and which one "
            "it speaks of. Add it, or use a record that has it."
        )
    return record.forecast


def fit_power_law(flops: Sequence[float], losses: Sequence[float], asymptote: float) -> tuple[float, float]:
    """(A, alpha) of loss = asymptote + A · flops^-alpha. Losses must lie above the asymptote."""
    line = fit_line([math.log(c) for c in flops], [math.log(loss - asymptote) for loss in losses])
    return math.exp(line.intercept), -line.slope


def _fit_law(fraction: float, rungs: Mapping[str, RungPoint], target_flops: float, asymptote: float) -> Law:
    flops, losses = [point.flops for point in rungs.values()], [point.loss for point in rungs.values()]
    try:
        coefficient, alpha = fit_power_law(flops, losses, asymptote)
        prediction = asymptote + coefficient * target_flops**-alpha
    except (OverflowError, ZeroDivisionError) as error:
        raise FitError(
            f"{GRID}, {', '.join(rungs)} at {fraction:.0%}: no power law of finite size goes through these losses. "
            "Their compute is equal, or a loss lies within rounding of the asymptote."
        ) from error
    return Law(
        fraction=fraction,
        rungs=rungs,
        coefficient=coefficient,
        alpha=alpha,
        target_flops=target_flops,
        prediction=prediction,
    )
