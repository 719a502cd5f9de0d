"""The forecast under other choices and under noise: numbers known elsewhere, and laws that synthetic ladders obey."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import FitError
from repro.files import canonical_json, parse_json
from repro.ladder.fit import fit_record
from repro.ladder.noise import Noise, bootstrap, measure_noise
from repro.ladder.sensitivity import Study, free_asymptote, study_record
from repro.record.facts import Record, load_record
from repro.record.tables import GridPoint

RECORD = load_record()
FORECAST = RECORD.forecast
assert FORECAST is not None


@pytest.fixture(scope="module")
def study() -> Study:
    return study_record(RECORD)


def finals(study: Study, choice: str) -> dict[str | float, float]:
    return {value: round(fit.final.prediction, 4) for value, fit in study.of(choice).items()}  # type: ignore[arg-type]


def on_a_law(asymptote: float, coefficient: float, alpha: float) -> Record:
    """The record with its losses replaced by asymptote + coefficient · C^-alpha at each point's own mark."""
    fit = fit_record(RECORD)
    grid = {
        rung: tuple(
            GridPoint(point.step, asymptote + coefficient * point.flops**-alpha)
            for point in (law.rungs[rung] for law in fit.points)
            if point.step is not None
        )
        for rung in fit.final.rungs
    }
    return replace(RECORD, ladder_grid=grid)


def quiet(sigma: float) -> Noise:
    rungs = dict.fromkeys(RECORD.ladder_grid, sigma)
    return Noise(rungs=rungs, late=rungs, extrapolated_rung=None, rule_misses={}, extrapolation_error=None)


def test_the_asymptote_moves_the_forecast_as_known(study: Study) -> None:
    assert finals(study, "asymptote") == {1.3: 2.0084, 1.4: 2.0227, 1.5: 2.0388, 1.6: 2.0571, 1.7: 2.0782}


def test_leaving_one_rung_out_moves_the_forecast_as_known(study: Study) -> None:
    assert finals(study, "leave_one_out") == {"d768": 2.0378, "d1024": 2.0388, "d1536": 2.0379, "d2048": 2.0415}
    without = study.of("leave_one_out")["d2048"]
    assert without.tail is None
    assert list(without.final.rungs) == ["d768", "d1024", "d1536"]


def test_counting_the_lm_head_moves_the_forecast_as_known(study: Study) -> None:
    assert finals(study, "compute") == {"with_lm_head": 2.0151}
    head = 6 * 6144 * 128_256 * 18_005_144_633_344  # 2 FLOPs forward, 4 backward; width, vocabulary, tokens
    with_head = study.of("compute")["with_lm_head"].final.target_flops
    assert with_head == pytest.approx(study.fit.final.target_flops + head, rel=1e-12)


def test_the_finished_rungs_would_have_needed_a_smaller_correction(study: Study) -> None:
    """0.0036, 0.0029, 0.0032 below their measured ends; worked out elsewhere to four decimals."""
    correction = study.as_json()["sensitivity"]["d2048_correction"]
    needed = correction["needed_by_finished_rungs"]
    assert {rung: round(value, 4) for rung, value in needed.items()} == {
        "d768": 0.0036,
        "d1024": 0.0029,
        "d1536": 0.0032,
    }
    assert correction["published"] == 0.005
    rows = {round(row["correction"], 4): row["prediction"] for row in correction["rows"]}
    assert list(rows) == [0.0, 0.0032, 0.005]
    assert rows[0.0] < rows[0.0032] < rows[0.005] == study.fit.final.prediction


def test_the_band_holds_every_fit_at_every_mark(study: Study) -> None:
    for number, (low, high) in enumerate(study.band()):
        predictions = [variant.fit.points[number].prediction for variant in study.variants]
        assert min(predictions) == low <= study.fit.points[number].prediction <= high == max(predictions)


