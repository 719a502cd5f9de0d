"""Laws fitted to points: coefficients that are known come back, and what points cannot say is not said."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from repro.errors import FitError, UsageError
from repro.ladder.forms import FORMS, Form, Problem, make_problem, parse_place
from repro.ladder.point_fit import PointFit, fit_points
from repro.ladder.points import Points, read_points
from repro.ladder.profile import identify

POWER, CHINCHILLA = FORMS["power"], FORMS["chinchilla"]
LAW = {
    "E": 1.6934,
    "A": 406.4,
    "B": 410.7,
    "alpha": 0.3392,
    "beta": 0.2849,
}  # Hoffmann et al. 2022, approach 3, rounded
LINE = {"E": 1.5, "A": 95.0, "alpha": 0.09}
GRID = [(n, d) for n in (5e7, 2e8, 8e8, 3e9) for d in (1e9, 5e9, 2.5e10, 1.2e11)]
SIZES = tuple(10 ** (18 + n / 2) for n in range(8))

Make = Callable[..., Points]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Points of a form at places, their losses as the law has them, times exp(noise)."""

    def points(form: Form, law: Mapping[str, float], places: Sequence[tuple[float, ...]], noise: float = 0.0) -> Points:
        random, lines = np.random.default_rng(5), [",".join((*form.columns, "loss"))]
        for place in places:
            loss = form.loss_at(law, dict(zip(form.columns, place, strict=True)))
            lines.append(",".join(repr(float(x)) for x in (*place, loss * math.exp(noise * random.normal()))))
        path = tmp_path_factory.mktemp("points") / "points.csv"
        path.write_text("\n".join(lines))
        return read_points(path, form.columns)

    return points


def flops(sizes: Sequence[float] = SIZES) -> list[tuple[float]]:
    return [(size,) for size in sizes]


@pytest.mark.parametrize(("form", "law"), [(POWER, LINE), (CHINCHILLA, LAW)])
def test_a_law_without_noise_comes_back(make: Make, form: Form, law: Mapping[str, float]) -> None:
    places = flops() if form is POWER else GRID
    far = {"flops": 1e24} if form is POWER else {"params": 70e9, "tokens": 1.4e12}
    found = fit_points(make(form, law, places), form, places=[far], draws=2)
    for name, value in law.items():
        assert found.coefficients[name] == pytest.approx(value, rel=1e-4), name
    assert found.predictions[0].loss == pytest.approx(form.loss_at(law, far), abs=1e-6)
    assert found.search.best.converged
    assert found.search.reached >= 2
    assert found.identification.verdict == "identified"


def test_a_fixed_asymptote_gives_the_line_of_least_squares_and_students_interval(make: Make) -> None:
    points = make(POWER, LINE, flops(), noise=0.003)
    found = fit_points(points, POWER, asymptote=1.5, draws=2)
    x, y = np.log(points.columns["flops"]), np.log(np.array(points.losses) - 1.5)
    slope, intercept = np.polyfit(x, y, 1)
    assert found.coefficients["alpha"] == pytest.approx(-slope, rel=1e-9)
    assert found.coefficients["A"] == pytest.approx(math.exp(intercept), rel=1e-8)
    error = math.sqrt(((y - slope * x - intercept) ** 2).sum() / (len(x) - 2) / ((x - x.mean()) ** 2).sum())
    half = 2.446911848791681 * error  # Student's t, 97.5%, 6 degrees of freedom
    low, high = found.profile["alpha"]
    assert low == pytest.approx(-slope - half, rel=1e-4)
    assert high == pytest.approx(-slope + half, rel=1e-4)
    assert found.asymptotes[-1].free
    assert {row.asymptote for row in found.asymptotes[:-1]} == {1.3, 1.4, 1.6, 1.7}


@pytest.mark.parametrize(("form", "asymptote"), [(POWER, None), (POWER, 1.5), (CHINCHILLA, None)])
def test_the_gradient_is_that_of_the_sum(make: Make, form: Form, asymptote: float | None) -> None:
    points = make(form, LINE if form is POWER else LAW, flops() if form is POWER else GRID, noise=0.01)
    problem: Problem = make_problem(points, form, asymptote)
    theta = np.array([0.4, 4.0, 0.1] if form is POWER else [0.5, 6.0, 6.0, 0.33, 0.28])[-problem.parameters :]
    steps = 1e-6 * np.eye(problem.parameters)
    slopes = [(problem.summed(theta + e).value - problem.summed(theta - e).value) / 2e-6 for e in steps]
    assert problem.summed(theta).gradient == pytest.approx(slopes, rel=1e-5, abs=1e-9)


@pytest.fixture(scope="module")
def noisy(make: Make) -> PointFit:
    return fit_points(make(CHINCHILLA, LAW, GRID, noise=0.004), CHINCHILLA, draws=60)


