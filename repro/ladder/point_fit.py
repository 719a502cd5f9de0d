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
from repro.ladder.forms import HUBER_DELTA, Form, Problem, coefficients_of, make_problem
from repro.ladder.points import Points
from repro.ladder.profile import Identification, Interval, identify, judge, log_likelihood, profile
from repro.ladder.resampling import DRAWS, SEED, Draws, HeldOut, bootstrap, hold_out
from repro.ladder.search import Search, descend, one_thread, search

ASYMPTOTE_STEPS = (-0.2, -0.1, 0.1, 0.2)  # of the loss, from a fixed one; as `repro.ladder.sensitivity` tries them
PROFILE_NOTE = (  # sqrt(pi / 2): what the median of normal noise is less sure than its exponential likelihood says
    "The profile takes the noise for exponential beyond Huber's delta; normal noise makes its intervals 1.25 times too "
    "narrow. The bootstrap assumes no distribution."
)
NOTHING_SAID = "Of a law that is not identified, neither profile nor bootstrap nor points held out say anything."


class Prediction(NamedTuple):
    """The law at a place."""

    place: Mapping[str, float]  # by column
    loss: float
    standard_error: float | None  # of the law there, by bootstrap; without the noise of a measurement
    interval_95: tuple[float, float] | None
    extrapolation_factor: float  # its compute over the largest among the points


class Asymptote(NamedTuple):
    """The fit with another asymptote, fixed or free."""

    asymptote: float
    free: bool
    coefficients: Mapping[str, float]
    predictions: tuple[float, ...]  # at the places asked for


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
    profile: Mapping[str, Interval]  # empty where the points do not identify the law
    bootstrap: Draws | None
    held_out: tuple[HeldOut, ...]
    asymptotes: tuple[Asymptote, ...]
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """What `fit --points --json` prints, and a frozen forecast keeps."""
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
            "log_coefficients": {
                name: math.log(self.coefficients[name]) for name in ("E", *self.form.factors) if self.coefficients[name]
            },
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
                else f"sum of Huber losses of ln(loss) about the law, delta {HUBER_DELTA}",
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
            "bootstrap": self.bootstrap.as_json() if self.bootstrap else None,
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


def predict(form: Form, coefficients: Mapping[str, float], place: Mapping[str, float]) -> float:
    """The law at a place. FitError where it is no finite number."""
    try:
        loss = form.loss_at(coefficients, place)
    except OverflowError:
        loss = math.inf
    if not math.isfinite(loss):
        where = ", ".join(f"{column} {value:g}" for column, value in place.items())
        raise FitError(f"the law has no finite loss at {where}; give a place nearer to the points.")
    return loss


def _fit(
    points: Points,
    form: Form,
    asymptote: float | None,
    places: Sequence[Mapping[str, float]],
    seed: int,
    draws: int,
) -> PointFit:
    problem = make_problem(points, form, asymptote)
    found = _search(points, form, problem, asymptote)
    design = identify(points, form, problem, found.best.theta)
    intervals: dict[str, Interval] = {}
    drawn: Draws | None = None
    held_out: tuple[HeldOut, ...] = ()
    notes = [NOTHING_SAID]
    if design.verdict != "not identified":  # else the minimum is a valley without ends
        intervals, best = profile(problem, found.best, form)
        if best is not found.best:  # the profile came upon a lower minimum than any start had
            found = replace(found, best=descend(problem, best.theta, enough=0.0), reached=0)
            intervals, _ = profile(problem, found.best, form)
        drawn, why_not = bootstrap(problem, form, found.best.theta, asymptote, seed=seed, draws=draws)
        held_out = hold_out(points, form, problem, found.best.theta, asymptote)
        notes = [PROFILE_NOTE] if asymptote is None else []
        notes += [] if drawn else [f"No bootstrap: {why_not}."]
        notes += [] if held_out else ["No points are held out: too few would be left for the law."]
    coefficients = coefficients_of(form, found.best.theta, asymptote)
    fitted = [form.loss_at(coefficients, place) for place in points.places()]
    return PointFit(
        points=points,
        form=form,
        asymptote=asymptote,
        coefficients=coefficients,
        search=found,
        log_likelihood=log_likelihood(problem, found.best.value),
        residual_rms=math.sqrt(sum((a - b) ** 2 for a, b in zip(points.losses, fitted, strict=True)) / len(points)),
        identification=judge(design, intervals, form),
        profile=intervals,
        bootstrap=drawn,
        held_out=held_out,
        asymptotes=_asymptotes(points, form, asymptote, places) if asymptote is not None else (),
        predictions=tuple(_predict(points, form, coefficients, place, drawn) for place in places),
        notes=(*points.notes, *_doubts(form, found, coefficients), *notes),
    )


