"""The published forecast against what the big run measured, step by step of its history, and where the two part.

A point is an evaluation without drops. It is *comparable* while the run still is as it was launched: the same mixture
stages, the ladder's context length, the planned number of steps and tokens. What differed from the ladder at launch
does so at every point and singles none out: it is listed once (`from_the_start`), and a residual holds its effect
together with the forecast's own error.

The band is that of the sensitivity study, linear in progress between its marks as the forecast itself: as wide as the
choices of the fit, and no probability.

Comes in: a record. Goes out: a `Track`. What the run's gradient norm, drops and pace say is in `trends` and `pace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, NamedTuple

from repro.errors import RecordError
from repro.ladder.recipe import Recipe, resolve_recipe
from repro.ladder.sensitivity import Study, study_record
from repro.record.artifacts import Stage, TrainingData
from repro.record.facts import RUN_CONFIGURATION, Record
from repro.record.tables import HeroEvaluation, LineageSegment

EVALUATIONS, LINEAGE = "hero_evaluations.csv", "hero_lineage.csv"
CONTEXT, HORIZON = "model.max_seq_len", "trainer.trainer.num_train_steps"  # of a run's configuration
COMPARABLE = (
    "the run still is as it was launched: its mixture stages, the ladder's context length, the planned steps and tokens"
)


class Change(NamedTuple):
    """Steps [from_step, until_step) at which the run is not what was launched, or not what the ladder was."""

    what: Literal["mixture", "context", "horizon", "store", "epoching"]
    from_step: int
    until_step: int | None  # None: to the end
    why: str
    source: str  # file and entry of the record
    ahead: bool = False  # it begins after the last step that the record knows: planned, and not yet so


class Point(NamedTuple):
    """One evaluation beside the forecast; losses in nats a token. Without a forecast there: None."""

    step: int  # zero-based
    fraction: float  # step / planned steps, as the forecast counts
    tokens: int
    measured: float
    predicted: float | None
    residual: float | None  # measured - predicted
    band: tuple[float, float] | None  # lowest and highest forecast of all choices
    segment: str  # the W&B run that owns the step
    comparable: bool
    why_not: str | None


class SegmentSummary(NamedTuple):
    """One run of the lineage, and its points."""

    run: str
    from_step: int
    until_step: int | None
    why: str  # it was started, in people's words
    points: int
    comparable: int
    mean_residual: float | None  # over all points with a forecast


@dataclass(frozen=True, kw_only=True)
class Track:
    """All points in the order of steps, and what is to be known of them."""

    study: Study
    recipe: Recipe  # the target's
    from_the_start: tuple[Change, ...]
    changes: tuple[Change, ...]
    points: tuple[Point, ...]
    segments: tuple[SegmentSummary, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The part of the command line's `track` object that is about losses."""
        forecast, final, band = self.study.fit.forecast, self.study.fit.final, self.study.band()
        return {
            "forecast": {
                "target": forecast.target,
                "target_steps": forecast.target_steps,
                "final": final.prediction,
                "final_band": list(band[-1]),
                "marks": [
                    {"fraction": law.fraction, "prediction": law.prediction, "band": list(width)}
                    for law, width in zip(self.study.fit.points, band, strict=True)
                ],
                "source": forecast.source,
            },
            "comparable_means": COMPARABLE,
            "from_the_start": [one._asdict() for one in self.from_the_start],
            "changes": [one._asdict() for one in self.changes],
            "points": [one._asdict() | {"band": list(one.band) if one.band else None} for one in self.points],
            "segments": [one._asdict() for one in self.segments],
            "summary": self._summary(),
        }

    def _summary(self) -> dict[str, Any]:
        shown = [point for point in self.points if point.residual is not None]
        return {
            "evaluations": len(self.points),
            "with_forecast": len(shown),
            "comparable": _residuals([point for point in shown if point.comparable]),
            "not_comparable": _residuals([point for point in shown if not point.comparable]),
        }


def track_record(record: Record) -> Track:
    """Hold the record's forecast against its evaluations.

    RecordError where it has no evaluations, and whatever `study_record` raises.
    """
    record.require(EVALUATIONS)
    if not record.hero_evaluations:
        raise RecordError(f"record {record.run.name} ({record.folder}): {EVALUATIONS} has no rows to track.")
    study = study_record(record)
    recipe = resolve_recipe(study.fit.forecast.target)
    notes = list(_unowned(record))
    changes = (*_mixture_changes(record, study, notes), *_configured_changes(record, study, notes))
    points = tuple(
        _point(evaluation, record, study, recipe, changes)
        for evaluation in sorted(record.hero_evaluations, key=lambda one: one.step)
    )
    return Track(
        study=study,
        recipe=recipe,
        from_the_start=tuple(_at_launch(record, study)),
        changes=tuple(sorted(changes, key=lambda one: one.from_step)),
        points=points,
        segments=tuple(_segment_summary(segment, points) for segment in record.hero_lineage),
        notes=tuple(notes),
    )


