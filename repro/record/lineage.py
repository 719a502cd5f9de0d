"""One history of weights through several W&B runs: which steps each run owns, by what the runs say of themselves.

A run begins at the step after the one it was forked from ("<run>?_step=N"), or at the first step that its configuration
names; where both are there they agree. It ends where the next begins; the last is open. A run that says neither is
placed by the steps it was cut to when it was fetched, and that is noted. Steps beyond a run's end were trained and
discarded: they stand in its summary and in no table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from repro.record.material import Material, Origin, Table
from repro.record.places import Evaluation, Lineage, Paths, Train
from repro.record.stored import Absent, Row, StoredRun, pointer


@dataclass(frozen=True)
class Segment:
    """The steps [start, end) of one run; `place` says where the start was read."""

    artifact: str
    run: StoredRun
    start: int
    end: int | None
    place: str
    parent: str = ""

    def own(self, rows: list[Row]) -> list[Row]:
        """The rows within the segment."""
        return [row for row in rows if row.step >= self.start and (self.end is None or row.step < self.end)]


def read_segments(material: Material, lineage: Lineage) -> list[Segment]:
    """The segments in the order of the lineage. A run that is not there is listed, and so is the one before it, whose
    end it would tell. Raises Absent where two statements clash: then none can be told."""
    found: list[Segment | None] = []
    for artifact in lineage.artifacts:
        found.append(None)
        with material.looking_for(f"segment of {artifact}", artifact):
            found[-1] = _segment(artifact, material.run(artifact), lineage)
    segments = []
    for here, after, named in zip_longest(found, found[1:], lineage.artifacts[1:]):
        if here is None:
            continue
        if after is not None and after.start <= here.start:
            raise Absent(f"{after.artifact} begins at {after.start}, not after {here.artifact}", after.place)
        if after is not None and after.parent and after.parent != here.run.id:
            raise Absent(f"{after.artifact} is forked from {after.parent}, not from {here.run.id}", after.place)
        if after is None and named is not None:
            why = f"it ends where {named} begins, which is not known"
            material.miss(f"segment of {here.artifact}", here.artifact, here.place, why)
            continue
        segments.append(replace(here, end=after.start if after else None))
    for segment in segments:
        _check_cut(material, segment)
    return segments


def lineage_table(
    material: Material, lineage: Lineage, segments: list[Segment], loss: str, columns: Mapping[str, Paths]
) -> Table:
    """hero_lineage.csv. `columns`: where a run's configuration says its `seq_len` and `steps`, as of a rung's run.
    Why a run was started or ended is people's prose, and stays empty."""
    table = Table(left_out=["why runs were started and ended: that is said in words, not in W&B"])
    for segment in segments:
        run, what = segment.run, f"hero_lineage.csv, {segment.run.id}"
        with material.looking_for(what, segment.artifact):
            last = _whole(run, "summary", "_step")
            stages = run.setting(lineage.stages) if lineage.stages else []
            table.rows.append(
                {
                    "run_id": run.id,
                    "start_step": segment.start,
                    "end_step_exclusive": segment.end,
                    "state": str(run.content.get("state")),
                    "summary_step": last,
                    "last_heartbeat": _text(run, "heartbeat_at"),
                    "launched": _text(run, "created_at"),
                    "launch_commits": _optional(run, lineage.launch_commit),
                    "archived_evaluations": len(segment.own(run.series(loss))) if loss in run.metrics() else 0,
                    "mixture_stage_starts": ";".join(str(_first_step(stage)) for stage in stages),
                    "seq_len": _known_number(run, columns.get("seq_len")),
                    "planned_steps": _known_number(run, columns.get("steps")),
                }
            )
            table.origins.append(Origin(run.id, segment.artifact, segment.place))
    return table


def evaluation_table(
    material: Material, lineage: Lineage, segments: list[Segment], evaluation: Evaluation, domains: Any
) -> Table:
    """hero_evaluations.csv; `domains` gives each domain's series of a run. A step without all losses has no row."""
    table = Table()
    needed = [name for name in evaluation.columns if name.startswith("dropless_")]
    for segment in segments:
        run, what = segment.run, f"hero_evaluations.csv, {segment.run.id}"
        with material.looking_for(what, segment.artifact):
            tokens = run.number(lineage.tokens_per_step)
            by_column = {
                column: {row.step: row for row in segment.own(run.series(metric))}
                for column, metric in evaluation.columns.items()
                if metric in run.metrics()
            }
            if missing := [name for name in needed if name not in by_column]:
                raise Absent(f"no series of {missing[0]}", pointer("history", evaluation.columns[missing[0]]))
            by_domain = {name: {row.step: row for row in segment.own(rows)} for name, rows in domains(run).items()}
            steps = sorted({step for name in needed for step in by_column[name]})
            whole = [step for step in steps if all(step in by_column[name] for name in needed)]
            whole = [step for step in whole if by_domain and all(step in rows for rows in by_domain.values())]
            for step in whole:
                first = by_column[needed[0]][step]
                row = {"step": step, "tokens": (step + 1) * tokens, "run": run.id, "source": "wandb"}
                row["evaluated_at"] = _utc(first)
                row |= {column: rows[step].value for column, rows in by_column.items() if step in rows}
                row |= {f"domain_losses.{name}": rows[step].value for name, rows in by_domain.items()}
                table.rows.append(row)
            if whole:
                place = pointer("history", evaluation.columns[needed[0]], "rows")
                table.origins.append(Origin(run.id, segment.artifact, place))
            if len(whole) < len(steps):
                odd = sorted(set(steps) - set(whole))
                material.miss(what, segment.artifact, "", f"steps {_listed(odd)} lack a loss or a domain")
            sampled = [metric for metric in evaluation.columns.values() if metric in run.metrics()]
            note_samples(table, run, sampled)
    return table


def train_table(material: Material, lineage: Lineage, segments: list[Segment], train: Train) -> Table:
    """hero_train.csv: of every `train.every` steps of a run each metric's first value, joined with what the other
    metrics have at that step; one that is had already is not looked for again. Samples of the service need not share a
    step."""
    left_out = f"of every {train.every:,} steps all but the first value of each metric that W&B's sample has"
    table = Table(left_out=[left_out])
    columns = list(train.columns.items())
    for segment in segments:
        run = segment.run
        with material.looking_for(f"hero_train.csv, {run.id}", segment.artifact):
            tokens = run.number(lineage.tokens_per_step)
            series = {
                column: {row.step: row for row in segment.own(run.series(metric))}
                for column, metric in columns
                if metric in run.metrics()
            }
            if columns[0][0] not in series:
                raise Absent(f"no series of {columns[0][1]}", pointer("history", columns[0][1]))
            kept: dict[int, Row] = {}
            for rows in series.values():
                had = {step // train.every for step in kept if step in rows}
                for row in rows.values():
                    if row.step // train.every not in had:
                        had.add(row.step // train.every)
                        kept[row.step] = row
            for step, row in sorted(kept.items()):
                values = {column: rows[step].value for column, rows in series.items() if step in rows}
                known = {"step": step, "run": run.id, "source": "wandb", "at": _utc(row)}
                table.rows.append({**known, "tokens": (step + 1) * tokens, **values})
            if kept:
                table.origins.append(Origin(run.id, segment.artifact, pointer("history", columns[0][1], "rows")))
    return table


def note_samples(table: Table, run: StoredRun, metrics: list[str]) -> None:
    """Say which series of a run are samples of what the service has."""
    if sampled := [metric for metric in metrics if not run.is_whole(metric)]:
        table.left_out.append(f"{run.id}: W&B gave a sample of {_listed(sampled)}")


def _segment(artifact: str, run: StoredRun, lineage: Lineage) -> Segment:
    starts: dict[str, int] = {}
    parent = ""
    forked = _optional(run, lineage.fork)
    if forked:
        match = re.fullmatch(r"([\w.-]{1,128})\?_step=(\d{1,12})", forked)
        place = pointer("config", *lineage.fork.split("."))
        if match is None:
            raise Absent(f"{forked[:80]!r} is not of the form RUN?_step=N", place)
        parent, starts[place] = match[1], int(match[2]) + 1
    if lineage.first_step and _setting(run, lineage.first_step) is not None:
        starts[pointer("config", *lineage.first_step.split("."))] = run.number(lineage.first_step)
    if not starts and run.steps is not None:
        starts["/steps"] = run.steps[0]
    if len(set(starts.values())) > 1:
        raise Absent(f"it begins at {' and '.join(f'{step} ({place})' for place, step in starts.items())}")
    if not starts:
        raise Absent("it does not say at which step it begins")
    place, start = next(iter(starts.items()))
    return Segment(artifact, run, start, None, place, parent)


def _check_cut(material: Material, segment: Segment) -> None:
    """List steps that were cut away when the run was fetched, by a lineage that is not the one derived."""
    if segment.run.steps is None:
        return
    first, end = segment.run.steps
    if first > segment.start or (end is not None and (segment.end is None or end < segment.end)):
        had, has = f"{first} to {end}", f"{segment.start} to {segment.end}"
        why = f"its own steps are {has}, but it was fetched for {had}: fetch again with --update"
        material.miss(f"steps of {segment.run.id}", segment.artifact, "/steps", why)


def _utc(row: Row) -> str:
    try:
        return datetime.fromtimestamp(row.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError) as error:
        raise Absent(f"{row.time!r} is no time", row.place) from error


def _whole(run: StoredRun, *keys: str) -> int:
    place: Any = run.content
    for key in keys:
        place = place.get(key) if isinstance(place, dict) else None
    if isinstance(place, bool) or not isinstance(place, int | float) or place != int(place):
        raise Absent("there is no whole number", pointer(*keys))
    return int(place)


def _text(run: StoredRun, key: str) -> str:
    if not isinstance(run.content.get(key), str):
        raise Absent("there is no text", pointer(key))
    return str(run.content[key])


def _optional(run: StoredRun, path: str) -> str:
    """A text of the configuration; "" where it has none."""
    value = _setting(run, path)
    return value if isinstance(value, str) else ""


def _setting(run: StoredRun, path: str) -> Any:
    """A leaf of the configuration; None where it has none."""
    try:
        return run.setting(path) if path else None
    except Absent:
        return None


def _known_number(run: StoredRun, paths: Paths | None) -> int | None:
    """A whole number above nothing of the configuration; None where it has none."""
    try:
        number = run.number(paths) if paths else 0
    except Absent:
        return None
    return number if number > 0 else None


def _first_step(stage: Any) -> int:
    match stage:
        case [int(step), *_]:
            return step
    raise Absent("a stage is not [first step, weights]")


def _listed(items: list[Any]) -> str:
    shown = ", ".join(str(item) for item in items[:5])
    return f"{shown} and {len(items) - 5} more" if len(items) > 5 else shown
