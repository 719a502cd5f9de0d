"""`marin-repro fit --points`: a law fitted to one's own points; its tables, and the frozen forecast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from repro.ladder.point_fit import PointFit
    from repro.ladder.profile import Interval


def fit_own_points(
    csv: Path,
    form_name: str,
    *,
    asymptote: float | None,
    at: Sequence[str],
    seed: int | None,
    freeze_to: Path | None,
    say: Callable[[str], None],
    json_output: bool,
) -> str:
    """Fit, print, freeze; returns the JSON text. Raises UsageError, FitError and OutputError."""
    from repro.errors import UsageError
    from repro.files import canonical_json
    from repro.ladder.forecast import freeze, refuse_existing
    from repro.ladder.forms import FORMS, example_place, parse_place
    from repro.ladder.point_fit import fit_points
    from repro.ladder.points import read_points
    from repro.ladder.resampling import DRAWS, SEED

    if form_name not in FORMS:
        raise UsageError(f"no form {form_name!r}. The forms are {', '.join(FORMS)}.")
    form = FORMS[form_name]
    places = [parse_place(text, form) for text in at]
    if freeze_to is not None:
        refuse_existing(freeze_to)
        if not places:
            raise UsageError(f"--freeze has nothing to forecast: say where, as --at {example_place(form)}.")
    points = read_points(csv, form.columns)
    say(f"{csv}: {len(points)} points, form {form.name}; fitting, and {DRAWS:,} draws of the bootstrap.")
    found = fit_points(points, form, asymptote=asymptote, places=places, seed=SEED if seed is None else seed)
    result = canonical_json(found.as_json())
    if freeze_to is not None:
        frozen = freeze(found, freeze_to)
        say(f"Frozen: {freeze_to}, content sha256 {frozen.sha256}. Publish the digest to prove the date.")
    if json_output:
        typer.echo(result, nl=False)
    else:
        _print(found)
    for note in found.notes:
        say(note)
    return result


def _print(found: PointFit) -> None:
    from rich.console import Console

    console, seen = Console(highlight=False), found.identification
    console.print(found.form.formula)
    console.print(f"{seen.verdict.capitalize()}; condition number {seen.condition_number:.3g}.")
    for reason in seen.reasons:
        console.print(f"  {reason}")
    if seen.verdict == "not identified":
        console.print("What follows is one of many laws that fit these points as well.")
    console.print(_coefficients(found))
    if found.held_out:
        console.print(_held_out(found))
    if found.predictions or found.asymptotes:
        console.print(_predictions(found))


def _coefficients(found: PointFit) -> Table:
    """In every digit: rounding alone moved a published law's forecast by 0.016 nats (70e9 params, 1.4e12 tokens)."""
    table = _table("coefficient", "value", "bootstrap sd", "95% by profile")
    for name, value in found.coefficients.items():
        error = f"{found.bootstrap.standard_errors[name]:.4g}" if found.bootstrap and name in found.profile else ""
        fixed = name == "E" and found.asymptote is not None
        ends = _ends(found.profile[name]) if name in found.profile else ""
        table.add_row(name, repr(value), "fixed" if fixed else error, ends)
    return table


def _held_out(found: PointFit) -> Table:
    """Is the law's forecast of larger compute right where it can be asked?"""
    table = _table("largest left out", "of", "times the compute kept", "mean error", "rms error")
    for row in found.held_out:
        factor, mean = f"{row.extrapolation_factor:.3g}", f"{row.mean_error:+.4f}"
        table.add_row(str(row.points), str(len(found.points)), factor, mean, f"{row.rms_error:.4f}")
    return table


def _predictions(found: PointFit) -> Table:
    places = [", ".join(f"{column} {value:.4g}" for column, value in row.place.items()) for row in found.predictions]
    if not found.asymptotes:
        table = _table("forecast at", "loss", "95% by bootstrap", "times the compute")
        for place, row in zip(places, found.predictions, strict=True):
            interval = _ends(row.interval_95) if row.interval_95 else ""
            table.add_row(place, f"{row.loss:.6f}", interval, f"{row.extrapolation_factor:.3g}")
        return table
    table = _table("asymptote", "alpha", *places)
    table.add_row(
        f"{found.coefficients['E']:g}, as asked",
        f"{found.coefficients['alpha']:.6f}",
        *(f"{row.loss:.6f}" + (f" ({_ends(row.interval_95)})" if row.interval_95 else "") for row in found.predictions),
    )
    for other in found.asymptotes:
        label = f"{other.asymptote:.4f}, free" if other.free else f"{other.asymptote:g}"
        table.add_row(label, f"{other.coefficients['alpha']:.6f}", *(f"{loss:.6f}" for loss in other.predictions))
    return table


def _ends(interval: Interval | tuple[float, float]) -> str:
    low, high = ("open" if end is None else f"{end:.4g}" for end in interval)
    return f"{low} to {high}"


def _table(*headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table
