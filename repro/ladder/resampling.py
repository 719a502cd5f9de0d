"""A fit repeated on other points: drawn anew from its own, and without the largest of them.

    bootstrap    as many points as there are, drawn with replacement; a draw that has too few different ones for the law
                 is drawn again, and counted
    held out     the points of the largest compute left out, and forecast by the fit of the others

Each is fitted from the best fit of all points: a draw's minimum lies near it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from repro.ladder.forms import Form, Problem, coefficients_of
from repro.ladder.points import Points
from repro.ladder.profile import DISTINCT
from repro.ladder.search import descend, search

SEED = 20  # any other does
DRAWS = 1000  # the ends of a 95% interval are then the 25th draw from either side
ATTEMPTS = 20  # draws made for one kept, before a bootstrap is given up
POINTS_A_PARAMETER = 2  # a draw holds 1 - 1/e of the points: of twice as many as parameters, more than there are
HELD_OUT = (0.0, 0.1, 0.25, 0.5)  # shares of the points, rounded up; at least one
ENOUGH = 1e-9  # of a draw's objective may be left to gain


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

    def as_json(self) -> dict[str, Any]:
        """All but the draws themselves."""
        return {
            "kind": "pairs",
            "seed": self.seed,
            "draws": self.draws,
            "drawn_again": self.drawn_again,
            "unconverged": self.unconverged,
            "standard_errors": dict(self.standard_errors),
            "intervals_95": {name: list(ends) for name, ends in self.intervals_95.items()},
            "covariance": {"of": list(self.parameters), "matrix": self.covariance.tolist()},
        }


class HeldOut(NamedTuple):
    """The points of the largest compute, forecast from the others."""

    points: int
    extrapolation_factor: float  # their largest compute over the largest that was kept
    mean_error: float  # measured - forecast
    rms_error: float
    coefficients: Mapping[str, float]


def bootstrap(
    problem: Problem, form: Form, theta: np.ndarray, asymptote: float | None, *, seed: int = SEED, draws: int = DRAWS
) -> tuple[Draws | None, str]:
    """Fit `draws` draws of the points; else None, and why not in words."""
    points, names = len(problem.target), form.parameters(free_asymptote=problem.free_asymptote)
    if points < POINTS_A_PARAMETER * len(names):
        least = POINTS_A_PARAMETER * len(names)
        return None, f"{points} points are too few to draw {len(names)} coefficients from; it takes {least}"
    random, unconverged, again = np.random.default_rng(seed), 0, 0
    thetas: list[np.ndarray] = []
    while len(thetas) < draws:
        counts = np.bincount(random.integers(points, size=points), minlength=points).astype(float)
        if not _enough(problem.logs[counts > 0], problem):
            again += 1
            if again > ATTEMPTS * draws:
                return None, f"of {again} draws hardly one had enough different points for the law"
            continue
        found = descend(replace(problem, counts=counts), theta, enough=ENOUGH)
        unconverged += not found.converged
        thetas.append(found.theta)
    drawn = np.array(thetas)  # [draw, P]
    coefficients = tuple(coefficients_of(form, one, asymptote) for one in thetas)
    values = {name: np.array([one[name] for one in coefficients]) for name in names}
    ends = {name: np.percentile(each, [2.5, 97.5]).tolist() for name, each in values.items()}
    return Draws(
        seed=seed,
        draws=draws,
        drawn_again=again,
        unconverged=unconverged,
        parameters=tuple(name if name in form.exponents else f"ln {name}" for name in names),
        covariance=np.cov(drawn.T),
        standard_errors={name: float(each.std(ddof=1)) for name, each in values.items()},
        intervals_95={name: (low, high) for name, (low, high) in ends.items()},
        coefficients=coefficients,
    ), ""


def hold_out(
    points: Points, form: Form, problem: Problem, theta: np.ndarray, asymptote: float | None
) -> tuple[HeldOut, ...]:
    """One row a share that leaves enough for the law; points of equal compute go together."""
    flops = np.array([form.flops_at(place) for place in points.places()])
    losses, rows = np.array(points.losses), []
    order = np.sort(flops)[::-1]
    for cut in sorted({order[max(1, math.ceil(share * len(flops))) - 1] for share in HELD_OUT}, reverse=True):
        out = flops >= cut
        if not _enough(problem.logs[~out], problem):
            continue
        rest = replace(problem, logs=problem.logs[~out], target=problem.target[~out], counts=problem.counts[~out])
        found = descend(rest, theta)
        if not found.converged:
            found = search(rest).best
        coefficients = coefficients_of(form, found.theta, asymptote)
        forecast = [form.loss_at(coefficients, place) for place, gone in zip(points.places(), out, strict=True) if gone]
        errors = losses[out] - forecast
        rows.append(
            HeldOut(
                points=int(out.sum()),
                extrapolation_factor=float(flops.max() / flops[~out].max()),
                mean_error=float(errors.mean()),
                rms_error=float(np.sqrt(np.mean(errors**2))),
                coefficients=coefficients,
            )
        )
    return tuple(rows)


def _enough(logs: np.ndarray, problem: Problem) -> bool:
    """More different points than coefficients, and in each column the values that tell them apart."""
    needed = DISTINCT if problem.free_asymptote else DISTINCT - 1
    return len(np.unique(logs, axis=0)) > problem.parameters and all(
        len(np.unique(column)) >= needed for column in logs.T
    )
