"""The laws that points can be fitted with, one row a form, and the sum of residuals that a fit makes small.

    power        L = E + A · flops^-alpha                            E free, or fixed by hand
    chinchilla   L = E + A · params^-alpha + B · tokens^-beta        Hoffmann et al. 2022, arXiv 2203.15556, approach 3

What is summed over the points (never averaged: a mean of values of 1e-5 lies under the thresholds at which optimisers
stop, which is how the published coefficients came out short of the minimum; Besiroglu et al. 2024, arXiv 2404.10102):

    E free     Huber, delta 1e-3, of ln(measured) - ln(law)
    E fixed    half squares of ln(measured - E) - ln(law - E), the procedure of `repro.ladder.fit`

Parameters theta [P], in this order: ln E where it is free, the logarithms of A (and B), alpha (and beta).
Letters: n points, K terms (columns), P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from repro.errors import FitError, UsageError
from repro.ladder.points import EXAMPLES, Points

LARGEST_LOG = 700.0  # exp of more overflows
HUBER_DELTA = 1e-3  # arXiv 2203.15556, approach 3
FLOPS_PER_PARAMETER_AND_TOKEN = 6  # the usual count of a dense model; only orders points and says how far a law is led


@dataclass(frozen=True, kw_only=True)
class Form:
    """A law: the columns it needs, and what its coefficients are called, term by term."""

    name: str
    formula: str
    columns: tuple[str, ...]  # [K]
    factors: tuple[str, ...]  # [K]
    exponents: tuple[str, ...]  # [K]

    def parameters(self, *, free_asymptote: bool) -> tuple[str, ...]:
        """Names of theta's entries as coefficients, E first where it is free."""
        return (("E",) if free_asymptote else ()) + self.factors + self.exponents

    def loss_at(self, coefficients: Mapping[str, float], place: Mapping[str, float]) -> float:
        """The law's loss at a place, by the names of coefficients and columns."""
        return coefficients["E"] + sum(
            coefficients[factor] * place[column] ** -coefficients[exponent]
            for factor, column, exponent in zip(self.factors, self.columns, self.exponents, strict=True)
        )

    def flops_at(self, place: Mapping[str, float]) -> float:
        """Compute of a place: its own, or 6 · params · tokens."""
        return place["flops"] if "flops" in place else FLOPS_PER_PARAMETER_AND_TOKEN * place["params"] * place["tokens"]


FORMS = {
    form.name: form
    for form in (
        Form(
            name="power",
            formula="loss = E + A * flops^-alpha",
            columns=("flops",),
            factors=("A",),
            exponents=("alpha",),
        ),
        Form(
            name="chinchilla",
            formula="loss = E + A * params^-alpha + B * tokens^-beta",
            columns=("params", "tokens"),
            factors=("A", "B"),
            exponents=("alpha", "beta"),
        ),
    )
}