def _search(points: Points, form: Form, problem: Problem, asymptote: float | None) -> Search:
    """From the grid; a line through logarithms is solved in closed form, as `repro.ladder.fit` does."""
    if asymptote is None:
        return search(problem)
    (column,) = form.columns
    try:
        factor, exponent = fit_power_law(points.columns[column], points.losses, asymptote)
        theta = np.array([math.log(factor), exponent])
    except (OverflowError, ZeroDivisionError, ValueError) as error:
        raise FitError(
            f"{points.name}: no power law of finite size goes through these losses. Their compute is equal, or a loss "
            f"lies within rounding of the asymptote {asymptote}."
        ) from error
    best = descend(problem, theta)
    return Search(best=best, starts=1, reached=1, converged=int(best.converged), worst=best.value)


def _predict(
    points: Points, form: Form, coefficients: Mapping[str, float], place: Mapping[str, float], drawn: Draws | None
) -> Prediction:
    error, interval = None, None
    if drawn:
        losses = np.array([predict(form, one, place) for one in drawn.coefficients])
        low, high = np.percentile(losses, [2.5, 97.5]).tolist()
        error, interval = float(losses.std(ddof=1)), (low, high)
    largest = max(form.flops_at(one) for one in points.places())
    return Prediction(place, predict(form, coefficients, place), error, interval, form.flops_at(place) / largest)


def _asymptotes(
    points: Points, form: Form, asymptote: float, places: Sequence[Mapping[str, float]]
) -> tuple[Asymptote, ...]:
    """The same points with other asymptotes below every loss, and with the one that they choose."""
    others: list[float | None] = [round(asymptote + step, 10) for step in ASYMPTOTE_STEPS]
    rows = []
    for other in [*others, None]:
        if other is not None and not 0 <= other < min(points.losses):
            continue
        if other is None and len(points) <= len(form.parameters(free_asymptote=True)):
            continue
        problem = make_problem(points, form, other)
        found = coefficients_of(form, _search(points, form, problem, other).best.theta, other)
        predictions = tuple(predict(form, found, place) for place in places)
        rows.append(Asymptote(found["E"], other is None, found, predictions))
    return tuple(rows)


def _compute_optimal(form: Form, coefficients: Mapping[str, float]) -> dict[str, float] | None:
    """Exponents of compute, 6 · params · tokens, with which a form of two columns is least: Hoffmann et al., eq. 4."""
    if form.columns != ("params", "tokens"):
        return None
    total = coefficients["alpha"] + coefficients["beta"]
    return {"params_exponent": coefficients["beta"] / total, "tokens_exponent": coefficients["alpha"] / total}


def _doubts(form: Form, found: Search, coefficients: Mapping[str, float]) -> list[str]:
    """What is odd about the best fit itself."""
    notes = []
    if not found.best.converged:
        notes.append(
            f"The best fit did not converge: {found.best.left / found.best.value:.1e} of the objective may be left to "
            "gain. Its coefficients are no minimum."
        )
    if found.reached < 2 and found.starts > 1:
        notes.append(f"{found.reached} of {found.starts} starts ended at the best fit: another may lie lower still.")
    notes += [
        f"{exponent} is not above zero: the loss does not fall as {column} grows."
        for column, exponent in zip(form.columns, form.exponents, strict=True)
        if coefficients[exponent] <= 0
    ]
    return notes
