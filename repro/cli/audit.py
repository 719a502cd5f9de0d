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
REPORTS = ("report.html", "report.md", "report.json", "report.sarif", "junit.xml")
CRATE = "crate"  # the form that is written only when asked for
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
        str,
        typer.Option(
            "--fail-on",
            help="Exit with 1 on a finding this grave: error, warning, explained, note. With --baseline: on a new one.",
        ),
    ] = NEVER,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="An earlier report.json: say what is new, changed, fixed.", show_default=False
        ),
    ] = None,
    forms: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="With crate: also an RO-Crate of report and record, in OUT/crate.", show_default=False
        ),
    ] = None,
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
    if forms and set(forms) != {CRATE}:
        raise UsageError(f"--format {' '.join(forms)}: the one to ask for is {CRATE}; all others are always written.")
    earlier = _baseline(baseline)
    facts = load_record(record)
    refuse_inside(facts, out or DEFAULT_OUT)
    if more_runs and not runs:
        raise UsageError(f"what is {more_runs[0]} for? Folders of runs go after --runs.")
    report, texts = audit_and_rerun(facts, [*(runs or ()), *(more_runs or ())], earlier)
    folder = out or (None if json_output and not forms else DEFAULT_OUT)
    written: dict[str, str] = {}
    if folder is not None:
        written = texts()
        for name, text in written.items():
            write_atomically(folder / name, text)
        if forms:
            _write_crate(folder / CRATE, report, written, facts)
    if json_output:
        typer.echo(written.get("report.json") or canonical_json(report), nl=False)
    elif not quiet:
        print_findings(report)
        typer.echo(f"report: {folder}/report.html", err=True)
    if any(_counts(finding) and finding["severity"] in worst for finding in report["findings"]):
        raise typer.Exit(1)


def audit_of(facts: Record) -> Any:
    """The audit of a record; RecordError where it has no claims."""
    from audits.check import audit_record
    from audits.claims import NAME, read_ledger

    facts.require(NAME)
    assert facts.claims is not None
    return audit_record(facts, read_ledger(facts.claims))


def audit_and_rerun(
    facts: Record, runs: Sequence[Path], earlier: dict[str, Any] | None = None
) -> tuple[dict[str, Any], Callable[[], dict[str, str]]]:
    """The report's document, with the chapter on the runs where there are any, and its forms, made when asked for.

    `earlier` is the report that it is compared with.
    """
    from datetime import date

    from audits.annotations import read_annotations
    from audits.report.baseline import compare_with
    from audits.report.document import document

    study: RerunStudy | str = ""
    rerun = None
    if runs:
        from audits.rerun import chapter, study_rerun

        study = study_rerun(runs, facts)
        rerun = {**chapter(runs, study), "evaluations": _evaluations(runs, facts)}
    report = document(audit_of(facts), rerun, read_annotations(facts.folder), date.today())
    if earlier is not None:
        report = compare_with(report, earlier)
    return report, lambda: report_texts(report, facts, study)


def _evaluations(runs: Sequence[Path], facts: Record) -> dict[str, Any]:
    """The runs' evaluations beside the record's: differences where both are of one definition, else what differs."""
    from evals.compare import compare_with_record

    found = [compare_with_record(folder, facts) for folder in runs]
    return {key: [row for one in found for row in one[key]] for key in ("rows", "unmatched")}


def _baseline(path: Path | None) -> dict[str, Any] | None:
    from audits.report.baseline import read_baseline

    return read_baseline(path) if path is not None else None


def _counts(finding: dict[str, Any]) -> bool:
    """Whether --fail-on looks at it: not where it is suppressed, nor where the baseline has it as it is."""
    return finding["suppressed"] is None and finding["status"] != "unchanged"


def _write_crate(folder: Path, report: dict[str, Any], texts: dict[str, str], facts: Record) -> None:
    from repro.errors import MissingExtraError

    try:
        from audits.report.crate import write_crate
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"--format {CRATE} needs {error.name}: pip install 'marin-repro[crate]'.") from error
    write_crate(folder, report, texts, facts)


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
    """The report's forms by file name."""
    from audits.report.junit import as_junit
    from audits.report.render import as_html, as_markdown
    from audits.report.sarif import as_sarif
    from repro.files import canonical_json

    figures, missing = forecast_figures(facts)
    texts = (
        as_html(report, figures, missing, _rerun_figures(rerun)),
        as_markdown(report),
        canonical_json(report),
        canonical_json(as_sarif(report, facts.claims)),
        as_junit(report),
    )
    return dict(zip(REPORTS, texts, strict=True))


def forecast_figures(facts: Record) -> tuple[tuple[Figure, ...], str]:
    """The figures of the record's forecast, or why there are none."""
    from audits.report.render import Figure
    from repro.cli.study import draw
    from repro.errors import MarinReproError
    from repro.ladder.track import track_record

    if facts.forecast is None or not facts.ladder_grid:
        return (), "The record has no forecast with a grid of evaluations."
    try:
        track = track_record(facts) if facts.hero_evaluations else None
        drawn = [Figure(svg, caption) for _, svg, caption in draw(facts, track.study if track else None)]
        if track is not None and track.changes:
            first = track.changes[0]
            ends = f"{drawn[-1].caption} From step {first.from_step:,} the run is no longer comparable: {first.why}."
            drawn[-1] = drawn[-1]._replace(caption=ends)
        return tuple(drawn), ""
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
    if (baseline := report["baseline"]) is not None:
        told = ", ".join(f"{len(baseline[status])} {status}" for status in ("new", "changed", "unchanged", "fixed"))
        console.print(Text(f"since the earlier report: {told}"))
    for one in report["annotations"]["expired"]:
        console.print(Text(f"the suppression of {one['finding']} expired on {one['expires']}", style="yellow"))
