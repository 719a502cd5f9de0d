"""How well points determine a law: profile likelihood of each coefficient, and what in the design forbids an answer.

A residual's density is taken to be that whose logarithm the objective sums, exp(-rho(r) / s) / Z(s) with its scale s
free: normal for half squares, and for Huber normal up to delta and exponential beyond. The log likelihood is then a
function of the objective's minimum alone. A coefficient is held at a value, the others are fitted anew, and the
interval ends where twice the loss of log likelihood exceeds n · ln(1 + F / (n - P)), F the 95% quantile of F(1, n - P):
exact for least squares of a line, where it is Student's interval; 3.84 for many points.

Comes in: a `Problem` and its optimum. Goes out: intervals, and an `Identification` in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import stdtrit

from repro.ladder.forms import LARGEST_LOG, Form, Problem
from repro.ladder.points import Points
from repro.ladder.search import Optimum, descend

DOUBLINGS = 10  # of the step outwards before an interval counts as open: a thousand times the width expected
PRECISION = 1e-3  # of the step expected, for an interval's end
ENOUGH = 1e-9  # of the objective may be left to gain at a point of the profile
COLLINEAR = 0.995  # correlation of logarithms at which a variance is inflated a hundredfold, 1 / (1 - r²)
DISTINCT = 3  # values of a column that tell factor, exponent and asymptote apart
WIDE = 2.0  # ends of an exponent's interval, as a ratio, beyond which it is called weakly identified
SINGULAR = 1e6  # condition number beyond which float64 sees the derivatives as dependent, squared 1e12

Verdict = Literal["identified", "weakly identified", "not identified"]


class Interval(NamedTuple):
    """95% of one coefficient, in its own units; None where it does not close on that side."""

    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Identification:
    """Do the points say what the coefficients are? `reasons` says why not, in words."""

    verdict: Verdict
    reasons: tuple[str, ...]
    condition_number: float  # of the derivatives by centred parameters, columns of unit length; inf where singular
    correlation: float | None  # of the logarithms of two columns


def log_likelihood(problem: Problem, value: float) -> float:
    """Log likelihood of residuals whose objective is `value`, at the scale that makes it largest."""
    points, delta, value = problem.total, problem.delta, max(value, problem.rounding)
    if math.isinf(delta):
        return -points / 2 * (math.log(4 * math.pi * value / points) + 1)

    def missing(log_scale: float) -> float:
        scale = math.exp(log_scale)
        bound = delta / math.sqrt(2 * scale)
        middle = math.sqrt(2 * math.pi * scale) * math.erf(bound)
        return points * math.log(middle + 2 * scale / delta * math.exp(-bound * bound)) + value / scale

    middle = math.log(value / points)  # of an exponential's scale; a normal's is twice that
    found = minimize_scalar(missing, bounds=(middle - 3, middle + 3), method="bounded", options={"xatol": 1e-10})
    return -float(found.fun)


def profile(problem: Problem, best: Optimum, form: Form) -> tuple[dict[str, Interval], Optimum]:
    """95% intervals of all coefficients, and the best optimum seen, which is `best` unless the search had missed it."""
    names = form.parameters(free_asymptote=problem.free_asymptote)
    drop = problem.total * math.log1p(_f_quantile(problem) / (problem.total - problem.parameters))
    top, seen, intervals = log_likelihood(problem, best.value), best, {}
    for index, name in enumerate(names):
        ends: list[float | None] = []
        for sign in (-1, 1):
            end, lowest = _end(problem, best, index, sign * _expected_step(problem, best, index, drop), top, drop)
            seen = min(seen, lowest, key=lambda one: one.value)
            ends.append(None if end is None else end if name in form.exponents else math.exp(end))
        intervals[name] = Interval(*ends)
    better = seen.value < best.value * (1 - 1e-9) - problem.rounding
    return intervals, seen if better else best


def identify(points: Points, form: Form, problem: Problem, theta: np.ndarray) -> Identification:
    """What the design alone says: too few values of a column, columns that move together, dependent derivatives."""
    reasons = []
    needed = DISTINCT if problem.free_asymptote else DISTINCT - 1
    for column, exponent in zip(form.columns, form.exponents, strict=True):
        values = len(set(points.columns[column]))
        if values < needed:
            reasons.append(
                f"{column} takes {values} {'value' if values == 1 else 'values'}: {exponent} cannot be told from its "
                f"factor{' and E' if problem.free_asymptote else ''} by fewer than {needed}."
            )
    correlation = _correlation(problem.logs)
    if correlation is not None and abs(correlation) > COLLINEAR:
        one, other = form.columns
        reasons.append(
            f"{one} and {other} move together (their logarithms correlate by {correlation:.4f}): the points cannot "
            f"tell which of the two the loss follows. Add points of one {one} and several {other}."
        )
    condition = _condition(problem, theta)
    if condition > SINGULAR:
        reasons.append(f"The law's derivatives depend on each other (condition number {condition:.2g}).")
    return Identification(
        verdict="not identified" if reasons else "identified",
        reasons=tuple(reasons),
        condition_number=condition,
        correlation=correlation,
    )


def judge(design: Identification, intervals: Mapping[str, Interval], form: Form) -> Identification:
    """The design's verdict, and what the intervals add to it."""
    reasons = []
    for name, (low, high) in intervals.items():
        if low is None or high is None:
            side = "on either side" if low is high else "below" if low is None else "above"
            reasons.append(f"The 95% interval of {name} does not close {side}.")
        elif name in form.exponents and not 0 < high <= WIDE * low:
            reasons.append(f"{name} is known only to {low:.3f} to {high:.3f} (95%).")
    verdict: Verdict = "weakly identified" if reasons and design.verdict == "identified" else design.verdict
    return Identification(
        verdict=verdict,
        reasons=(*design.reasons, *reasons),
        condition_number=design.condition_number,
        correlation=design.correlation,
    )


