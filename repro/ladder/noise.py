"""How far the forecast's points may be off, and what that does to the forecast: a parametric bootstrap at 100%.

Two errors are put into the points, both measured on the record itself:

    rung noise              standard deviation of a rung's losses about the smooth curve a + b·g + c·ln g + d/g over its
                            marks g (n marks, n - 4 degrees of freedom)
    extrapolation error     root mean square of what the published rule (line through the window, plus correction)
                            misses on the rungs that did reach 100%

Comes in: a `Fit`. Goes out: `Noise`, and a `Bootstrap` that says what it assumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from repro.errors import FitError
from repro.ladder.curves import GRID, fit_line
from repro.ladder.fit import Fit

CURVE_TERMS = 4  # a, b, c, d. Neighbouring residuals correlate by -0.42 to -0.02; without d/g by 0.25 to 0.51: a trend
MIN_MARKS = CURVE_TERMS + 2
LATE = 0.75  # the last quarter of a run
SEED = 8435  # the issue that registered the forecast; any other does
DRAWS = 10_000


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations in nats a token."""

    rungs: Mapping[str, float]
    late: Mapping[str, float]  # for comparison: rms residual of the last quarter alone, of each finished rung
    extrapolated_rung: str | None
    rule_misses: Mapping[str, float]  # measured - extrapolated at 100%, correction included, of each finished rung
    extrapolation_error: float | None

    def at_the_end(self, rung: str) -> float:
        """Standard deviation of the rung's point at 100%."""
        if rung == self.extrapolated_rung:
            assert self.extrapolation_error is not None
            return self.extrapolation_error
        return self.rungs[rung]


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Spread of the forecast at 100% over `draws` of noisy points; nats a token."""

    seed: int
    draws: int
    standard_deviation: float
    interval_68: tuple[float, float]
    interval_95: tuple[float, float]
    noise: Noise
    assumes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The key `bootstrap` of the command line's `fit` object."""
        noise = self.noise
        return {
            "kind": "parametric",
            "seed": self.seed,
            "draws": self.draws,
            "standard_deviation": self.standard_deviation,
            "interval_68": list(self.interval_68),
            "interval_95": list(self.interval_95),
            "rung_noise": dict(noise.rungs),
            "rung_noise_late": dict(noise.late),
            "extrapolation_error": {
                "rung": noise.extrapolated_rung,
                "standard_deviation": noise.extrapolation_error,
                "misses_of_finished_rungs": dict(noise.rule_misses),
            }
            if noise.extrapolated_rung
            else None,
            "assumes": list(self.assumes),
        }


def measure_noise(fit: Fit) -> Noise:
    """Both errors of the points. FitError for a rung of fewer than six measured marks."""
    rungs, late = {}, {}
    for rung in fit.final.rungs:
        measured = [(law.fraction, law.rungs[rung]) for law in fit.points if law.rungs[rung].step is not None]
        if len(measured) < MIN_MARKS:
            raise FitError(
                f"{GRID}, {rung}: {len(measured)} measured marks up to step {measured[-1][1].step}; telling its noise "
                f"from its curve needs {MIN_MARKS}. Add evaluations, or choose a smaller [forecast] mark."
            )
        fractions = np.array([fraction for fraction, _ in measured])
        residuals = _about_a_smooth_curve(fractions, np.array([point.loss for _, point in measured]))
        rungs[rung] = float(np.sqrt(residuals @ residuals / (len(measured) - CURVE_TERMS)))
        if fit.final.rungs[rung].step is not None:
            late[rung] = float(np.sqrt(np.mean(residuals[fractions > LATE] ** 2)))
    misses = _rule_misses(fit)
    return Noise(
        rungs=rungs,
        late=late,
        extrapolated_rung=fit.tail.rung if fit.tail else None,
        rule_misses=misses,
        extrapolation_error=float(np.sqrt(np.mean(np.square(list(misses.values()))))) if misses else None,
    )