def segment_at(record: Record, step: int) -> LineageSegment | None:
    """The run that owns a step; None where the record has no lineage, or the step lies before it."""
    for segment in record.hero_lineage:
        if segment.start_step <= step and (segment.end_step_exclusive is None or step < segment.end_step_exclusive):
            return segment
    return None


def _unowned(record: Record) -> Iterator[str]:
    """Notes on steps of which the lineage does not say whose they are."""
    if not record.hero_lineage:
        yield f"Whether a point was measured on discarded steps is not checked: the record has no {LINEAGE}."
    for before, after in pairwise(record.hero_lineage):
        if before.end_step_exclusive is not None and before.end_step_exclusive < after.start_step:
            first, last = before.end_step_exclusive, after.start_step - 1
            yield f"Steps {first:,} to {last:,} belong to no run of {LINEAGE}: no point there is comparable."


def _point(
    evaluation: HeroEvaluation, record: Record, study: Study, recipe: Recipe, changes: Sequence[Change]
) -> Point:
    step, measured, owner = evaluation.step, evaluation.dropless_macro_loss, segment_at(record, evaluation.step)
    predicted = study.fit.predicted_at(step)
    why = []
    if predicted is None:
        why.append(f"the forecast has no mark at {step / study.fit.forecast.target_steps:.1%} of the run")
    if owner is None and record.hero_lineage:
        why.append("no run of the lineage owns the step")
    if owner is not None and evaluation.run != owner.run_id:
        why.append(f"measured in {evaluation.run}, whose step {step:,} was discarded: {owner.run_id} owns it")
    if evaluation.tokens != (expected := (step + 1) * recipe.tokens_per_step):
        why.append(f"{evaluation.tokens:,} tokens were read by then, not {expected:,}")
    why += [one.why for one in changes if one.from_step <= step and (one.until_step is None or step < one.until_step)]
    return Point(
        step=step,
        fraction=step / study.fit.forecast.target_steps,
        tokens=evaluation.tokens,
        measured=measured,
        predicted=predicted,
        residual=None if predicted is None else measured - predicted,
        band=None if predicted is None else _band_at(study, step),
        segment=owner.run_id if owner else evaluation.run,
        comparable=not why,
        why_not="; ".join(why) or None,
    )


def _band_at(study: Study, step: int) -> tuple[float, float] | None:
    """The band at a log step, between marks linear in progress; None outside of them."""
    fraction = step / study.fit.forecast.target_steps
    marks = zip((law.fraction for law in study.fit.points), study.band(), strict=True)
    for (left, here), (right, there) in pairwise(marks):
        if left <= fraction <= right:
            share = (fraction - left) / (right - left)
            low, high = (a + share * (b - a) for a, b in zip(here, there, strict=True))
            return low, high
    return None


def _at_launch(record: Record, study: Study) -> Iterator[Change]:
    """What the target did otherwise than the ladder from its first step on."""
    target, ladder = _ran(record, study.fit.forecast.target), _ran(record, study.fit.forecast.fitted_on[0])
    if target is None or ladder is None:
        return
    source = "record.toml, [[training_data]]"
    if target.store != ladder.store:
        yield Change("store", 0, None, f"the ladder read {ladder.store}, the run {target.store}", source)
    if target.simulated_epoching != ladder.simulated_epoching:
        said = ["with" if one.simulated_epoching else "without" for one in (ladder, target)]
        why = f"the ladder read {said[0]} simulated epoching, the run {said[1]}"
        yield Change("epoching", 0, None, why, source)
    here, there = target.stages[0], ladder.stages[0]
    if here != there:
        why = f"the run began on weights {here.weights}, the ladder on {there.weights}{_moved(record, there, here)}"
        yield Change("mixture", 0, None, why, "record.toml, [[training_data]]; mixture_weights.csv")


def _last_step(record: Record) -> int:
    """The last step that the record knows to be done."""
    return max([one.step for one in record.hero_evaluations] + [one.summary_step for one in record.hero_lineage[-1:]])


def _mixture_changes(record: Record, study: Study, notes: list[str]) -> Iterator[Change]:
    """Stages that were run, or are to be, and were not planned at launch: by what the runs read, then by what their
    configurations say."""
    target, last = study.fit.forecast.target, _last_step(record)
    ran, planned = _ran(record, target), _training_data(record, target, "planned")
    starts = set()
    if ran is None:
        notes.append(f"Which mixture {target} read is not checked: record.toml has no [[training_data]] of it.")
    stages = ran.stages if ran else ()
    ends = (*(stage.from_step for stage in stages[1:]), None)
    for stage, until in zip(stages, ends, strict=False):  # without stages, one end too many
        # Without a plan of its own a run is taken to have been meant to go on as it began.
        meant = _stage_at(planned, stage.from_step) if planned else stages[0]
        if stage.weights != meant.weights or (planned and stage.phase != meant.phase):
            starts.add(stage.from_step)
            ahead = stage.from_step > last
            now = "would be {} from step {:,}, as planned now" if ahead else "is {} since step {:,}"
            why = f"the mixture {now.format(stage.weights, stage.from_step)}, not {meant.weights} as launched"
            source = "record.toml, [[training_data]]; mixture_weights.csv"
            yield Change(
                "mixture",
                stage.from_step,
                until,
                why + _moved(record, meant, stage),
                source,
                ahead,
            )
    for segment in record.hero_lineage[1:]:
        for start in sorted(set(segment.mixture_stage_starts) - set(record.hero_lineage[0].mixture_stage_starts)):
            until = segment.end_step_exclusive
            if start not in starts and (until is None or start < until):
                why = f"{segment.run_id} has a mixture stage from step {start:,}, which launch had not planned"
                yield Change("mixture", max(start, segment.start_step), until, why, LINEAGE, start > last)