def test_a_free_asymptote_is_weakly_identified_on_this_record(study: Study) -> None:
    free = study.free_asymptote
    assert free.identification.startswith("weakly identified: three parameters on 4 points")
    assert free.interval_95[0] < free.asymptote < free.interval_95[1]
    assert free.interval_95[1] - free.interval_95[0] > 0.4
    assert free.prediction_interval_95[0] < study.bootstrap.interval_95[0]
    assert free.prediction_interval_95[1] > study.bootstrap.interval_95[1]


@settings(max_examples=25, deadline=None)
@given(st.integers(500, 1800), st.floats(0.05, 0.15), st.floats(1.0, 2.0))
def test_points_on_an_exact_law_give_their_asymptote_back(thousandths: int, alpha: float, above: float) -> None:
    """`above`: distance of d768's end from the asymptote; with noise of 1e-5 it is known to the grid's own step."""
    asymptote = thousandths / 1000
    fit = fit_record(RECORD)
    flops = {rung: point.flops for rung, point in fit.final.rungs.items()}
    coefficient = above * flops["d768"] ** alpha
    rungs = {
        rung: point._replace(loss=asymptote + coefficient * point.flops**-alpha)
        for rung, point in fit.final.rungs.items()
    }
    exact = replace(fit, points=(*fit.points[:-1], replace(fit.final, rungs=rungs)))
    free = free_asymptote(exact, quiet(1e-6))
    assert free.asymptote == pytest.approx(asymptote, abs=0.0011)
    assert free.interval_95[0] <= free.asymptote <= free.interval_95[1]
    assert free.identification.startswith("identified: ")
    assert free.prediction == pytest.approx(asymptote + coefficient * fit.final.target_flops**-alpha, abs=0.002)


def test_noise_without_end_leaves_the_asymptote_open() -> None:
    free = free_asymptote(fit_record(RECORD), quiet(0.5))
    assert free.open
    assert free.interval_95[0] == 0
    assert "ends only where the search does" in free.identification


def test_noise_that_was_put_in_is_measured() -> None:
    """Mean of the estimate over 200 ladders of known noise: 64 degrees of freedom a ladder, so within 2.5%."""
    smooth, sigma, rng = on_a_law(1.5, 84.8, 0.09), 0.004, np.random.default_rng(0)
    base = measure_noise(fit_record(smooth))
    assert max(base.rungs.values()) < 0.1 * sigma  # the curve bends like the law: in quadrature under 0.5%
    squares = []
    for _ in range(200):
        grid = {
            rung: tuple(GridPoint(p.step, p.loss + sigma * rng.standard_normal()) for p in points)
            for rung, points in smooth.ladder_grid.items()
        }
        squares += [value**2 for value in measure_noise(fit_record(replace(smooth, ladder_grid=grid))).rungs.values()]
    assert math.sqrt(np.mean(squares)) == pytest.approx(sigma, rel=0.025)


def test_the_noise_of_the_record_is_a_few_thousandths(study: Study) -> None:
    noise = study.bootstrap.noise
    assert all(0.003 < value < 0.005 for value in noise.rungs.values())
    assert all(late < noise.rungs[rung] for rung, late in noise.late.items())
    assert "d2048" not in noise.late
    rms = math.sqrt(np.mean([miss**2 for miss in noise.rule_misses.values()]))
    assert noise.at_the_end("d2048") == noise.extrapolation_error == pytest.approx(rms)
    assert noise.at_the_end("d768") == noise.rungs["d768"]


