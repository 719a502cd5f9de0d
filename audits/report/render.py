"""The report's document → HTML that stands alone, and Markdown. Templates escape everything that came from a record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from audits.report.document import Json, link
from repro import __version__

MARKDOWN_SPECIAL = "\\`*_{}[]<>#|~"


class Figure(NamedTuple):
    """A drawing of ours, put into the page as it is. `svg` never holds text of a record that was not escaped."""

    svg: str
    caption: str


def as_html(
    document: Json, figures: tuple[Figure, ...] = (), no_figures: str = "", rerun_figures: tuple[Figure, ...] = ()
) -> str:
    """One page without scripts and without anything to load; `no_figures` says why there are none."""
    drawn, rerun_drawn = (
        [{"svg": Markup(figure.svg), "caption": figure.caption} for figure in one]  # our own drawing
        for one in (figures, rerun_figures)
    )
    page = _environment().get_template("report.html.jinja")
    return page.render(report=document, figures=drawn, no_figures=no_figures, rerun_figures=rerun_drawn)


def as_markdown(document: Json) -> str:
    """The same for a terminal, an issue or a pull request."""
    return _environment().get_template("report.md.jinja").render(report=document)


def as_index(document: Json, summary: Mapping[str, str], files: Mapping[str, list[str]]) -> str:
    """The page that links everything a reproduction made, stage by stage."""
    return _environment().get_template("index.html.jinja").render(report=document, summary=summary, files=files)


def as_track(document: Json, figures: tuple[Figure, ...] = ()) -> str:
    """The page on forecast and measurements, from the object that `track --json` prints. Stands alone, as `as_html`."""
    drawn = [{"svg": Markup(figure.svg), "caption": figure.caption} for figure in figures]  # our own drawing
    return _environment().get_template("track.html.jinja").render(track=document, figures=drawn)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("audits.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["version"] = __version__
    environment.filters |= {
        "percent": _percent,
        "number": _number,
        "numbered": _numbered,
        "side_by_side": _side_by_side,
        "link": link,
        "plain": _plain,
        "loss": lambda value: "" if value is None else f"{value:.4f}",
        "signed": lambda value: f"{value:+.4f}",
        "share": lambda value: f"{value:.0%}",
        "fraction": lambda value: f"{value:.2%}" if value >= 0.001 else f"{value:.1e}",
        "miniature": _miniature,
        "scope": _scope,
    }
    return environment


def _percent(value: float) -> str:
    return f"{value:+.3%}" if abs(value) < 0.1 else f"{value:+.1%}"


def _numbered(claims: list[Json]) -> dict[str, int]:
    """Place in the list of all claims, by id: what a link inside the page points to."""
    return {claim["id"]: number for number, claim in enumerate(claims, start=1)}


def _side_by_side(report: Json) -> list[Json]:
    """Every quantity, in each scope, that is published twice or more: its values with their claims, and the finding."""
    found = {(one["quantity"], _scope(one["scope"])): one["id"] for one in reversed(report["findings"])}
    rows: dict[tuple[str, str], Json] = {}
    for claim in report["claims"]:
        key = (claim["quantity"], _scope(claim["scope"]))
        row = rows.setdefault(
            key, {"label": claim["label"], "scope": key[1], "finding": found.get(key), "values": {}, "claims": 0}
        )
        unit = claim["unit"] if claim["unit"] != "fraction" else ""
        row["values"].setdefault(f"{claim['printed']} {unit}".strip(), []).append(claim)
        row["claims"] += 1
    return [row for row in rows.values() if row["claims"] > 1]


def _number(value: float | int | None, unit: str = "") -> str:
    """A number with its unit; a fraction as a percentage."""
    if unit == "fraction" and value is not None:
        return f"{100 * value:.6g}%"
    return f"{_digits(value)} {unit}".strip()


def _digits(value: float | int | None) -> str:
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**16 else f"{value:.6g}"
    return "" if value is None else f"{value:.10g}"


def _plain(text: Any) -> str:
    """Text of a record inside Markdown: one line, in which nothing is markup."""
    return "".join(f"\\{letter}" if letter in MARKDOWN_SPECIAL else letter for letter in " ".join(str(text).split()))


def _miniature(forecast: Json) -> str:
    """In words, what the law through the smaller rungs said of the largest, and what came of it."""
    low, high = forecast["bootstrap_95"]
    text = (
        f"The law through the smaller rungs (asymptote {forecast['asymptote']:.4f}, exponent {forecast['alpha']:.4f}) "
        f"forecasts {forecast['prediction']:.4f} nats a token at the end of the largest, 95% by bootstrap {low:.4f} to "
        f"{high:.4f}."
    )
    if forecast["target"] and forecast["target"][-1]["fraction"] == 1:
        last = forecast["target"][-1]
        hit = "inside that interval" if low <= last["measured"] <= high else "outside of that interval"
        text += f" Measured: {last['measured']:.4f}, {last['residual']:+.4f} from the forecast, {hit}."
    if forecast["published_alpha"] is not None:
        text += f" The published law's exponent is {forecast['published_alpha']:.4f}."
    if forecast["entropy"]:
        truth = forecast["entropy"]
        least, most = truth["free_asymptote_interval_95"]
        text += (
            f" The data's entropy rate is {truth['rate']:.4f}; the same fit with a free asymptote finds "
            f"{truth['free_asymptote']:.3f} ({least:.2f} to {most:.2f})."
        )
    return text


def _scope(scope: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in scope.items())
