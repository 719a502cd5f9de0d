"""Pictures of the forecast as SVG text: the laws through the rungs, the forecast with what was measured, and a rerun.

Each SVG can be put into a page as it is; `repro.ladder.plot` writes it. `describe_*` says in words what a picture
shows, in numbers computed from the same data, and is its title for screen readers.
"""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING

from repro.ladder.fit import Fit, Law, compare
from repro.ladder.plot import GREY, Dots, Line, Mark, Picture, Rule, as_svg, linear_axis, logarithmic_axis, shade

if TYPE_CHECKING:
    from repro.ladder.rerun import RerunStudy
    from repro.ladder.sensitivity import Study
    from repro.ladder.track import Track
    from repro.record.facts import Record

MARKERS = "osD^vP*X<>"  # one a rung
COMPUTE = {"without_lm_head": "without the LM head", "with_lm_head": "with the LM head"}
BLUE, RED = "#1f5fa8", "#d1495b"  # told apart by lightness too
PROGRESS = "progress (step ÷ planned steps)"
WHOLE = (0.0, 1.03)  # a marker at 100% is not cut


def draw_laws(fit: Fit) -> str:
    """SVG: loss above the asymptote over compute, both logarithmic; one line a mark, the rungs' points on it."""
    asymptote, first = fit.forecast.asymptote, fit.points[0].fraction
    colour = {law.fraction: shade((law.fraction - first) / (1 - first) if first < 1 else 1.0) for law in fit.points}
    marks: list[Mark] = []
    keys: list[Mark] = []
    for law in fit.points:
        ends = [(flops, law.loss_at(flops, asymptote) - asymptote) for flops in (_smallest(law), law.target_flops)]
        marks.append(Line(points=ends, colour=colour[law.fraction], width=1.2))
    for marker, rung in zip(cycle(MARKERS), fit.final.rungs, strict=False):
        for filled in (True, False):  # measured, extrapolated
            laws = [law for law in fit.points if (law.rungs[rung].step is None) != filled]
            if laws:
                points = [(law.rungs[rung].flops, law.rungs[rung].loss - asymptote) for law in laws]
                shades = [colour[law.fraction] for law in laws]
                marks.append(Dots(points=points, colours=shades, shape=marker, filled=filled))
        keys.append(Dots(points=(), colours=(GREY,), shape=marker, label=rung))
    if fit.tail:
        keys.append(Dots(points=(), colours=(GREY,), filled=False, label="extrapolated"))
    ends = [(law.target_flops, law.prediction - asymptote) for law in fit.points]
    marks.append(Dots(points=ends, colours=[colour[law.fraction] for law in fit.points], shape="_", size=5))
    keys.append(Dots(points=(), colours=(GREY,), shape="_", size=5, label=f"forecast, {fit.forecast.target}"))
    shown = [point for mark in marks if not isinstance(mark, Rule) for point in mark.points]
    picture = Picture(
        x=logarithmic_axis(f"compute (FLOPs {COMPUTE[fit.forecast.compute]})", (x for x, _ in shown), _power_of_ten),
        y=logarithmic_axis(
            f"loss − {asymptote:g} (nats/token)", (y for _, y in shown), "{:g}".format, (1, 1.4, 2, 3, 5, 7)
        ),
        marks=marks,
        keys=keys,
        legend="lower left",
        bar="progress of the run",
        bar_low=first,
    )
    return as_svg(picture, "laws", describe_laws(fit))


