"""`marin-repro reproduce`: every stage that exists, in order, into one folder with an index.

    plan → fit → audit                         without a scale
    plan → train → fit → refit → audit         with one: the rungs are trained at it, and the law is fitted on them too

A stage whose inputs are what they were, and whose files are as it left them, is not run again. `stages.json` keeps
what each was made from and what it wrote; it is written last, so a broken-off stage counts as not done. A rung whose
training was broken off goes on where it was.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from repro.ladder.recipe import Recipe
    from repro.record.facts import Record

STAGES = "stages.json"
Written = dict[str, str | None]  # file name relative to the folder: its text, or None where it is there already


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be reproduced."""

    facts: Record
    recipes: tuple[Recipe, ...]  # of the rungs to train, smallest first; none without a scale
    out: Path
    quiet: bool

    @property
    def runs(self) -> tuple[Path, ...]:
        """Folders of the runs, in the same order."""
        return tuple(self.out / "runs" / recipe.rung for recipe in self.recipes)


def reproduce(
    record: Annotated[
        Path | None, typer.Option(help="Folder of the record. Default: the built-in one.", show_default=False)
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(help="Train all five rungs too: smoke, mini, full, or a TOML file.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything that is made.")] = Path("reproduction"),
    force: Annotated[bool, typer.Option("--force", help="Run every stage, whatever is there.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Go the whole way into one folder with an index.

    The recipes, the forecast, and the audit of the record; with a scale, a rerun of the ladder. A stage that is up to
    date is not run again.

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
    job = Job(facts=facts, recipes=_recipes(scale), out=out, quiet=quiet)
    done = _stages_done(out)
    for name, make in MAKERS.items():
        if name in RERUN and not job.recipes:
            done.pop(name, None)
            continue
        identity = _identity(job, runs=name in AFTER_TRAINING)
        if not force and _is_current(out, done.get(name), identity):
            _say(quiet, f"{name}: unchanged, nothing to do")
            continue
        _say(quiet, f"{name}: {make.__doc__}")
        written = make(job)
        for file, text in written.items():
            if text is not None:
                write_atomically(out / file, text)
        done[name] = {"made_from": identity, "files": {file: _digest((out / file).read_bytes()) for file in written}}
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


def _recipes(scale: str | None) -> tuple[Recipe, ...]:
    """Recipes of all rungs at a scale; none where none is asked for."""
    from repro.ladder.recipe import resolve_recipe
    from repro.ladder.rungs import RUNGS

    return tuple(resolve_recipe(rung, scale) for rung in RUNGS) if scale else ()


def _plans(job: Job) -> Written:
    """the recipe of every rung, by closed formulas"""
    from repro.files import canonical_json
    from repro.ladder.recipe import resolve_recipe
    from repro.ladder.rungs import RUNGS

    rungs = RUNGS if job.facts.run.recipe == "marin" else ()
    published = {f"plan/{rung}.json": canonical_json(resolve_recipe(rung).as_json()) for rung in rungs}
    here = {f"plan/{one.rung}-rerun.json": canonical_json(one.as_json()) for one in job.recipes}
    return {**published, **here}


def _train(job: Job) -> Written:
    """every rung at this scale, smallest first; Ctrl-C saves, and the same command goes on"""
    from repro import runs
    from repro.cli.train import train_rung
    from repro.ladder.rerun import is_finished

    for recipe, folder in zip(job.recipes, job.runs, strict=True):
        if is_finished(folder, recipe):
            _say(job.quiet, f"{recipe.rung}: finished before, {folder}")
        else:
            train_rung(recipe, job.facts, folder, resume=(folder / runs.MANIFEST).exists(), quiet=job.quiet)
    files = (
        path for folder in job.runs for path in (folder / runs.MANIFEST, folder / runs.METRICS, *_evaluations(folder))
    )
    return {str(path.relative_to(job.out)): None for path in files}


def _evaluations(run: Path) -> list[Path]:
    from repro import runs

    return sorted((run / runs.EVALS).glob(f"{runs.HELD_OUT}-*.json"))


def _refit(job: Job) -> Written:
    """the same law through the rungs that were trained, and the largest one's forecast beside its losses"""
    from audits.rerun import study_rerun
    from repro.files import canonical_json
    from repro.ladder import figures

    study = study_rerun(job.runs, job.facts)
    if isinstance(study, str):
        typer.echo(f"refit: not possible: {study}", err=True)
        return {}
    return {"refit/fit.json": canonical_json(study.as_json()), "refit/rerun.svg": figures.draw_rerun(study)}


def _fit(job: Job) -> Written:
    """the forecast as published, and with each choice made otherwise"""
    from repro.cli.study import draw
    from repro.errors import MarinReproError
    from repro.files import canonical_json
    from repro.ladder.sensitivity import study_record

    facts = job.facts
    if facts.forecast is None or not facts.ladder_grid:
        return {}
    try:
        study = study_record(facts)
    except MarinReproError as error:
        typer.echo(f"fit: not possible: {error}", err=True)
        return {}
    figures = {f"fit/{drawing.name}.svg": drawing.svg for drawing in draw(facts, study)}
    return {**figures, "fit/fit.json": canonical_json(study.as_json())}


def _audit(job: Job) -> Written:
    """every claim against the others and against what follows, and what was rerun"""
    from repro.cli.audit import audit_and_rerun

    _, texts = audit_and_rerun(job.facts, job.runs)
    return {f"audit/{name}": text for name, text in texts().items()}


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


def _identity(job: Job, *, runs: bool) -> str:
    """SHA-256 over the program's version, every byte of the record, the recipes, and on request what was measured."""
    from repro import __version__
    from repro.files import path_inside, read_bounded
    from repro.record.lock import file_names

    parts = [__version__, *(repr(recipe) for recipe in job.recipes)]
    for name in file_names(job.facts.folder):
        parts.append(f"{name} {_digest(read_bounded(path_inside(job.facts.folder, name)))}")
    if runs:
        parts += [f"{path.name} {_digest(path.read_bytes())}" for run in job.runs for path in _evaluations(run)]
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


TRAIN = "train"
RERUN = (TRAIN, "refit")  # only with a scale
AFTER_TRAINING = ("refit", "audit")
# In the order of the data's way.
MAKERS = {"plan": _plans, TRAIN: _train, "fit": _fit, "refit": _refit, "audit": _audit}