def bootstrap(fit: Fit, noise: Noise, *, seed: int = SEED, draws: int = DRAWS) -> Bootstrap:
    """Draw the points at 100% anew with their errors, fit each draw as published, and read the target off."""
    names, final, asymptote = list(fit.final.rungs), fit.final, fit.forecast.asymptote
    losses = np.array([final.rungs[name].loss for name in names])  # [rung]
    spreads = np.array([noise.at_the_end(name) for name in names])  # [rung]
    drawn = losses + spreads * np.random.default_rng(seed).standard_normal((draws, len(names)))  # [draw, rung]
    if drawn.min() <= asymptote:
        rung = names[int(drawn.min(axis=0).argmin())]
        raise FitError(
            f"{GRID}, {rung} at {final.fraction:.0%} (step {final.rungs[rung].step}): the loss lies within its noise "
            f"of the asymptote {asymptote}. Choose a lower asymptote in [forecast]."
        )
    x = np.log([final.rungs[name].flops for name in names])
    away = x - x.mean()
    weights = 1 / len(names) + (np.log(final.target_flops) - x.mean()) * away / (away @ away)  # of ln(L - E), [rung]
    predictions = asymptote + np.exp(np.log(drawn - asymptote) @ weights)  # [draw]
    low95, low68, high68, high95 = np.percentile(predictions, [2.5, 16, 84, 97.5]).tolist()
    return Bootstrap(
        seed=seed,
        draws=draws,
        standard_deviation=float(predictions.std(ddof=1)),
        interval_68=(low68, high68),
        interval_95=(low95, high95),
        noise=noise,
        assumes=_assumptions(fit, noise),
    )


def _about_a_smooth_curve(g: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Residuals [mark] of losses [mark], in nats a token, about their least-squares curve over fractions g [mark]."""
    terms = np.stack([np.ones_like(g), g, np.log(g), 1 / g], axis=1)  # [mark, term]
    return losses - terms @ np.linalg.lstsq(terms, losses, rcond=None)[0]


def _rule_misses(fit: Fit) -> dict[str, float]:
    """Measured minus extrapolated loss at 100%, had each finished rung stopped where the extrapolated one did."""
    if fit.tail is None:
        return {}
    misses = {}
    window = [law for law in fit.points if law.fraction in fit.tail.window]
    for rung, end in fit.final.rungs.items():
        if end.step is not None:
            line = fit_line([law.fraction for law in window], [law.rungs[rung].loss for law in window])
            extrapolated = line.slope * fit.final.fraction + line.intercept + fit.tail.correction
            misses[rung] = end.loss - extrapolated
    return misses


def _assumptions(fit: Fit, noise: Noise) -> tuple[str, ...]:
    early = [
        f"{rung} {late:.4f} for {noise.rungs[rung]:.4f}"
        for rung, late in noise.late.items()
        if late < noise.rungs[rung]
    ]
    smaller = (
        f" The last quarter alone gives less ({', '.join(early)}): the interval is rather too wide." if early else ""
    )
    said = [
        f"The law and its asymptote {fit.forecast.asymptote} hold up to {fit.extrapolation_factor:.0f} times the "
        "compute of the largest rung: an error of the law itself is not in the interval.",
        "A rung's noise is normal, independent of the other rungs', and as large at 100% as over the whole run."
        + smaller,
        "What the rungs and the target do not share, such as training data, is not in the interval.",
    ]
    if noise.extrapolated_rung:
        misses = noise.rule_misses.values()
        bias = " All have one sign: it is a bias rather than scatter." if min(misses) * max(misses) > 0 else ""
        said.insert(
            2,
            f"The error of {noise.extrapolated_rung}'s extrapolated loss takes the place of its noise. It is normal "
            f"about zero, as large as the rms of what the same rule misses on the {len(misses)} finished rungs "
            f"({noise.extrapolation_error:.4f}; {', '.join(f'{miss:+.4f}' for miss in misses)}).{bias}",
        )
    return tuple(said)