def test_the_bootstrap_spreads_as_the_errors_propagate(study: Study) -> None:
    """To first order: d prediction / d loss_i = w_i · (prediction - E) / (loss_i - E), w_i the line's weight at C."""
    final, noise, asymptote = study.fit.final, study.bootstrap.noise, 1.5
    x = [math.log(point.flops) for point in final.rungs.values()]
    mean = sum(x) / len(x)
    reach = (math.log(final.target_flops) - mean) / sum((value - mean) ** 2 for value in x)
    variance = sum(
        (
            (1 / len(x) + reach * (value - mean))
            * (final.prediction - asymptote)
            / (final.rungs[rung].loss - asymptote)
            * noise.at_the_end(rung)
        )
        ** 2
        for value, rung in zip(x, final.rungs, strict=True)
    )
    spread = study.bootstrap.standard_deviation
    assert spread == pytest.approx(math.sqrt(variance), rel=0.03)  # 10,000 draws: 0.7%, at four standard errors
    low, high = study.bootstrap.interval_95
    assert (high - low) / 2 == pytest.approx(1.96 * spread, rel=0.05)
    assert low < study.bootstrap.interval_68[0] < final.prediction < study.bootstrap.interval_68[1] < high


def test_the_bootstrap_depends_on_its_seed_alone(study: Study) -> None:
    noise = study.bootstrap.noise
    assert bootstrap(study.fit, noise) == study.bootstrap
    other = bootstrap(study.fit, noise, seed=1)
    assert other.interval_95 != study.bootstrap.interval_95
    assert other.interval_95 == pytest.approx(study.bootstrap.interval_95, abs=5e-4)


def test_the_bootstrap_says_what_it_assumes(study: Study) -> None:
    said = " ".join(study.bootstrap.assumes)
    for words in (
        "asymptote 1.5",
        "337 times",
        "independent",
        "d2048's extrapolated loss",
        "one sign",
        "training data",
    ):
        assert words in said


def test_a_loss_within_its_noise_of_the_asymptote_is_refused(study: Study) -> None:
    with pytest.raises(FitError, match=r"d2048 at 100% \(step None\): the loss lies within its noise"):
        bootstrap(study.fit, replace(study.bootstrap.noise, extrapolation_error=0.4))


def test_too_few_marks_to_tell_noise_from_the_curve_are_refused() -> None:
    assert FORECAST is not None
    coarse = replace(RECORD, forecast=replace(FORECAST, mark=0.2))
    with pytest.raises(FitError, match=r"d768: 5 measured marks up to step 11419.* needs 6"):
        study_record(coarse)


def test_what_cannot_be_tried_is_said() -> None:
    """Three rungs, and a ladder that ends below 1.7."""
    assert FORECAST is not None
    low = {
        rung: tuple(GridPoint(point.step, point.loss - 0.9) for point in points)
        for rung, points in RECORD.ladder_grid.items()
    }
    forecast = replace(FORECAST, fitted_on=("d768", "d1024", "d1536"))
    study = study_record(replace(RECORD, ladder_grid=low, forecast=forecast))
    assert list(study.of("asymptote")) == [1.3, 1.4, 1.5, 1.6]
    assert study.of("leave_one_out") == {}
    said = " ".join(study.notes)
    assert "No law with asymptote 1.7 is tried: a loss of 1.6638 is not above it." in said
    assert "No rung is left out" in said
    result = study.as_json()
    assert result["sensitivity"]["d2048_correction"] is None
    assert result["bootstrap"]["extrapolation_error"] is None


def test_the_result_has_the_contracts_keys_and_is_strict_json(study: Study) -> None:
    result = parse_json(canonical_json(study.as_json()).encode(), "fit.json")
    assert list(result) == ["asymptote", "procedure", "points", "final", "sensitivity", "bootstrap"]
    assert list(result["sensitivity"]) == ["asymptote", "leave_one_out", "flops_with_lm_head", "d2048_correction"]
    for point in result["points"]:
        assert {"fraction", "rungs", "A", "alpha", "prediction"} <= set(point)
    assert result["final"].keys() == {"prediction", "A", "alpha"}
    assert [row["free"] for row in result["sensitivity"]["asymptote"]] == [False] * 5 + [True]
    assert result["points"][-1]["rungs"]["d2048"]["status"] == "extrapolated"
