"""`marin-repro reproduce`: every stage that exists, in order, into one folder with an index.

A stage whose inputs are what they were, and whose files are as it left them, is not run again. `stages.json` keeps
what each was made from and what it wrote; it is written last, so a broken-off stage counts as not done.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from repro.record.facts import Record

STAGES = "stages.json"
Written = dict[str, str]  # file name relative to the folder: its text


def reproduce(
    record: Annotated[
        Path | None, typer.Option(help="Folder of the record. Default: the built-in one.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything that is made.")] = Path("reproduction"),
    force: Annotated[bool, typer.Option("--force", help="Run every stage, whatever is there.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Go the whole way into one folder with an index.

    The recipes, the forecast, and the audit of the record. A stage that is up to date is not run again.

    Example: marin-repro reproduce --out reproduction
    """
    import json

    from repro.cli.audit import refuse_inside
    from repro.files import canonical_json, output_errors, write_atomically
    from repro.record.facts import load_record

    facts = load_record(record)
    refuse_inside(facts, out)
    with output_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    identity = _identity(facts)
    done = _stages_done(out)
    for name, make in MAKERS.items():
        if not force and _is_current(out, done.get(name), identity):
            _say(quiet, f"{name}: unchanged, nothing to do")
            continue
        _say(quiet, f"{name}: {make.__doc__}")
        written = make(facts)
        for file, text in written.items():
            write_atomically(out / file, text)
        done[name] = {"made_from": identity, "files": {file: _digest(text.encode()) for file, text in written.items()}}
        write_atomically(out / STAGES, canonical_json(done))
    report = json.loads((out / "audit" / "report.json").read_bytes())
    forecast = json.loads((out / "fit" / "fit.json").read_bytes()) if "fit" in done and done["fit"]["files"] else None
    summary = _summary(report, forecast, out)
    write_atomically(out / "index.html", _index(report, summary, done))
    if json_output:
        typer.echo(canonical_json(summary), nl=False)
    elif not quiet:
        for label, text in summary.items():
            typer.echo(f"{label + ':':<11} {text}")


def _plans(facts: Record) -> Written:
    """the recipe of every rung, by closed formulas"""
    from repro.files import canonical_json
    from repro.ladder.recipe import resolve_recipe
    from repro.ladder.rungs import RUNGS

    rungs = RUNGS if facts.run.recipe == "marin" else ()
    return {f"plan/{rung}.json": canonical_json(resolve_recipe(rung).as_json()) for rung in rungs}


def _fit(facts: Record) -> Written:
    """the forecast as published, and with each choice made otherwise"""
    from repro.cli.study import draw
    from repro.errors import MarinReproError
    from repro.files import canonical_json
    from repro.ladder.sensitivity import study_record

    if facts.forecast is None or not facts.ladder_grid:
        return {}
    try:
        study = study_record(facts)
    except MarinReproError as error:
        typer.echo(f"fit: not possible: {error}", err=True)
        return {}
    figures = {f"fit/{drawing.name}.svg": drawing.svg for drawing in draw(facts, study)}
    return {**figures, "fit/fit.json": canonical_json(study.as_json())}


def _audit(facts: Record) -> Written:
    """every claim against the others and against what follows"""
    from audits.report.document import document
    from repro.cli.audit import audit_of, report_texts

    return {f"audit/{name}": text for name, text in report_texts(document(audit_of(facts)), facts).items()}


def _summary(report: dict[str, Any], forecast: dict[str, Any] | None, out: Path) -> dict[str, str]:
    """What a reader wants to know first, in five lines."""
    made = report["generated_from"]
    counts = ", ".join(f"{count} {severity}" for severity, count in report["summary"].items())
    final = forecast["final"]["prediction"] if forecast else None
    return {
        "claims": f"{made['claims']} published; {len(report['unverifiable'])} things could not be checked",
        "relations": f"{made['relations_checked']}, checked in {made['scopes_checked']} places",
        "findings": counts,
        "forecast": f"{final:.4f} nats/token at the end of the run" if final else "the record has none",
        "report": str(out / "audit" / "report.html"),
    }


def _index(report: dict[str, Any], summary: dict[str, str], done: dict[str, Any]) -> str:
    from audits.report.render import as_index

    files = {name: sorted(stage["files"]) for name, stage in done.items()}
    return as_index(report, {label: text for label, text in summary.items() if label != "report"}, files)


def _identity(facts: Record) -> str:
    """SHA-256 over the program's version and every byte of the record."""
    from repro import __version__
    from repro.files import path_inside, read_bounded
    from repro.record.lock import file_names

    parts = [__version__]
    for name in file_names(facts.folder):
        parts.append(f"{name} {_digest(read_bounded(path_inside(facts.folder, name)))}")
    return _digest("\n".join(parts).encode())


def _stages_done(out: Path) -> dict[str, Any]:
    """What `stages.json` says; empty where there is none, or where it is not ours any more."""
    from repro.errors import RecordError
    from repro.files import parse_json, read_bounded

    try:
        done = parse_json(read_bounded(out / STAGES), STAGES)
    except RecordError:  # missing or damaged: then every stage runs
        return {}
    return {name: done[name] for name in MAKERS if name in done} if isinstance(done, dict) else {}


def _is_current(out: Path, stage: Any, identity: str) -> bool:
    """Whether a stage was made from this record by this version, and its files are still what it wrote."""
    if not isinstance(stage, dict) or stage.get("made_from") != identity or not isinstance(stage.get("files"), dict):
        return False
    try:
        return all(_digest((out / name).read_bytes()) == digest for name, digest in stage["files"].items())
    except (OSError, ValueError):  # gone, or no name that a file can have
        return False


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _say(quiet: bool, line: str) -> None:
    if not quiet:
        typer.echo(line, err=True)


MAKERS = {"plan": _plans, "fit": _fit, "audit": _audit}  # in the order of the data's way