def _end(
    problem: Problem, best: Optimum, index: int, step: float, top: float, drop: float
) -> tuple[float | None, Optimum]:
    """Where the profile of theta[index] leaves the interval in the direction of `step`; and the lowest point seen."""
    visited = [best]

    def beyond(offset: float) -> float:
        """Signed roots, which are nearly straight in the offset; above zero outside of the interval."""
        near = min(visited, key=lambda one: abs(one.theta[index] - best.theta[index] - offset))
        start = near.theta.copy()
        start[index] = best.theta[index] + offset
        visited.append(descend(problem, start, fixed=(index,), enough=ENOUGH))
        fall = 2 * (top - log_likelihood(problem, visited[-1].value))
        return math.sqrt(max(fall, 0.0)) - math.sqrt(drop)

    inside, outside = 0.0, step
    for _ in range(DOUBLINGS):
        if abs(best.theta[index] + outside) > LARGEST_LOG:
            return None, min(visited, key=lambda one: one.value)
        if beyond(outside) > 0:
            break
        inside, outside = outside, 2 * outside
    else:
        return None, min(visited, key=lambda one: one.value)
    end = _crossing(beyond, inside, outside, PRECISION * abs(step))
    return float(best.theta[index] + end), min(visited, key=lambda one: one.value)


def _crossing(beyond: Callable[[float], float], inside: float, outside: float, precision: float) -> float:
    """Where `beyond` rises through zero. At 0 it is known to lie inside, however the rounding falls."""
    low, high = (beyond(inside) if inside else -1.0), beyond(outside)
    if low >= 0 or high <= 0:  # the second visit, from a nearer start, found the profile lower or higher
        return inside if low >= 0 else outside
    return float(brentq(lambda offset: beyond(offset) if offset else -1.0, inside, outside, xtol=precision))


def _expected_step(problem: Problem, best: Optimum, index: int, drop: float) -> float:
    """Where the interval ends if the objective is the quadratic that its curvature says."""
    curvature = problem.curvature(best.theta)
    size = np.sqrt(np.maximum(curvature.diagonal(), np.finfo(float).tiny))
    inverse = np.linalg.pinv(curvature / np.outer(size, size), rcond=1e-13, hermitian=True) / np.outer(size, size)
    rise = max(best.value, problem.rounding) * math.expm1(drop / problem.total)
    return float(np.clip(math.sqrt(2 * rise * max(inverse[index, index], 0.0)), 1e-12, 100.0))


def _f_quantile(problem: Problem) -> float:
    return float(stdtrit(problem.total - problem.parameters, 0.975)) ** 2


def _correlation(logs: np.ndarray) -> float | None:
    """Of two columns' logarithms; None for one column, or where a column does not vary."""
    if logs.shape[1] != 2 or (logs == logs[0]).all(axis=0).any():
        return None
    return float(np.corrcoef(logs.T)[0, 1])


def _condition(problem: Problem, theta: np.ndarray) -> float:
    """Condition number of the derivatives [n, P] by factors at the points' middle, each column of length one."""
    jacobian, terms = problem.jacobian(theta), problem.logs.shape[1]
    jacobian[:, -terms:] += jacobian[:, -2 * terms : -terms] * problem.logs.mean(axis=0)
    lengths = np.linalg.norm(jacobian, axis=0)
    if not lengths.all():
        return math.inf
    values = np.linalg.svd(jacobian / lengths, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf
