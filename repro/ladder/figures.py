"""Pictures of the forecast as SVG text: the laws through the rungs, the forecast with what was measured, and a rerun.

Each SVG stands alone (glyphs are outlines, white background) and can be put into a page as it is: no XML prolog, ids
with the picture's own prefix, a title for screen readers. Equal input gives equal bytes: fixed salt for ids, no date.
`describe_*` says in words what a picture shows, in numbers computed from the same data.

Imports matplotlib: commands import this module only where they draw.
"""

from __future__ import annotations

import html
import io
import math
import re
from itertools import cycle
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from repro.ladder.fit import Fit, Law, compare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from repro.ladder.rerun import RerunStudy
    from repro.ladder.sensitivity import Study
    from repro.ladder.track import Track
    from repro.record.facts import Record

SIZE = (6.4, 4.4)  # inches; 461 points wide, so that on a phone of 390 pixels text keeps 5/6 of its size or more
STYLE: Any = {  # Any: matplotlib types its keys one by one
    "font.size": 13,
    "legend.fontsize": 11.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "text.parse_math": False,  # a rung's name may hold a dollar
    "svg.fonttype": "path",
    "svg.hashsalt": "marin-repro",
}
MARKERS = "osD^vP*X<>"  # one a rung
COMPUTE = {"without_lm_head": "without the LM head", "with_lm_head": "with the LM head"}
BLUE, RED, GREY = "#1f5fa8", "#d1495b", "#6b6b6b"  # told apart by lightness too