def test_the_objective_is_a_sum_at_a_true_minimum(noisy: PointFit) -> None:
    """A published fit stopped short of its minimum because its objective was a mean (arXiv 2404.10102)."""
    best = noisy.search.best
    problem = make_problem(noisy.points, CHINCHILLA, None)
    assert best.left <= 1e-12 * best.value
    assert problem.summed(best.theta).value == best.value
    for name in LAW:
        low, high = noisy.profile[name]
        assert low is not None
        assert high is not None
        assert low < noisy.coefficients[name] < high
    residuals = np.abs(problem.residuals(best.theta))
    huber = np.where(residuals <= 1e-3, residuals**2 / 2, 1e-3 * (residuals - 5e-4)).sum()
    assert best.value == pytest.approx(huber, rel=1e-9)


def test_the_bootstraps_covariance_is_that_of_its_draws(noisy: PointFit) -> None:
    drawn = noisy.bootstrap
    assert drawn is not None
    assert drawn.parameters == ("ln E", "ln A", "ln B", "alpha", "beta")
    alphas = [one["alpha"] for one in drawn.coefficients]
    assert drawn.covariance[3, 3] == pytest.approx(np.var(alphas, ddof=1), rel=1e-9)
    assert drawn.standard_errors["alpha"] == pytest.approx(np.std(alphas, ddof=1), rel=1e-9)
    assert np.linalg.eigvalsh(drawn.covariance).min() > 0
    again = fit_points(noisy.points, CHINCHILLA, draws=60)
    assert again.as_json() == noisy.as_json()  # one seed, one result


def test_the_largest_are_forecast_by_the_others(noisy: PointFit) -> None:
    first = noisy.held_out[0]
    assert first.points == 1
    assert first.extrapolation_factor == pytest.approx(3e9 * 1.2e11 / (8e8 * 1.2e11))
    law = {**first.coefficients}
    measured = noisy.points.losses[-1]
    assert first.mean_error == pytest.approx(measured - CHINCHILLA.loss_at(law, {"params": 3e9, "tokens": 1.2e11}))


def test_compute_optimal_exponents_share_one(noisy: PointFit) -> None:
    shares = noisy.as_json()["compute_optimal"]
    assert sum(shares.values()) == pytest.approx(1.0)
    total = noisy.coefficients["alpha"] + noisy.coefficients["beta"]
    assert shares["params_exponent"] == pytest.approx(noisy.coefficients["beta"] / total)


SIX = (1e8, 2e8, 4e8, 8e8, 1.6e9, 3.2e9)


def test_of_a_law_that_points_cannot_tell_apart_little_is_said(make: Make) -> None:
    found = fit_points(make(CHINCHILLA, LAW, [(n, 20e9) for n in SIX], noise=0.001), CHINCHILLA, draws=2)
    assert found.identification.verdict == "not identified"
    assert found.identification.reasons[0].startswith("tokens takes 1 value")
    assert found.bootstrap is None
    assert found.profile == {}
    assert found.notes[-1].startswith("Of a law that is not identified,")


def test_columns_that_move_together_are_told(make: Make) -> None:
    points = make(CHINCHILLA, LAW, [(n, 20 * n) for n in SIX])
    theta = np.array([math.log(LAW["E"]), math.log(LAW["A"]), math.log(LAW["B"]), LAW["alpha"], LAW["beta"]])
    found = identify(points, CHINCHILLA, make_problem(points, CHINCHILLA, None), theta)
    assert found.verdict == "not identified"
    assert found.correlation == pytest.approx(1.0)
    assert found.reasons[0].startswith("params and tokens move together")


def test_an_asymptote_far_below_a_short_ladder_is_known_weakly(make: Make) -> None:
    found = fit_points(make(POWER, LINE, flops(SIZES[:5]), noise=0.004), POWER, draws=2)
    assert found.identification.verdict == "weakly identified"
    assert found.identification.reasons


def test_refusals(make: Make) -> None:
    points = make(POWER, LINE, flops())
    with pytest.raises(FitError, match=r"line 9, loss: .* is not above the asymptote 3"):
        fit_points(points, POWER, asymptote=3.0)
    with pytest.raises(UsageError, match="--asymptote goes with --form power"):
        fit_points(make(CHINCHILLA, LAW, GRID), CHINCHILLA, asymptote=1.5)
    with pytest.raises(FitError, match="3 points; power has 3 coefficients to find, and needs at least 4"):
        fit_points(make(POWER, LINE, flops(SIZES[:3])), POWER)
    with pytest.raises(FitError, match="no power law of finite size"):
        fit_points(make(POWER, LINE, flops([1e18] * 4)), POWER, asymptote=1.0)


def test_places() -> None:
    assert parse_place("2.6e24", POWER) == {"flops": 2.6e24}
    assert parse_place("tokens=1.4e12, params=70e9", CHINCHILLA) == {"params": 70e9, "tokens": 1.4e12}
    for text in ("flops=2.6e24", "params=1e9", "params=1e9,params=1e9", "params=-1,tokens=1", "params=x,tokens=1", ""):
        with pytest.raises(UsageError, match="Write it as --at params=70e9,tokens="):
            parse_place(text, CHINCHILLA)
