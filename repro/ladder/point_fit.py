"""A law fitted to one's own points, how sure it is, and what it forecasts.

    fit            least sum of residuals from a grid of starts, with what its gradient has left (`repro.ladder.search`)
    bootstrap      points drawn anew with replacement, each draw fitted from the best fit: covariance, 95% intervals
    profile        95% intervals by likelihood, and whether they close (`repro.ladder.profile`)
    held out       the points of the largest compute are left out, and forecast by what is left
    asymptotes     where it is fixed: others, and the free one

Comes in: `Points` and a `Form`. Goes out: a `PointFit`, whose `as_json` is what `fit --points --json` prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from repro.errors import FitError
from repro.ladder.fit import fit_power_law
from repro.ladder.forms import FORMS, Form, Problem, make_problem
from repro.ladder.points import Points
from repro.ladder.profile import DISTINCT, Identification, Interval, identify, judge, log_likelihood, profile
from repro.ladder.search import Optimum, Search, descend, one_thread, search

SEED = 20  # any other does
DRAWS = 1000  # the ends of a 95% interval are then the 25th and 976th draw
ATTEMPTS = 20  # draws made for one kept, before a bootstrap is given up
HELD_OUT = (0.0, 0.1, 0.25, 0.5)  # shares of the points, largest compute first; at least one point
ASYMPTOTE_STEPS = (-0.2, -0.1, 0.1, 0.2)  # of the loss, from a fixed one; as `repro.ladder.sensitivity` tries them
ENOUGH = 1e-9  # of a draw's objective may be left to gain


class Prediction(NamedTuple):
    """The law at a place."""

    place: Mapping[str, float]  # by column
    loss: float
    standard_error: float | None  # of the law there, by bootstrap; without the noise of a measurement
    interval_95: tuple[float, float] | None
    extrapolation_factor: float  # its compute over the largest among the points


class HeldOut(NamedTuple):
    """The points of the largest compute, forecast from the others."""

    points: int
    extrapolation_factor: float  # their largest compute over the largest that was kept
    mean_error: float  # measured - forecast
    rms_error: float
    coefficients: Mapping[str, float]


class Asymptote(NamedTuple):
    """The fit with another asymptote, fixed or free."""

    asymptote: float
    free: bool
    coefficients: Mapping[str, float]
    predictions: tuple[float, ...]  # at the places asked for


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What the bootstrap gave. Covariance of theta, as `parameters` names it, over the draws."""

    seed: int
    draws: int
    drawn_again: int  # draws that had too few different points for the law
    unconverged: int
    parameters: tuple[str, ...]
    covariance: np.ndarray  # [P, P]
    standard_errors: Mapping[str, float]  # of the coefficients
    intervals_95: Mapping[str, tuple[float, float]]
    coefficients: tuple[Mapping[str, float], ...]  # of each draw


@dataclass(frozen=True, kw_only=True)
class PointFit:
    """A law through points. `coefficients` name E, A, alpha and so on, E also where it was fixed."""

    points: Points
    form: Form
    asymptote: float | None  # fixed; None where it was found
    coefficients: Mapping[str, float]
    search: Search
    log_likelihood: float
    residual_rms: float  # measured - law, in the loss's unit
    identification: Identification
    profile: Mapping[str, Interval]
    bootstrap: Draws | None
    held_out: tuple[HeldOut, ...]
    asymptotes: tuple[Asymptote, ...]
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """What `fit --points --json` prints; the part up to `predictions` is what a frozen forecast keeps."""
        best, seen = self.search.best, self.identification
        return {
            "form": self.form.name,
            "formula": self.form.formula,
            "data": {
                "name": self.points.name,
                "sha256": self.points.sha256,
                "points": len(self.points),
                "columns": [*self.points.columns, "loss"],
                "largest": {column: max(values) for column, values in self.points.columns.items()},
            },
            "asymptote": {"fixed": self.asymptote is not None, "value": self.coefficients["E"]},
            "coefficients": dict(self.coefficients),
            "log_coefficients": {name: _log(self.coefficients[name]) for name in ("E", *self.form.factors)},
            "compute_optimal": _compute_optimal(self.form, self.coefficients),
            "residual_rms": self.residual_rms,
            "identification": {
                "verdict": seen.verdict,
                "reasons": list(seen.reasons),
                "condition_number": seen.condition_number if math.isfinite(seen.condition_number) else None,
                "correlation_of_logarithms": seen.correlation,
            },
            "method": {
                "objective": "sum of half squares of ln(loss - E) about the law"
                if self.asymptote is not None
                else f"sum of Huber losses of ln(loss) about the law, delta {make_delta(self.asymptote)}",
                "value": best.value,
                "gradient": best.gradient,
                "left_to_gain": best.left,
                "converged": best.converged,
                "starts": self.search.starts,
                "starts_converged": self.search.converged,
                "starts_at_best": self.search.reached,
                "worst_start": self.search.worst,
                "log_likelihood": self.log_likelihood,
            },
            "profile_95": {name: list(interval) for name, interval in self.profile.items()},
            "bootstrap": self._bootstrap() if self.bootstrap else None,
            "leave_largest_out": [{**row._asdict(), "coefficients": dict(row.coefficients)} for row in self.held_out],
            "asymptotes": [
                {**row._asdict(), "coefficients": dict(row.coefficients), "predictions": list(row.predictions)}
                for row in self.asymptotes
            ],
            "predictions": [
                {
                    **row.place,
                    "loss": row.loss,
                    "standard_error": row.standard_error,
                    "interval_95": list(row.interval_95) if row.interval_95 else None,
                    "extrapolation_factor": row.extrapolation_factor,
                }
                for row in self.predictions
            ],
            "notes": list(self.notes),
        }

    def _bootstrap(self) -> dict[str, Any]:
        draws = self.bootstrap
        assert draws is not None
        return {
            "kind": "pairs",
            "seed": draws.seed,
            "draws": draws.draws,
            "drawn_again": draws.drawn_again,
            "unconverged": draws.unconverged,
            "standard_errors": dict(draws.standard_errors),
            "intervals_95": {name: list(ends) for name, ends in draws.intervals_95.items()},
            "covariance": {"of": list(draws.parameters), "matrix": draws.covariance.tolist()},
        }


def fit_points(
    points: Points,
    form: Form,
    *,
    asymptote: float | None = None,
    places: Sequence[Mapping[str, float]] = (),
    seed: int = SEED,
    draws: int = DRAWS,
) -> PointFit:
    """Fit the form to the points and forecast the places.

    Raises FitError where there are too few points or no finite law goes through them, UsageError for an asymptote that
    the form does not take.
    """
    with one_thread():
        return _fit(points, form, asymptote, places, seed, draws)
