"""The forecast on one's own runs: their held-out losses without drops take the place of the record's grid.

The procedure is `repro.ladder.fit`'s and the questions are `repro.ladder.sensitivity`'s. What differs, because a run of
a few dozen steps leaves no choice: compute at a mark is what was spent up to that very evaluation, not the mark's share
of the run; and the asymptote is the data's entropy rate where that is known, as it is of harrier-synthetic. Of such
data the free asymptote can be held against the truth.

Comes in: run directories. Goes out: a `RerunStudy`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from repro.errors import FitError, RecordError, UsageError
from repro.files import canonical_json
from repro.ladder.curves import MIN_RUNGS, Curves, RungPoint
from repro.ladder.fit import Comparison, Fit, fit_curves
from repro.ladder.noise import MIN_MARKS
from repro.ladder.recipe import Recipe, resolve_recipe
from repro.ladder.rungs import RUNGS
from repro.ladder.scales import HERO, SCALES
from repro.ladder.sensitivity import Study, study_fit
from repro.record.artifacts import Forecast
from repro.runs import HELD_OUT, MANIFEST, read_evaluations, read_manifest

SHARED = ("scale", "data", "entropy")  # of the identity: what the runs of one ladder have in common


class Evaluation(NamedTuple):
    """A held-out loss without drops."""

    steps_completed: int
    loss: float  # nats a token


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """What a fit needs of one run."""

    folder: Path
    rung: str
    identity: Mapping[str, Any]
    steps: int  # of the whole run
    flops_per_step: Mapping[str, int]  # by compute: with_lm_head, without_lm_head
    evaluation_steps: tuple[int, ...]  # completed updates at the marks, in order
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True, kw_only=True)
class RerunStudy:
    """The study of one's own ladder, the target's measured losses beside it, and the truth where it is known."""

    study: Study
    runs: tuple[Rerun, ...]
    comparisons: tuple[Comparison, ...]  # at the marks of the target's run; none where it was not run
    entropy: Mapping[str, float] | None  # rate and unigram, nats a token
    published: Fit | None  # the record's own forecast

    def as_json(self) -> dict[str, Any]:
        """The `fit` object of the command-line contract, and what only one's own runs have."""
        result = self.study.as_json()
        final, free = self.study.fit.final, self.study.free_asymptote
        result["rerun"] = {
            "scale": self.runs[0].identity["scale"],
            "runs": [{"folder": str(run.folder), "rung": run.rung, "steps": run.steps} for run in self.runs],
            "target": [comparison._asdict() for comparison in self.comparisons],
            "entropy": {
                **self.entropy,
                "free_asymptote": free.asymptote,
                "free_asymptote_interval_95": list(free.interval_95),
                "rate_in_interval": free.interval_95[0] <= self.entropy["rate"] <= free.interval_95[1],
            }
            if self.entropy
            else None,
            "published": {
                "asymptote": self.published.forecast.asymptote,
                "alpha": self.published.final.alpha,
                "A": self.published.final.coefficient,
                "prediction": self.published.final.prediction,
            }
            if self.published
            else None,
            "alpha": final.alpha,
        }
        return result


def study_runs(folders: Sequence[Path], *, published: Fit | None = None, asymptote: float | None = None) -> RerunStudy:
    """Fit the rungs that were run, forecast the hero's at the same scale, and compare where it was run too.

    `asymptote` in nats a token; by default the data's entropy rate, else the published forecast's. Raises UsageError
    for runs that are not of one ladder, FitError where there is too little to fit, RecordError for a damaged run.
    """
    runs = _one_ladder([read_rerun(folder) for folder in folders])
    entropy = runs[0].identity["entropy"]
    if asymptote is None:
        known = entropy["rate"] if entropy else published.forecast.asymptote if published else 0.0
        asymptote = round(known, 10)  # as the study rounds those that it tries beside it
    fitted = tuple(run for run in runs if run.rung != HERO)
    target = next((run for run in runs if run.rung == HERO), None) or _unrun_target(runs[0])
    if len(fitted) < MIN_RUNGS:
        raise FitError(f"{len(fitted)} rungs below {HERO} among the runs; a law needs at least {MIN_RUNGS}.")
    forecast = Forecast(
        fitted_on=tuple(run.rung for run in fitted),
        target=HERO,
        target_steps=target.steps,
        asymptote=asymptote,
        mark=1 / len(target.evaluation_steps),
        compute="without_lm_head",
        source="held-out losses of one's own runs",
    )
    study = study_fit(lambda choices: fit_curves(_curves(runs, target, choices), choices), forecast)
    if len({run.identity["code"] for run in runs}) > 1:
        note = "The runs were made by different versions of the code (`code` in their manifests)."
        study = replace(study, notes=(*study.notes, note))
    return RerunStudy(
        study=study,
        runs=runs,
        comparisons=_compare(study.fit, target),
        entropy=entropy,
        published=published,
    )