def draw_laws(fit: Fit) -> str:
    """SVG: loss above the asymptote over compute, both logarithmic; one line a mark, the rungs' points on it."""
    asymptote = fit.forecast.asymptote
    with matplotlib.rc_context():
        figure, axes = _canvas(right=0.94)
        progress, shades = Normalize(fit.points[0].fraction, 1), matplotlib.colormaps["viridis_r"].resampled(48)
        colours = ListedColormap(shades(range(5, 48)))  # without the palest, lost on white
        colour = {law.fraction: colours(progress(law.fraction)) for law in fit.points}
        lines = [
            [(flops, law.loss_at(flops, asymptote) - asymptote) for flops in (_smallest(law), law.target_flops)]
            for law in fit.points
        ]
        axes.add_collection(LineCollection(lines, colors=list(colour.values()), linewidths=0.9))
        for marker, rung in zip(cycle(MARKERS), fit.final.rungs, strict=False):
            for face in (None, "white"):  # measured, extrapolated
                laws = [law for law in fit.points if (law.rungs[rung].step is None) == (face == "white")]
                axes.scatter(
                    [law.rungs[rung].flops for law in laws],
                    [law.rungs[rung].loss - asymptote for law in laws],
                    s=18, marker=marker, edgecolors=[colour[law.fraction] for law in laws],
                    facecolors=face or [colour[law.fraction] for law in laws], zorder=3,
                )  # fmt: skip
            axes.plot([], [], marker, color=GREY, markersize=5, label=rung)
        if fit.tail:
            axes.plot([], [], "o", color=GREY, markerfacecolor="white", markersize=5, label="extrapolated")
        axes.scatter(
            [law.target_flops for law in fit.points],
            [law.prediction - asymptote for law in fit.points],
            s=70, marker="_", c=list(colour.values()),
        )  # fmt: skip
        axes.plot([], [], "_", color=GREY, markersize=9, label=f"forecast, {fit.forecast.target}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.4, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda flops, _: _power_of_ten(flops)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(f"compute (FLOPs {COMPUTE[fit.forecast.compute]})")
        axes.set_ylabel(f"loss − {asymptote:g} (nats/token)")
        axes.legend(loc="lower left", frameon=True, framealpha=0.9, edgecolor="none", handletextpad=0.4)
        bar = figure.colorbar(ScalarMappable(progress, colours), ax=axes, format=PercentFormatter(1, 0), pad=0.02)
        assert bar.solids is not None
        bar.solids.set_edgecolor("face")  # no hairlines between the colours
        bar.set_label("progress of the run")
        return _svg(figure, "laws", describe_laws(fit))


def draw_forecast(study: Study, record: Record) -> str:
    """SVG: the forecast over progress, the band of other choices, and the target's measured losses on top."""
    fit = study.fit
    with matplotlib.rc_context():
        figure, axes = _canvas()
        fractions = [law.fraction for law in fit.points]
        low, high = zip(*study.band(), strict=True)
        axes.fill_between(fractions, low, high, color=BLUE, alpha=0.16, linewidth=0, label="other choices in the fit")
        axes.plot(fractions, [law.prediction for law in fit.points], "-", color=BLUE, linewidth=1.6, label="forecast")
        final, (lowest, highest) = fit.final.prediction, study.bootstrap.interval_95
        axes.errorbar(
            [1], [final], [[final - lowest], [highest - final]],
            fmt="o", color=BLUE, markersize=4, capsize=4, label=f"{final:.4f}, 95% by bootstrap",
        )  # fmt: skip
        if measured := compare(fit, record.hero_evaluations):
            shown = [(point.fraction, point.measured) for point in measured]
            label = f"measured, {fit.forecast.target}"
            axes.plot(*zip(*shown, strict=True), ".", color=RED, markersize=5, label=label)
        for number, fraction in enumerate(_mixture_changes(fit, record)):
            once = "" if number else "its training data changed"  # in the legend
            axes.axvline(fraction, color=GREY, linestyle=":", linewidth=1.3, label=once)
        axes.set_xlim(0, 1.03)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("progress (step ÷ planned steps)")
        axes.set_ylabel("loss (nats/token)")
        axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
        return _svg(figure, "forecast", describe_forecast(study, record))


def draw_residuals(track: Track) -> str:
    """SVG: measured less forecast over progress, and how far the forecast's other choices lie from it."""
    fit = track.study.fit
    with matplotlib.rc_context():
        figure, axes = _canvas()
        figure.subplots_adjust(left=0.17)  # its ticks have signs
        fractions = [law.fraction for law in fit.points]
        pairs = zip(fit.points, track.study.band(), strict=True)
        low, high = zip(*((low - law.prediction, high - law.prediction) for law, (low, high) in pairs), strict=True)
        axes.fill_between(fractions, low, high, color=BLUE, alpha=0.16, linewidth=0, label="other choices in the fit")
        axes.axhline(0, color=BLUE, linewidth=1.6, label="forecast")
        for comparable, marker, label in ((True, "o", "comparable"), (False, "x", "not comparable")):
            shown = [
                (point.fraction, point.residual)
                for point in track.points
                if point.residual is not None and point.comparable == comparable
            ]
            if shown:
                axes.plot(*zip(*shown, strict=True), marker, color=RED, markersize=5, label=f"measured, {label}")
        last = max((point.step for point in track.points), default=0)
        seen = sorted({one.from_step for one in track.changes if 0 < one.from_step <= last})
        for number, step in enumerate(seen):
            once = "" if number else "no longer as launched"  # in the legend
            axes.axvline(step / fit.forecast.target_steps, color=GREY, linestyle=":", linewidth=1.3, label=once)
        axes.set_xlim(0, 1.03)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("progress (step ÷ planned steps)")
        axes.set_ylabel("measured − forecast (nats/token)")
        axes.legend(loc="lower right", frameon=True, framealpha=0.9, edgecolor="none")
        return _svg(figure, "residuals", describe_residuals(track))


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
    with matplotlib.rc_context():
        figure, axes = _canvas()
        shades = matplotlib.colormaps["viridis_r"].resampled(len(found.runs) + 2)
        for number, (run, marker) in enumerate(zip(found.runs, cycle(MARKERS), strict=False)):
            points = [(one.steps_completed / run.steps, one.loss) for one in run.evaluations]
            colour = RED if run.rung == fit.forecast.target else shades(number + 1)
            axes.plot(*zip(*points, strict=True), marker + "-", color=colour, markersize=4, linewidth=1, label=run.rung)
        fractions, losses = zip(*((law.fraction, law.prediction) for law in fit.points), strict=True)
        axes.plot(fractions, losses, "--", color=BLUE, linewidth=1.6, label=f"forecast, {fit.forecast.target}")
        if found.entropy:
            axes.axhline(found.entropy["rate"], color=GREY, linestyle=":", linewidth=1.3, label="entropy of the data")
        axes.set_xlim(0, 1.03)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("progress (step ÷ planned steps)")
        axes.set_ylabel("held-out loss, dropless (nats/token)")
        axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none")
        return _svg(figure, "rerun", describe_rerun(found))


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
    """10²⁰ as plain text; matplotlib's own takes a quarter of the drawing time for its typesetting."""
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


def _canvas(right: float = 0.97) -> tuple[Figure, Axes]:
    """An empty picture in our style, whatever the user's own matplotlibrc says. Within an rc_context."""
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=SIZE)
    figure.subplots_adjust(left=0.12, right=right, bottom=0.15, top=0.98)  # constrained layout draws all twice
    return figure, figure.add_subplot()


def _svg(figure: Figure, name: str, description: str) -> str:
    """The picture as an <svg> element; ids begin with its name, so that two of them fit into one page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    opening, rest = svg.split(">", 1)
    opening = opening.replace("<svg", f'<svg role="img" aria-labelledby="{name}-title"', 1)
    return f'{opening}>\n <title id="{name}-title">{html.escape(description)}</title>{rest}'
