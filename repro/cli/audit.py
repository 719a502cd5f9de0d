"""`marin-repro audit`: hold the record's claims against each other, and write the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from audits.report.render import Figure
    from repro.ladder.rerun import RerunStudy
    from repro.record.facts import Record

DEFAULT_OUT = Path("audit")
REPORTS = ("report.html", "report.md", "report.json")
NEVER = "never"


def audit(
    record: Annotated[
        Path | None, typer.Option(help="Folder of the record to audit. Default: the built-in one.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report. Default: audit; with --json none.", show_default=False)
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN_DIR ...", help="Add a chapter on one's own runs, of one scale.", show_default=False),
    ] = None,
    more_runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN_DIR", hidden=True)] = None,  # --runs A B C
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Exit with 1 on a finding this grave: error, warning, explained, note.")
    ] = NEVER,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Report where the public record contradicts itself.

    Its claims are held against each other, and against what follows from them.

    Example: marin-repro audit --out audit --fail-on error
    """
    from repro.errors import UsageError
    from repro.files import canonical_json, write_atomically
    from repro.record.facts import load_record

    worst = severities_at_or_above(fail_on)
    facts = load_record(record)
    refuse_inside(facts, out or DEFAULT_OUT)
    if more_runs and not runs:
        raise UsageError(f"what is {more_runs[0]} for? Folders of runs go after --runs.")
    report, texts = audit_and_rerun(facts, [*(runs or ()), *(more_runs or ())])
    folder = out or (None if json_output else DEFAULT_OUT)
    if folder is not None:
        for name, text in texts().items():
            write_atomically(folder / name, text)
    if json_output:
        typer.echo(canonical_json(report), nl=False)
    elif not quiet:
        print_findings(report)
        typer.echo(f"report: {folder}/report.html", err=True)
    if any(report["summary"][severity] for severity in worst):
        raise typer.Exit(1)


def audit_of(facts: Record) -> Any:
    """The audit of a record; RecordError where it has no claims."""
    from audits.check import audit_record
    from audits.claims import NAME, read_ledger

    facts.require(NAME)
    assert facts.claims is not None
    return audit_record(facts, read_ledger(facts.claims))


def audit_and_rerun(facts: Record, runs: Sequence[Path]) -> tuple[dict[str, Any], Callable[[], dict[str, str]]]:
    """The report's document, with the chapter on the runs where there are any, and its forms, made when asked for."""
    from audits.report.document import document

    if not runs:
        report = document(audit_of(facts))
        return report, lambda: report_texts(report, facts)
    from audits.rerun import chapter, study_rerun

    study = study_rerun(runs, facts)
    report = document(audit_of(facts), chapter(runs, study))
    return report, lambda: report_texts(report, facts, study)


def severities_at_or_above(name: str) -> tuple[str, ...]:
    """The severities that `--fail-on NAME` means; UsageError for an unknown one."""
    from audits.findings import SEVERITIES
    from repro.errors import UsageError

    if name == NEVER:
        return ()
    if name not in SEVERITIES:
        raise UsageError(f"--fail-on {name}: no such severity. They are {', '.join(SEVERITIES)}, or {NEVER}.")
    return tuple(SEVERITIES[: SEVERITIES.index(name) + 1])


def report_texts(report: dict[str, Any], facts: Record, rerun: RerunStudy | str = "") -> dict[str, str]:
    """The report's three forms by file name."""
    from audits.report.render import as_html, as_markdown
    from repro.files import canonical_json

    figures, missing = forecast_figures(facts)
    texts = (as_html(report, figures, missing, _rerun_figures(rerun)), as_markdown(report), canonical_json(report))
    return dict(zip(REPORTS, texts, strict=True))


def forecast_figures(facts: Record) -> tuple[tuple[Figure, ...], str]:
    """The figures of the record's forecast, or why there are none."""
    from audits.report.render import Figure
    from repro.cli.study import draw
    from repro.errors import MarinReproError

    if facts.forecast is None or not facts.ladder_grid:
        return (), "The record has no forecast with a grid of evaluations."
    try:
        return tuple(Figure(svg, caption) for _, svg, caption in draw(facts)), ""
    except MarinReproError as error:
        return (), str(error)


def _rerun_figures(rerun: RerunStudy | str) -> tuple[Figure, ...]:
    """The picture of the runs; none where they could not be fitted."""
    from audits.report.render import Figure

    if isinstance(rerun, str):
        return ()
    from repro.ladder import figures

    return (Figure(figures.draw_rerun(rerun), figures.describe_rerun(rerun)),)


def refuse_inside(facts: Record, folder: Path) -> None:
    """Raise UsageError where the output would become part of the record."""
    from repro.errors import UsageError

    if folder.resolve().is_relative_to(facts.folder.resolve()):
        raise UsageError(f"--out {folder} lies inside the record {facts.folder}. Choose a folder outside of it.")


def print_findings(report: dict[str, Any]) -> None:
    """A line a finding, the summary last."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("severity", no_wrap=True)
    table.add_column("finding", overflow="fold")
    colours = {"error": "bold red", "warning": "yellow", "explained": "green", "note": "dim"}
    for finding in report["findings"]:
        table.add_row(Text(finding["severity"], style=colours[finding["severity"]]), Text(finding["title"]))
    console.print(table)
    counts = ", ".join(f"{count} {severity}" for severity, count in report["summary"].items())
    console.print(Text(f"{counts}; {len(report['unverifiable'])} could not be checked"))
