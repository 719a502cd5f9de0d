"""How far the published forecast hangs on its choices: each is made otherwise, and the forecast is fitted again.

    asymptote       0.1 and 0.2 below and above the published one; and fitted freely, with a profile interval
    leave one out   each rung in turn
    compute         with the LM head, where the published axis is without (or the other way about)
    correction      of the extrapolated rung: none, and what the finished rungs would have needed

A free asymptote has three parameters on four points. Its profile is that of chi-square on the losses at 100%, with the
noise that `repro.ladder.noise` measures: at each E the best A and alpha by weighted least squares on logs, the weights
((L - E) / noise)², which is chi-square to first order in the residuals.

Comes in: a record. Goes out: a `Study`, whose `as_json` is the command line's `fit` object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from repro.ladder.curves import MIN_RUNGS
from repro.ladder.fit import Fit, fit_record, published_forecast
from repro.ladder.noise import Bootstrap, Noise, bootstrap, measure_noise
from repro.record.artifacts import Forecast
from repro.record.facts import Record

ASYMPTOTE_STEPS = (-0.2, -0.1, 0.0, 0.1, 0.2)  # nats a token, from the published one
PROFILE_STEP = 0.001  # nats a token; the free asymptote is known to no more than this
CHI_SQUARE_95 = 3.841  # one degree of freedom

Choice = Literal["asymptote", "leave_one_out", "compute", "correction"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The forecast with one choice made otherwise (or, to complete a row, as published)."""

    choice: Choice
    value: str | float  # the asymptote, the rung left out, the compute, the correction
    fit: Fit


@dataclass(frozen=True, kw_only=True)
class FreeAsymptote:
    """The asymptote that the losses at 100% choose, nats a token."""

    asymptote: float
    interval_95: tuple[float, float]
    open: bool  # the interval ends only where the search does
    prediction: float
    prediction_interval_95: tuple[float, float]
    identification: str  # begins with "weakly identified" where it is


@dataclass(frozen=True, kw_only=True)
class Study:
    """The published fit, the same with each choice made otherwise, and what noise does to it."""

    fit: Fit
    variants: tuple[Variant, ...]
    free_asymptote: FreeAsymptote
    bootstrap: Bootstrap
    notes: tuple[str, ...]  # the fit's, and which variants could not be fitted

    def of(self, choice: Choice) -> dict[str | float, Fit]:
        """The fits of one choice by its value."""
        return {variant.value: variant.fit for variant in self.variants if variant.choice == choice}

    def band(self) -> tuple[tuple[float, float], ...]:
        """Lowest and highest prediction of all variants at each mark. No probability: it is as wide as the choices."""
        fits = [self.fit, *(variant.fit for variant in self.variants)]
        predictions = zip(*([law.prediction for law in fit.points] for fit in fits), strict=True)
        return tuple((min(at_mark), max(at_mark)) for at_mark in predictions)

    def as_json(self) -> dict[str, Any]:
        """The `fit` object of the command-line contract."""
        result = self.fit.as_json()
        result["procedure"]["notes"] = list(self.notes)
        result["sensitivity"] = self._sensitivity()
        result["bootstrap"] = self.bootstrap.as_json()
        return result

    def _sensitivity(self) -> dict[str, Any]:
        free, tail = self.free_asymptote, self.fit.tail
        (other_compute,) = (fit.final.prediction for fit in self.of("compute").values())
        published = self.fit.final.prediction
        head_is_published = self.fit.forecast.compute == "with_lm_head"
        return {
            "asymptote": [
                *(
                    {"asymptote": value, "free": False, "prediction": fit.final.prediction}
                    for value, fit in self.of("asymptote").items()
                ),
                {
                    "asymptote": free.asymptote,
                    "free": True,
                    "prediction": free.prediction,
                    "interval_95": list(free.interval_95),
                    "prediction_interval_95": list(free.prediction_interval_95),
                    "identification": free.identification,
                },
            ],
            "leave_one_out": {str(rung): fit.final.prediction for rung, fit in self.of("leave_one_out").items()},
            "flops_with_lm_head": published if head_is_published else other_compute,
            "d2048_correction": {  # the contract's name; the rung is the record's
                "rung": tail.rung,
                "published": tail.correction,
                "needed_by_finished_rungs": _needed(self.bootstrap.noise, tail.correction),
                "rows": [
                    {"correction": value, "prediction": fit.final.prediction}
                    for value, fit in self.of("correction").items()
                ],
            }
            if tail
            else None,
        }


def study_record(record: Record) -> Study:
    """Fit the record's forecast as published, and again with each choice made otherwise; draw the bootstrap.

    Raises what `fit_record` and `measure_noise` raise for the published fit.
    """
    return study_fit(lambda forecast: fit_record(record, forecast), published_forecast(record))


def study_fit(refit: Callable[[Forecast], Fit], forecast: Forecast) -> Study:
    """The same for any points; `refit` fits them by given choices. Raises what it and `measure_noise` raise."""
    fit = refit(forecast)
    noise = measure_noise(fit)
    notes = list(fit.notes)
    return Study(
        fit=fit,
        variants=tuple(
            Variant(choice=choice, value=value, fit=refit(otherwise))
            for choice, value, otherwise in _otherwise(fit, noise, notes)
        ),
        free_asymptote=free_asymptote(fit, noise),
        bootstrap=bootstrap(fit, noise),
        notes=tuple(notes),
    )


def free_asymptote(fit: Fit, noise: Noise) -> FreeAsymptote:
    """Profile chi-square over the asymptote, from 0 to the lowest loss, at 100%."""
    final = fit.final
    losses = np.array([point.loss for point in final.rungs.values()])  # [rung]
    spreads = np.array([noise.at_the_end(rung) for rung in final.rungs])  # [rung]
    x = np.log([point.flops for point in final.rungs.values()])  # [rung]
    tried = np.arange(0, losses.min() - PROFILE_STEP / 2, PROFILE_STEP)  # [E]
    y = np.log(losses - tried[:, None])  # [E, rung]
    weights = ((losses - tried[:, None]) / spreads) ** 2
    weights /= (total := weights.sum(axis=1, keepdims=True))  # [E, rung], of sum 1
    mean_x, mean_y = (weights * x).sum(axis=1), (weights * y).sum(axis=1)  # [E]
    away = x - mean_x[:, None]
    slope = (weights * away * y).sum(axis=1) / (weights * away**2).sum(axis=1)  # [E], -alpha
    residuals = y - mean_y[:, None] - slope[:, None] * away
    chi_square = total[:, 0] * (weights * residuals**2).sum(axis=1)  # [E]
    predictions = tried + np.exp(mean_y + slope * (np.log(final.target_flops) - mean_x))  # [E]
    best = int(chi_square.argmin())
    inside = np.flatnonzero(chi_square <= chi_square[best] + CHI_SQUARE_95)
    interval = (round(float(tried[inside[0]]), 3), round(float(tried[inside[-1]]), 3))
    reached = predictions[inside]
    is_open = bool(inside[0] == 0 or inside[-1] == len(tried) - 1)
    return FreeAsymptote(
        asymptote=round(float(tried[best]), 3),
        interval_95=interval,
        open=is_open,
        prediction=float(predictions[best]),
        prediction_interval_95=(float(reached.min()), float(reached.max())),
        identification=_identification(interval, is_open, len(losses)),
    )


def _identification(interval: tuple[float, float], is_open: bool, points: int) -> str:
    """In words: is the asymptote known better than the range of fixed ones that is tried?"""
    low, high = interval
    tried = max(ASYMPTOTE_STEPS) - min(ASYMPTOTE_STEPS)
    where = f"three parameters on {points} points; 95% profile interval {low:.2f} to {high:.2f}"
    if is_open:
        return f"weakly identified: {where}, which ends only where the search does"
    if high - low > tried:
        return f"weakly identified: {where}, wider than the {tried:.1f} nats of fixed asymptotes tried"
    return f"identified: {where}"


def _needed(noise: Noise, correction: float) -> Mapping[str, float]:
    """The correction with which the rule would have met each finished rung's measured loss."""
    return {rung: miss + correction for rung, miss in noise.rule_misses.items()}


def _otherwise(fit: Fit, noise: Noise, notes: list[str]) -> list[tuple[Choice, str | float, Forecast]]:
    """The choices to try, one changed at a time; adds to `notes` those that these points rule out."""
    published = fit.forecast
    result: list[tuple[Choice, str | float, Forecast]] = []
    lowest = min(point.loss for law in fit.points for point in law.rungs.values())
    for step in ASYMPTOTE_STEPS:
        asymptote = round(published.asymptote + step, 10)
        if asymptote < lowest:
            result.append(("asymptote", asymptote, replace(published, asymptote=asymptote)))
        else:
            notes.append(f"No law with asymptote {asymptote} is tried: a loss of {lowest:.4f} is not above it.")
    if len(published.fitted_on) > MIN_RUNGS:
        for rung in published.fitted_on:
            rest = tuple(other for other in published.fitted_on if other != rung)
            result.append(("leave_one_out", rung, replace(published, fitted_on=rest)))
    else:
        notes.append(f"No rung is left out: {len(published.fitted_on)} rungs are the fewest that a law is fitted on.")
    compute: Literal["without_lm_head", "with_lm_head"]
    compute = "without_lm_head" if published.compute == "with_lm_head" else "with_lm_head"
    result.append(("compute", compute, replace(published, compute=compute)))
    if fit.tail and published.extrapolated:
        needed = _needed(noise, fit.tail.correction).values()
        for correction in dict.fromkeys((0.0, sum(needed) / len(needed), fit.tail.correction)):
            rule = replace(published.extrapolated, correction=correction)
            result.append(("correction", correction, replace(published, extrapolated=rule)))
    return result