def _configured_changes(record: Record, study: Study, notes: list[str]) -> Iterator[Change]:
    """Segments whose configured context length is not the ladder's, or whose steps are not the forecast's: by what the
    lineage says of each run, else by the configurations of the first and the latest."""
    forecast = study.fit.forecast
    lengths = {resolve_recipe(rung).seq_len for rung in forecast.fitted_on}
    own = [{one.run_id: getattr(one, name) for one in record.hero_lineage} for name in ("seq_len", "planned_steps")]
    wanted: tuple[tuple[Literal["context", "horizon"], str, dict[str, int | None], set[int], str], ...] = (
        ("context", CONTEXT, own[0], lengths, "{:,} tokens of context, where the ladder had {}"),
        ("horizon", HORIZON, own[1], {forecast.target_steps}, "{:,} planned steps, where the forecast has {}"),
    )
    for what, path, told, expected, words in wanted:
        known = _configured(record, path)
        if not record.hero_lineage:
            notes.append(f"Whether the {what} changed is not checked: the record has no {LINEAGE}.")
            continue
        if not known and not any(told.values()):
            notes.append(f"Whether the {what} changed is not checked: {RUN_CONFIGURATION} does not say {path}.")
            continue
        alike = next(iter(known.values())) if len(set(known.values())) == 1 else None  # then taken for all between
        for segment in record.hero_lineage:
            span = (segment.start_step, segment.end_step_exclusive)
            place, value = LINEAGE, told[segment.run_id]
            if value is None:
                place, value = f"{RUN_CONFIGURATION}, {path}", known.get(segment.run_id, alike)
            if value is None:
                yield Change(what, *span, f"the record does not say {path} of {segment.run_id}", place)
            elif value not in expected:
                shown = words.format(value, " or ".join(f"{one:,}" for one in sorted(expected)))
                yield Change(what, *span, f"{segment.run_id} has {shown}", place)


def _configured(record: Record, path: str) -> dict[str, int]:
    """A leaf of the first and of the latest run's configuration, by run."""
    configuration, found = record.run_configuration, {}
    if configuration is None:
        return {}
    sides = [("first", configuration.first), *([("latest", configuration.latest)] if configuration.latest else [])]
    for side, one in sides:
        try:
            value = configuration.value(path, side)
        except KeyError:
            continue
        if isinstance(value, int):
            found[one.run] = value
    return found


def _moved(record: Record, before: Stage, after: Stage) -> str:
    """How far two sets of weights lie apart, in words; nothing where the record lacks one."""
    cells = [one.weights for one in record.mixture_weights]
    if not cells or any(stage.weights not in weights for stage in (before, after) for weights in cells):
        return ""
    half = sum(abs(one[before.weights][before.phase] - one[after.weights][after.phase]) for one in cells) / 2
    return f" ({half:.0%} of the tokens fall into other cells)"


def _ran(record: Record, rung: str) -> TrainingData | None:
    return _training_data(record, rung, "ran")


def _training_data(record: Record, rung: str, status: str) -> TrainingData | None:
    return next((one for one in record.training_data if one.rung == rung and one.status == status and one.stages), None)


def _stage_at(data: TrainingData, step: int) -> Stage:
    return max((stage for stage in data.stages if stage.from_step <= step), key=lambda stage: stage.from_step)


def _segment_summary(segment: LineageSegment, points: Sequence[Point]) -> SegmentSummary:
    own = [point for point in points if point.segment == segment.run_id]
    residuals = [point.residual for point in own if point.residual is not None]
    return SegmentSummary(
        run=segment.run_id,
        from_step=segment.start_step,
        until_step=segment.end_step_exclusive,
        why=segment.why_started,
        points=len(own),
        comparable=sum(point.comparable for point in own),
        mean_residual=fmean(residuals) if residuals else None,
    )


def _residuals(points: Sequence[Point]) -> dict[str, Any] | None:
    """What the residuals of some points come to; None where there are none."""
    if not points:
        return None
    residuals = [point.residual for point in points if point.residual is not None]
    inside = sum(1 for point in points if point.band and point.band[0] <= point.measured <= point.band[1])
    return {
        "points": len(residuals),
        "first_step": points[0].step,
        "last_step": points[-1].step,
        "mean": fmean(residuals),
        "lowest": min(residuals),
        "highest": max(residuals),
        "last": residuals[-1],
        "inside_band": inside,
    }