def read_rerun(folder: Path) -> Rerun:
    """A run's part in a fit. Raises RecordError where its files do not hold it."""
    identity = read_manifest(folder).identity
    try:
        recipe = identity["recipe"]
        losses = [(one["steps_completed"], one["dropless"]["loss"]) for one in read_evaluations(folder, HELD_OUT)]
        return Rerun(
            folder=folder,
            rung=identity["rung"],
            identity={key: identity[key] for key in (*SHARED, "code")},
            steps=recipe["steps"],
            flops_per_step={key: recipe[f"flops_per_step_{key}"] for key in ("with_lm_head", "without_lm_head")},
            evaluation_steps=tuple(recipe["evaluation_steps"]),
            evaluations=tuple(Evaluation(int(step), float(loss)) for step, loss in losses),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{folder} is no run that train wrote: {error!r} in its manifest or evaluations.") from error


def is_finished(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder holds this very recipe's run, evaluated at its end; by whichever version of the code."""
    if not (folder / MANIFEST).is_file():
        return False
    identity = read_manifest(folder).identity
    wanted = json.loads(canonical_json(asdict(recipe)))
    if any(identity["recipe"].get(key) != value for key, value in wanted.items() if key not in ("departures", "scale")):
        return False
    return any(one["steps_completed"] == recipe.steps for one in read_evaluations(folder, HELD_OUT))


def _one_ladder(runs: Sequence[Rerun]) -> tuple[Rerun, ...]:
    """The runs in the order of the ladder. UsageError where they are not of one."""
    if not runs:
        raise UsageError("no runs to fit; name the folders that train wrote.")
    order = list(RUNGS)
    runs = sorted(runs, key=lambda run: order.index(run.rung))
    first = runs[0]
    for run, before in zip(runs[1:], runs, strict=False):
        if run.rung == before.rung:
            raise UsageError(f"{before.folder} and {run.folder} are both runs of {run.rung}; name one of each rung.")
        for key in SHARED:
            one, other = (dict(r.identity)[key] for r in (first, run))
            if key == "data":  # phases begin at other steps on each rung
                one, other = ({k: data[k] for k in ("store", "tokenizer") if k in data} for data in (one, other))
            if one != other:
                raise UsageError(
                    f"{first.folder} and {run.folder} are not of one ladder: {key} is {one} in one and {other} in the "
                    "other."
                )
    return tuple(runs)


def _unrun_target(run: Rerun) -> Rerun:
    """The hero at the runs' scale, as planned."""
    scale = run.identity["scale"]
    if scale not in SCALES:
        raise UsageError(f"scale {scale} is a file of your own: name the run of {HERO} too, finished or only begun.")
    recipe = resolve_recipe(HERO, scale)
    return Rerun(
        folder=run.folder,
        rung=HERO,
        identity=run.identity,
        steps=recipe.steps,
        flops_per_step={
            "with_lm_head": recipe.flops_per_step_with_lm_head,
            "without_lm_head": recipe.flops_per_step_without_lm_head,
        },
        evaluation_steps=recipe.evaluation_steps,
        evaluations=(),
    )


def _curves(runs: Sequence[Rerun], target: Rerun, forecast: Forecast) -> Curves:
    """The points that the choices go through. FitError names run and step."""
    marks = len(target.evaluation_steps)
    by_rung = {run.rung: run for run in runs}
    points: list[dict[str, RungPoint]] = [{} for _ in range(marks)]
    for rung in forecast.fitted_on:
        run = by_rung[rung]
        if len(run.evaluation_steps) != marks or marks < MIN_MARKS:
            raise FitError(
                f"{run.folder}: {len(run.evaluation_steps)} evaluations planned, {marks} of {target.rung}; a fit needs "
                f"as many of each, and at least {MIN_MARKS}."
            )
        losses = dict(run.evaluations)
        for mark, step in enumerate(run.evaluation_steps):
            where = f"{run.folder}, {rung} after {step:,} of {run.steps:,} steps"
            if step not in losses:
                raise FitError(f"{where}: not evaluated yet. Finish the run with --resume.")
            if not losses[step] > forecast.asymptote:
                raise FitError(
                    f"{where}: the loss {losses[step]:.6f} is not above the asymptote {forecast.asymptote:.6f}, so no "
                    "law can reach it. Choose a lower --asymptote."
                )
            points[mark][rung] = RungPoint(float(step * run.flops_per_step[forecast.compute]), losses[step], step - 1)
    return Curves(
        fractions=tuple(mark / marks for mark in range(1, marks + 1)),
        points=tuple(points),
        target_flops=tuple(float(step * target.flops_per_step[forecast.compute]) for step in target.evaluation_steps),
        tail=None,
        notes=(),
    )


def _compare(fit: Fit, target: Rerun) -> tuple[Comparison, ...]:
    losses = dict(target.evaluations)
    return tuple(
        Comparison(step - 1, law.fraction, losses[step], law.prediction, losses[step] - law.prediction)
        for step, law in zip(target.evaluation_steps, fit.points, strict=True)
        if step in losses
    )