def draw_forecast(study: Study, record: Record) -> str:
    """SVG: the forecast over progress, the band of other choices, and the target's measured losses on top."""
    fit = study.fit
    fractions = [law.fraction for law in fit.points]
    low, high = zip(*study.band(), strict=True)
    final, (lowest, highest) = fit.final.prediction, study.bootstrap.interval_95
    marks: list[Mark] = [
        _band(fractions, low, high),
        Line(points=[(law.fraction, law.prediction) for law in fit.points], colour=BLUE, label="forecast"),
        Line(points=[(1, lowest), (1, highest)], colour=BLUE, width=1.6),
        Dots(points=[(1, lowest), (1, highest)], colours=(BLUE,), shape="_"),
        Dots(points=[(1, final)], colours=(BLUE,), label=f"{final:.4f}, 95% by bootstrap"),
    ]
    if measured := compare(fit, record.hero_evaluations):
        shown = [(point.fraction, point.measured) for point in measured]
        marks.append(Dots(points=shown, colours=(RED,), size=2.5, label=f"measured, {fit.forecast.target}"))
    marks += _rules(_mixture_changes(fit, record), "its training data changed")
    return as_svg(_over_progress(marks, "loss (nats/token)"), "forecast", describe_forecast(study, record))


def draw_residuals(track: Track) -> str:
    """SVG: measured less forecast over progress, and how far the forecast's other choices lie from it."""
    fit = track.study.fit
    pairs = zip(fit.points, track.study.band(), strict=True)
    low, high = zip(*((low - law.prediction, high - law.prediction) for law, (low, high) in pairs), strict=True)
    marks: list[Mark] = [
        _band([law.fraction for law in fit.points], low, high),
        Line(points=[(WHOLE[0], 0.0), (WHOLE[1], 0.0)], colour=BLUE, label="forecast"),
    ]
    for comparable, marker, label in ((True, "o", "comparable"), (False, "x", "not comparable")):
        shown = [
            (point.fraction, point.residual)
            for point in track.points
            if point.residual is not None and point.comparable == comparable
        ]
        if shown:
            marks.append(Dots(points=shown, colours=(RED,), shape=marker, size=3.5, label=f"measured, {label}"))
    last = max((point.step for point in track.points), default=0)
    seen = sorted({one.from_step for one in track.changes if 0 < one.from_step <= last})
    marks += _rules([step / fit.forecast.target_steps for step in seen], "no longer as launched")
    picture = _over_progress(marks, "measured − forecast (nats/token)", "lower right")
    return as_svg(picture, "residuals", describe_residuals(track))


def describe_residuals(track: Track) -> str:
    """Text in place of the picture of the residuals."""
    shown = [point for point in track.points if point.residual is not None]
    parts = ["Measured loss less forecast over progress, nats a token, with the band of other choices in the fit."]
    for comparable, words in ((True, "comparable"), (False, "not comparable")):
        values = [point.residual for point in shown if point.comparable == comparable and point.residual is not None]
        if values:
            span = f"{min(values):+.4f} to {max(values):+.4f}"
            parts.append(f"{len(values)} {words} points run from {span}, the last {values[-1]:+.4f}.")
    return " ".join(parts)


def draw_rerun(found: RerunStudy) -> str:
    """SVG: held-out losses of one's own rungs over progress, and the largest one's forecast from the others."""
    fit = found.study.fit
    marks: list[Mark] = []
    for number, (run, marker) in enumerate(zip(found.runs, cycle(MARKERS), strict=False)):
        points = [(one.steps_completed / run.steps, one.loss) for one in run.evaluations]
        colour = RED if run.rung == fit.forecast.target else shade(number / max(len(found.runs) - 1, 1))
        marks.append(Line(points=points, colour=colour, width=1.4))
        marks.append(Dots(points=points, colours=(colour,), shape=marker, size=3.5, label=run.rung))
    forecast = [(law.fraction, law.prediction) for law in fit.points]
    marks.append(Line(points=forecast, colour=BLUE, dash="8 4", label=f"forecast, {fit.forecast.target}"))
    if found.entropy:
        marks.append(Rule(colour=GREY, y=found.entropy["rate"], label="entropy of the data"))
    return as_svg(_over_progress(marks, "held-out loss, dropless (nats/token)"), "rerun", describe_rerun(found))


