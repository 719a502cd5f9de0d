"""`marin-repro track`: the published forecast against the big run's measurements, as tables, JSON, and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from repro.ladder.frozen import Held
    from repro.ladder.track import Track
    from repro.ladder.trends import Statement
    from repro.record.facts import Record

PAGE, RESULT = "track.html", "track.json"


def track(
    record: Annotated[
        Path | None, typer.Option(help="Folder of the record. Default: the built-in one.", show_default=False)
    ] = None,
    frozen: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hold a forecast frozen by fit --freeze as well.", show_default=False),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Measurements for --frozen. Default: the record's.", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for track.html and track.json.", show_default=False)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out the notes.")] = False,
) -> None:
    """Hold the published forecast against what was measured.

    Along the run's history, with which points are comparable and why others are not, what was said of gradient norm and
    drops, and the end its pace leads to. After fetch, --record follows the live run.

    Example: marin-repro track --out track
    """
    from repro.cli.audit import refuse_inside
    from repro.errors import UsageError
    from repro.files import canonical_json, write_atomically
    from repro.ladder.track import track_record
    from repro.record.facts import load_record

    if points is not None and frozen is None:
        raise UsageError("--points are held against a frozen forecast: name it with --frozen.")
    facts = load_record(record)
    if out is not None:
        refuse_inside(facts, out)
    tracked = track_record(facts)
    held = _hold(frozen, points, facts, tracked) if frozen is not None else None
    found = document(facts, tracked, read_statements(facts), held)
    if out is not None:
        write_atomically(out / PAGE, page(found, tracked))
        write_atomically(out / RESULT, canonical_json(found))  # last: its presence means that both are there
    if json_output:
        typer.echo(canonical_json(found), nl=False)
    else:
        _print_tables(found)
    if not quiet:
        for note in found["notes"]:
            typer.echo(_printable(note), err=True)
        if out is not None:
            typer.echo(f"page: {out}/{PAGE}", err=True)


def document(facts: Record, tracked: Track, statements: tuple[Statement, ...], held: Held | None) -> dict[str, Any]:
    """The `track` object of the command-line contract."""
    from repro import __version__
    from repro.ladder import trends
    from repro.ladder.pace import project_end

    planned, warm_up = tracked.study.fit.forecast.target_steps, tracked.recipe.warmup_steps
    pace = project_end(facts, tracked.recipe, planned, statements)
    conditions = [one for one in statements if one.quantity.startswith("forecast.") and one.low is None]
    return {
        "record": facts.run.name,
        "run": facts.run.title,
        "snapshot": facts.run.snapshot.isoformat(),
        "version": __version__,
        **tracked.as_json(),
        "evaluations_from": _where_from(facts, "hero_evaluations.csv"),
        "forecast_from": _where_from(facts, "ladder_grid.csv"),
        "conditions": [one.as_json() for one in conditions],
        "trends": {
            trend.metric: trend.as_json()
            for trend in (judge(facts, planned, warm_up, statements) for judge in (trends.gradient_norm, trends.drops))
        },
        "pace": pace.as_json() if pace else None,
        "frozen": held.as_json() if held else None,
        "notes": [*tracked.study.fit.notes, *tracked.notes, *(pace.notes if pace else ())],
    }


def _where_from(facts: Record, name: str) -> dict[str, Any]:
    """Where a table comes from, what it lacks and how it was checked, as the record says."""
    from audits.report.document import link

    file = facts.file(name)
    sources = zip(file.sources, map(link, file.urls), strict=True)
    return {
        "file": name,
        "sources": [{"source": source, "address": address} for source, address in sources],
        "date": file.date,
        "left_out": file.left_out,
        "checked": file.checked,
    }


def page(found: dict[str, Any], tracked: Track) -> str:
    """The object as a page that stands alone."""
    from audits.report.render import Figure, as_track
    from repro.ladder.figures import describe_residuals, draw_residuals

    return as_track(found, (Figure(draw_residuals(tracked), describe_residuals(tracked)),))


def read_statements(facts: Record) -> tuple[Statement, ...]:
    """What the record's claims state, as `repro.ladder` takes it; none where it has no claims."""
    from audits.claims import read_ledger
    from audits.report.document import link
    from repro.ladder.trends import Statement

    if facts.claims is None:
        return ()
    ledger, result = read_ledger(facts.claims), []
    for claim in ledger.claims:
        named = isinstance(claim.value, str)
        low, high = (None, None) if isinstance(claim.value, str) else (float(claim.value.low), float(claim.value.high))
        result.append(
            Statement(
                id=claim.id,
                quantity=claim.quantity,
                label=ledger.quantities[claim.quantity].label,
                printed=str(claim.value) if named else claim.printed,
                low=low,
                high=high,
                scope=dict(claim.scope),
                quote=claim.quote,
                note=claim.note,
                date=claim.date.text,
                citation=claim.source.citation,
                address=link(claim.source.address),
            )
        )
    return tuple(result)


def _hold(frozen: Path, points: Path | None, facts: Record, tracked: Track) -> Held:
    from repro.ladder.forecast import read_forecast
    from repro.ladder.frozen import hold_points, hold_record
    from repro.ladder.points import read_points

    forecast = read_forecast(frozen)
    if points is None:
        return hold_record(forecast, facts, tracked)
    return hold_points(forecast, read_points(points, forecast.form.columns))


def _print_tables(found: dict[str, Any]) -> None:
    """The points, then why some are not comparable, what was said of the run's course, and the pace."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    table = _table("step", "at", "loss", "forecast", "residual", "other choices", "comparable")
    for one in found["points"]:
        if one["predicted"] is not None:
            low, high = one["band"]
            when = (f"{one['step']:,}", f"{one['fraction']:.1%}")
            table.add_row(*when, *_losses(one), f"{low:.3f} to {high:.3f}", "yes" if one["comparable"] else "no")
    console.print(table)
    for kind in ("from_the_start", "changes"):
        for one in found[kind]:
            console.print(Text(_printable(f"From step {one['from_step']:,}: {one['why']}.")))
    for trend in found["trends"].values():
        for one in trend["statements"]:
            said = f"{one['label']}: {one['printed']} ({one['claim']}, {one['date']})"
            console.print(Text(_printable(f"{said}: {one['verdict']}; {one['found']}.")))
    if found["frozen"]:
        table = _table("frozen, at", "measured", "forecast", "difference", "comparable")
        for one in found["frozen"]["points"]:
            place = ", ".join(f"{name} {value:.4g}" for name, value in one["place"].items())
            table.add_row(place, *_losses(one), "yes" if one["comparable"] else "no")
        console.print(table)
    for one in found["pace"]["projections"] if found["pace"] else ():
        at = f"{one['seconds_per_step']:.2f} s a step, {one['kind']}"
        ends = f"Ends {one['ends'][:10]} at the pace of {one['pace']} ({at}; {one['source']})."
        console.print(Text(_printable(ends)))


def _printable(text: str) -> str:
    """Text of a record on one line of a terminal, to which none of its letters is a command."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _losses(point: dict[str, Any]) -> tuple[str, str, str]:
    return f"{point['measured']:.4f}", f"{point['predicted']:.4f}", f"{point['residual']:+.4f}"


def _table(*headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
