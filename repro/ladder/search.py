"""The least sum of residuals of a form, found from a grid of starts and proven by its gradient.

Each start is a pair of exponents, with the factors and asymptote that least squares gives for them. From each, L-BFGS
runs in coordinates in which the objective is nearly a sphere of unit curvature, and is started again in new ones until
the gradient says that nothing is left to gain: `left`, half of gradient · curvature⁻¹ · gradient, is the fall that a
quadratic through the point promises. An optimiser's own word for having finished is not asked.

Comes in: a `Problem`. Goes out: an `Optimum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import minimize, nnls
from threadpoolctl import threadpool_limits

from repro.ladder.forms import LARGEST_LOG, Problem, Summed

EXPONENTS = (0.03, 0.08, 0.15, 0.25, 0.4, 0.7, 1.2)  # starts; published losses fall with exponents of 0.05 to 0.6
CONVERGED = 1e-12  # of the objective may be left to gain; its rounding is about 1e-16
ITERATIONS, ROUNDS = 100, 30  # of L-BFGS in one set of coordinates; of such sets
SAME = 1e-9  # relative difference of objectives that are one minimum
FAR = LARGEST_LOG  # a flat valley is not followed beyond: no coefficient there could be written down
SMALLEST_SHARE = 1e-3  # of the lowest loss, for a term that least squares leaves out: its logarithm must exist


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Where a search ended."""

    theta: np.ndarray  # [P]
    value: float  # the objective, summed
    left: float  # what a quadratic promises to be left to gain
    gradient: float  # largest entry, by entries of theta
    converged: bool


@dataclass(frozen=True, kw_only=True)
class Search:
    """The best of all starts, and how many found it."""

    best: Optimum
    starts: int
    reached: int  # starts that ended at the best value
    converged: int  # starts that ended where nothing was left to gain
    worst: float  # the highest value that a start ended at


def search(problem: Problem) -> Search:
    """Minimise from the whole grid; the best of all, followed as far as float64 goes."""
    found = [descend(problem, start) for start in _starts(problem)]
    best = descend(problem, min(found, key=lambda one: one.value).theta, enough=0.0)
    same = best.value * (1 + SAME) + problem.rounding
    return Search(
        best=best,
        starts=len(found),
        reached=sum(bool(one.value <= same) for one in found),
        converged=sum(bool(one.converged) for one in found),
        worst=max(one.value for one in found),
    )


def one_thread() -> AbstractContextManager[Any]:
    """Keep BLAS from sharing out small matrices: beside other work a search took 75 s in place of 3 (measured)."""
    return threadpool_limits(limits=1, user_api="blas")


def descend(problem: Problem, start: np.ndarray, *, fixed: Sequence[int] = (), enough: float = CONVERGED) -> Optimum:
    """The minimum that is reached from `start`, the entries `fixed` of theta staying as they are there.

    `enough` is the share of the objective that may be left to gain.
    """
    free = [index for index in range(len(start)) if index not in fixed]
    theta = np.array(start, dtype=float)
    here = problem.summed(theta)
    for _ in range(ROUNDS):
        axes = _axes(problem, theta, free)
        if _left(here, axes, free) <= enough * here.value or here.value <= problem.rounding:
            break
        moved = _round(problem, theta, here, axes, free, enough)
        if not np.abs(moved).max() <= FAR:
            break
        there = problem.summed(moved)
        if not there.value < here.value:
            break
        theta, here = moved, there
    left = _left(here, _axes(problem, theta, free), free)
    return Optimum(
        theta=theta,
        value=here.value,
        left=left,
        gradient=float(np.abs(here.gradient[free]).max(initial=0.0)),
        converged=bool(left <= max(enough, CONVERGED) * here.value or here.value <= problem.rounding),
    )


def _round(
    problem: Problem, theta: np.ndarray, here: Summed, axes: np.ndarray, free: list[int], enough: float
) -> np.ndarray:
    """One run of L-BFGS from theta along the axes; the objective in units of its value here."""
    scale = np.sqrt(here.value)

    def along(z: np.ndarray) -> tuple[float, np.ndarray]:
        moved = theta.copy()
        moved[free] += scale * (axes @ z)
        summed = problem.summed(moved)
        return summed.value / here.value, axes.T @ summed.gradient[free] / scale

    gtol = np.sqrt(enough / len(free))  # of the largest entry; `_left` is half the sum of squares
    options = {"maxiter": ITERATIONS, "maxfun": 1000, "ftol": 0.0, "gtol": gtol, "maxcor": 20}
    result = minimize(along, np.zeros(axes.shape[1]), jac=True, method="L-BFGS-B", options=options)
    moved = theta.copy()
    moved[free] += scale * (axes @ result.x)
    return moved


def _axes(problem: Problem, theta: np.ndarray, free: list[int]) -> np.ndarray:
    """Directions of theta's free entries, as columns, along which the curvature is one."""
    curvature = problem.curvature(theta)[np.ix_(free, free)]
    size = np.sqrt(np.maximum(curvature.diagonal(), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(curvature / np.outer(size, size))
    values = np.maximum(
        values, max(values.max(initial=0.0) * 1e-13, np.finfo(float).tiny)
    )  # a flat direction is not followed to infinity
    return vectors / np.sqrt(values) / size[:, None]


def _left(here: Summed, axes: np.ndarray, free: list[int]) -> float:
    slope = axes.T @ here.gradient[free]
    return float(slope @ slope / 2)


def _starts(problem: Problem) -> list[np.ndarray]:
    """Exponents of the grid, each with the coefficients that make the law's relative errors least."""
    terms = problem.logs.shape[1]
    middle = problem.logs.mean(axis=0)
    values = np.exp(problem.target)
    smallest = SMALLEST_SHARE * values.min()
    starts = []
    for exponents in product(EXPONENTS, repeat=terms):
        each = np.exp(-np.array(exponents) * (problem.logs - middle))  # [n, K]
        if problem.free_asymptote:
            each = np.concatenate([np.ones((len(each), 1)), each], axis=1)
        rows = np.sqrt(problem.counts)
        parts = np.log(np.maximum(nnls(rows[:, None] * each / values[:, None], rows)[0], smallest))
        parts[-terms:] += np.array(exponents) * middle
        starts.append(np.concatenate([parts, exponents]))
    return starts