def describe_rerun(found: RerunStudy) -> str:
    """Text in place of the picture of the rerun."""
    ends = ", ".join(f"{run.rung} {run.evaluations[-1].loss:.3f}" for run in found.runs if run.evaluations)
    text = f"Held-out losses without drops over progress; the last ones, in nats a token: {ends}."
    if found.comparisons:
        last = found.comparisons[-1]
        text += (
            f" The law through the smaller rungs forecasts {last.predicted:.3f} for {found.study.fit.forecast.target} "
            f"at {last.fraction:.0%}; measured were {last.measured:.3f}, {last.residual:+.3f}."
        )
    if found.entropy:
        text += f" The data's entropy rate is {found.entropy['rate']:.3f}."
    return text


def describe_laws(fit: Fit) -> str:
    """Text in place of the picture of the laws."""
    first, final = fit.points[0], fit.final
    return (
        f"Loss minus {fit.forecast.asymptote:g} over compute, both logarithmic: {len(fit.points)} straight lines, one "
        f"at each mark of progress, through the losses of {', '.join(final.rungs)} and on to {fit.forecast.target} at "
        f"{fit.extrapolation_factor:.0f} times the compute of the largest rung. At {first.fraction:.0%} the exponent "
        f"is {first.alpha:.4f} and the forecast {first.prediction:.4f} nats a token; at 100% they are "
        f"{final.alpha:.4f} and {final.prediction:.4f}."
    )


def describe_forecast(study: Study, record: Record) -> str:
    """Text in place of the picture of the forecast."""
    fit = study.fit
    low, high = study.band()[-1]
    text = (
        f"The forecast of the loss of {fit.forecast.target} falls from {fit.points[0].prediction:.4f} nats a token at "
        f"{fit.points[0].fraction:.0%} of the run to {fit.final.prediction:.4f} at 100%, where other choices in the "
        f"fit give {low:.4f} to {high:.4f}."
    )
    if measured := compare(fit, record.hero_evaluations):
        residuals = [point.residual for point in measured]
        text += (
            f" {len(measured)} measured losses from {measured[0].fraction:.1%} to {measured[-1].fraction:.1%} differ "
            f"from it by {min(residuals):+.4f} to {max(residuals):+.4f}, the last by {residuals[-1]:+.4f}."
        )
    return text


def _smallest(law: Law) -> float:
    """Compute of the smallest rung, where the law's line begins."""
    return min(point.flops for point in law.rungs.values())


def _power_of_ten(value: float) -> str:
    """10²⁰ as plain text."""
    return "10" + str(round(math.log10(value))).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))


def _mixture_changes(fit: Fit, record: Record) -> list[float]:
    """Fractions at which the target's weights had changed by its last evaluation."""
    last = max((evaluation.step for evaluation in record.hero_evaluations), default=0)
    return [
        stage.from_step / fit.forecast.target_steps
        for data in record.training_data
        if data.rung == fit.forecast.target and data.status == "ran"
        for stage in data.stages
        if 0 < stage.from_step <= last
    ]


def _over_progress(marks: list[Mark], label: str, legend: str = "upper right") -> Picture:
    """A picture over the run's progress, its other axis around all that is drawn."""
    levels = [one.y for one in marks if isinstance(one, Rule) and one.y is not None]
    for one in marks:
        if not isinstance(one, Rule):
            levels += [y for _, y in one.points]
        if isinstance(one, Line):
            levels += [y for _, y in one.upper]
    return Picture(
        x=linear_axis(PROGRESS, (), "{:.0%}".format, WHOLE), y=linear_axis(label, levels), marks=marks, legend=legend
    )


def _band(fractions: list[float], low: tuple[float, ...], high: tuple[float, ...]) -> Line:
    lower, upper = (list(zip(fractions, edge, strict=True)) for edge in (low, high))
    return Line(points=lower, upper=upper, colour=BLUE, label="other choices in the fit")


def _rules(fractions: list[float], label: str) -> list[Mark]:
    """Upright lines, of which the legend names one."""
    return [Rule(colour=GREY, x=at, label="" if number else label) for number, at in enumerate(fractions)]
