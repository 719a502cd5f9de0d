"""The report's chapter on a rerun: what was run and where it departs, what came out, and whether it is what was said.

Comes in: run directories of one scale. Goes out: plain JSON values that every form of the report shows, equal for equal
runs; rates and times stay out. Nothing here trains or fits anew what training wrote: losses, metrics and departures are
read, the law is `repro.ladder.rerun`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro import runs
from repro.errors import FitError, UsageError
from repro.ladder.acceptance import judge, judge_published, reference_of
from repro.ladder.dynamics import observe
from repro.ladder.fit import Fit, fit_record
from repro.ladder.rerun import RerunStudy, study_runs
from repro.ladder.rungs import RUNGS
from repro.record.facts import Record

Json = dict[str, Any]
PUBLISHED_METRIC = "Paloma macro loss, dropless"


def study_rerun(folders: Sequence[Path], record: Record) -> RerunStudy | str:
    """The fit on these runs, or in words why there is none."""
    published: Fit | None = fit_record(record) if record.forecast and record.ladder_grid else None
    try:
        return study_runs(folders, published=published)
    except FitError as error:
        return str(error)


def chapter(folders: Sequence[Path], study: RerunStudy | str) -> Json:
    """The chapter. UsageError where the runs are not of one scale, RecordError where one is damaged."""
    order = list(RUNGS)
    identities = {folder: runs.read_manifest(folder).identity for folder in folders}
    folders = sorted(folders, key=lambda folder: order.index(identities[folder]["rung"]))
    scales = sorted({identities[folder]["scale"] for folder in folders})
    if len(scales) != 1:
        raise UsageError(f"runs of several scales: {', '.join(scales)}. Name those of one.")
    published = _published_losses(study)
    reference = reference_of(scales[0])
    return {
        "scale": scales[0],
        "runs": [_run(folder, identities[folder]) for folder in folders],
        "code": sorted({identities[folder]["code"] for folder in folders}),
        "curves": _curves(folders, identities),
        "verdicts": [
            verdict._asdict()
            for folder in folders
            for verdict in (judge(folder, reference), judge_published(folder, published, PUBLISHED_METRIC))
        ],
        "reference": reference.made if reference else None,
        "dynamics": _dynamics(folders, identities),
        "forecast": study if isinstance(study, str) else _forecast(study),
    }


def _published_losses(study: RerunStudy | str) -> dict[str, float]:
    """Final loss of each rung that the record has to its end."""
    if isinstance(study, str) or study.published is None:
        return {}
    return {rung: point.loss for rung, point in study.published.final.rungs.items() if point.step is not None}


def _run(folder: Path, identity: Any) -> Json:
    evaluations = runs.read_evaluations(folder, runs.HELD_OUT)
    newest = evaluations[-1] if evaluations else None
    recipe = identity["recipe"]
    return {
        "rung": identity["rung"],
        "steps": recipe["steps"],
        "steps_completed": newest["steps_completed"] if newest else 0,
        "tokens": recipe["tokens"],
        "seed": identity["seed"],
        "loss": newest["dropless"]["loss"] if newest else None,
        "loss_as_trained": newest["as_trained"]["loss"] if newest else None,
        "entropy": identity["entropy"],
        "departures": identity["departures"],
    }


def _curves(folders: Sequence[Path], identities: Any) -> list[Json]:
    """Held-out losses without drops at matched marks, nats a token."""
    rows: dict[float, dict[str, float]] = {}
    for folder in folders:
        marks = len(identities[folder]["recipe"]["evaluation_steps"])
        for one in runs.read_evaluations(folder, runs.HELD_OUT):
            fraction = round(one["fraction"] * marks) / marks
            rows.setdefault(fraction, {})[identities[folder]["rung"]] = one["dropless"]["loss"]
    return [{"fraction": fraction, "losses": rows[fraction]} for fraction in sorted(rows)]


def _dynamics(folders: Sequence[Path], identities: Any) -> list[Json]:
    found: dict[str, Json] = {}
    for folder in folders:
        for one in observe(folder):
            entry = found.setdefault(
                one.what, {"what": one.what, "record": one.record, "source": one.source, "rungs": []}
            )
            entry["rungs"].append(
                {
                    "rung": identities[folder]["rung"],
                    "measured": one.measured,
                    "verdict": one.verdict,
                    "why": one.why,
                }
            )
    return list(found.values())


def _forecast(study: RerunStudy) -> Json:
    """The four-rung law against the scaled hero, and against the data's entropy."""
    result = study.as_json()
    final = study.study.fit.final
    return {
        "asymptote": study.study.fit.forecast.asymptote,
        "alpha": final.alpha,
        "prediction": final.prediction,
        "bootstrap_95": list(study.study.bootstrap.interval_95),
        "target": result["rerun"]["target"],
        "entropy": result["rerun"]["entropy"],
        "published_alpha": study.published.final.alpha if study.published else None,
        "notes": list(study.study.notes),
    }