class Summed(NamedTuple):
    """The objective at some theta."""

    value: float
    gradient: np.ndarray  # [P]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is to be made small. `counts` says how often each point is taken: once, or as a bootstrap drew it."""

    logs: np.ndarray  # [n, K], natural logarithms of the columns
    target: np.ndarray  # [n], ln(loss), or ln(loss - E) where E is fixed
    counts: np.ndarray  # [n]
    free_asymptote: bool
    delta: float  # of Huber; infinite for half squares

    @property
    def parameters(self) -> int:
        """P."""
        return 2 * self.logs.shape[1] + self.free_asymptote

    @property
    def total(self) -> float:
        """How many points, each counted as often as it is taken."""
        return float(self.counts.sum())

    @property
    def rounding(self) -> float:
        """A value of the objective that float64 cannot tell from zero: each residual off by a few ulps of its parts."""
        ulps = 4 * np.finfo(float).eps * max(1.0, float(np.abs(self.target).max()), float(np.abs(self.logs).max()))
        return self.total * ulps**2 / 2

    def residuals(self, theta: np.ndarray) -> np.ndarray:
        """Logarithms of measured over law [n]."""
        return self.target - self._predict(theta)[0]

    def summed(self, theta: np.ndarray) -> Summed:
        """Value and gradient at theta."""
        predicted, shares = self._predict(theta)
        residuals = self.target - predicted
        bounded = np.clip(residuals, -self.delta, self.delta)  # the derivative of Huber
        value = self.counts @ (bounded * (residuals - bounded / 2))
        pull = shares * (self.counts * bounded)[:, None]
        terms = pull[:, int(self.free_asymptote) :]
        return Summed(float(value), np.concatenate([-pull.sum(axis=0), (terms * self.logs).sum(axis=0)]))

    def curvature(self, theta: np.ndarray) -> np.ndarray:
        """[P, P] of a quadratic that touches the objective at theta and lies above it where the law is near linear."""
        predicted, _ = self._predict(theta)
        size, jacobian = np.abs(self.target - predicted), self.jacobian(theta)
        weights = self.counts * np.divide(self.delta, size, out=np.ones_like(size), where=size > self.delta)
        return np.einsum("np,n,nq->pq", jacobian, weights, jacobian)  # @ waits for threads longer than it multiplies

    def jacobian(self, theta: np.ndarray) -> np.ndarray:
        """Derivatives of the law's logarithms by theta [n, P]."""
        _, shares = self._predict(theta)
        return np.concatenate([shares, -shares[:, int(self.free_asymptote) :] * self.logs], axis=1)

    def _predict(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The law's logarithm [n], and each term's share in it [n, K], behind that of E where it is free."""
        first, terms = int(self.free_asymptote), self.logs.shape[1]
        each = theta[first : first + terms] - theta[first + terms :] * self.logs  # [n, K], logarithms of the terms
        if self.free_asymptote:
            each = np.concatenate([np.full((len(each), 1), theta[0]), each], axis=1)
        largest = each.max(axis=1)
        shares = np.exp(each - largest[:, None])
        total = shares.sum(axis=1)
        return largest + np.log(total), shares / total[:, None]


def parse_place(text: str, form: Form) -> dict[str, float]:
    """`params=70e9,tokens=1.4e12`, or a bare number for a form of one column. UsageError where it cannot be meant."""
    parts = [part.partition("=") for part in text.split(",")]
    if len(form.columns) == 1 and len(parts) == 1 and not parts[0][1]:
        parts = [(form.columns[0], "=", text)]
    place = {}
    for name, _, number in parts:
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name.strip() in place or not 0 < value < math.inf:
            break
        place[name.strip()] = value
    if len(place) < len(parts) or set(place) != set(form.columns):
        raise UsageError(f"--at {text!r} is no place of form {form.name}. Write it as --at {example_place(form)}.")
    return {column: place[column] for column in form.columns}


def example_place(form: Form) -> str:
    """How --at is written for a form."""
    return ",".join(f"{column}={EXAMPLES[column]}" for column in form.columns)


def coefficients_of(form: Form, theta: np.ndarray, asymptote: float | None) -> dict[str, float]:
    """Theta's entries by name, in natural units, and a fixed asymptote. FitError where one is not finite."""
    names = form.parameters(free_asymptote=asymptote is None)
    result = {} if asymptote is None else {"E": asymptote}
    for name, value in zip(names, theta.tolist(), strict=True):
        if value > LARGEST_LOG and name not in form.exponents:
            raise FitError(
                f"the best {form.name} law has a coefficient {name} of e^{value:.0f}: the losses hardly vary with the "
                "columns, or vary where these do not."
            )
        result[name] = value if name in form.exponents else math.exp(value)
    return result


def make_problem(points: Points, form: Form, asymptote: float | None) -> Problem:
    """The form on the points. FitError where a loss does not lie above a fixed asymptote, or there are too few."""
    losses = np.array(points.losses)
    if asymptote is not None:
        if form.name != "power":
            raise UsageError(f"--asymptote goes with --form power; {form.name} finds its own.")
        if not 0 <= asymptote < math.inf:
            raise UsageError(f"--asymptote {asymptote} is no loss; give one of 0 or more, below every point's.")
        if losses.min() <= asymptote:
            lowest = int(losses.argmin())
            raise FitError(
                f"{points.where(lowest)}, loss: {points.losses[lowest]!r} is not above the asymptote {asymptote}, so "
                "no law can reach it. Choose a lower --asymptote, or leave it out to have it found."
            )
    problem = Problem(
        logs=np.log([points.columns[column] for column in form.columns]).T,
        target=np.log(losses - (asymptote or 0.0)),
        counts=np.ones(len(losses)),
        free_asymptote=asymptote is None,
        delta=HUBER_DELTA if asymptote is None else math.inf,
    )
    if len(points) <= problem.parameters:
        raise FitError(
            f"{points.name}: {len(points)} points; {form.name} has {problem.parameters} coefficients to find, and "
            f"needs at least {problem.parameters + 1} points to leave something to judge them by."
        )
    return problem
