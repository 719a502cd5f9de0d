"""The facts of a record: its tables as typed rows, read once, checked against the lock, and never changed.

    load_record()            the built-in record, Marin 535B-A23B
    load_record(folder)      a record of one's own: record.toml and whichever tables it has

A field of `Record` is named like its file's stem; a table that a record lacks is empty (`Record.require` says so to a
command that needs it). The columns' meaning stands in `tables`. `claims.json` stays bytes here; `audits` owns it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from repro.errors import RecordError
from repro.files import parse_json, path_inside, read_bounded
from repro.record import artifacts
from repro.record.artifacts import Artifact, Forecast, RecordFile, RunFacts, TrainingData
from repro.record.entries import read_entry, read_rows, refuse_repeated
from repro.record.lock import LOCK, Locked, check_lock, file_names, read_lock
from repro.record.tables import (
    DomainPoint,
    EvalTime,
    GridPoint,
    GridRow,
    HeroEvaluation,
    LadderRung,
    LineageRow,
    LineageSegment,
    MixEndpoint,
    MixtureCell,
    RunConfiguration,
    TrainSample,
    Window,
)

BUILT_IN = "marin_535b"
CLAIMS = "claims.json"
RUN_CONFIGURATION = "run_configuration.json"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A whole record. `lock` is None for a record of one's own that was never locked: nothing vouches for its bytes."""

    folder: Path
    lock: Mapping[str, Locked] | None
    run: RunFacts
    artifacts: tuple[Artifact, ...] = ()
    files: tuple[RecordFile, ...] = ()
    training_data: tuple[TrainingData, ...] = ()
    forecast: Forecast | None = None
    claims: bytes | None = None
    ladder_grid: Mapping[str, tuple[GridPoint, ...]] = field(default_factory=dict)
    ladder_domains: tuple[DomainPoint, ...] = ()
    ladder_rungs: tuple[LadderRung, ...] = ()
    ladder_eval_times: tuple[EvalTime, ...] = ()
    ladder_h100_mix25: tuple[MixEndpoint, ...] = ()
    hero_evaluations: tuple[HeroEvaluation, ...] = ()
    hero_lineage: tuple[LineageSegment, ...] = ()
    hero_train: tuple[TrainSample, ...] = ()
    hero_windows: tuple[Window, ...] = ()
    mixture_weights: tuple[MixtureCell, ...] = ()
    run_configuration: RunConfiguration | None = None

    def file(self, name: str) -> RecordFile:
        """Where the file comes from. KeyError where record.toml has no entry of that name."""
        return {file.name: file for file in self.files}[name]

    def require(self, *names: str) -> None:
        """Raise RecordError where the record lacks one of these files."""
        present = {file.name for file in self.files} | ({CLAIMS} if self.claims is not None else set())
        for name in names:
            if name not in present:
                raise RecordError(
                    f"record {self.run.name} ({self.folder}) has no {name}, which this command needs. Add the file and "
                    "its [[file]] entry in record.toml, or use a record that has it."
                )


TABLES: dict[str, tuple[type[Any], tuple[str, ...]]] = {  # file: type of a row, fields that tell two rows apart
    "ladder_grid.csv": (GridRow, ()),
    "ladder_domains.csv": (DomainPoint, ("rung", "step")),
    "ladder_rungs.csv": (LadderRung, ("rung",)),
    "ladder_eval_times.csv": (EvalTime, ("rung", "step")),
    "ladder_h100_mix25.csv": (MixEndpoint, ("rung", "domain")),
    "hero_evaluations.csv": (HeroEvaluation, ("step",)),
    "hero_lineage.csv": (LineageRow, ("run_id",)),
    "hero_train.csv": (TrainSample, ("step", "run", "source")),
    "hero_windows.csv": (Window, ("window", "run", "metric")),
    "mixture_weights.csv": (MixtureCell, ("cell",)),
}


def load_record(path: Path | None = None) -> Record:
    """Load the record in the folder `path`, or the built-in one, and check it against its lock.

    Raises RecordError that names file, entry and field for whatever is missing, malformed or changed since the lock.
    """
    folder = path if path is not None else Path(str(resources.files("repro.record"))) / BUILT_IN
    contents, lock = _read_folder(folder, must_be_locked=path is None)
    about = artifacts.read_contents(contents.pop(artifacts.NAME))
    _account_for_files(folder, set(contents), about.files)
    configuration = contents.get(RUN_CONFIGURATION)
    return Record(
        folder=folder,
        lock=lock,
        run=about.run,
        artifacts=about.artifacts,
        files=about.files,
        training_data=about.training_data,
        forecast=about.forecast,
        claims=contents.get(CLAIMS),
        run_configuration=_read_configuration(configuration) if configuration is not None else None,
        **{Path(name).stem: _read_table(name, contents[name]) for name in TABLES if name in contents},
    )


def read_watched(folder: Path) -> artifacts.Contents:
    """What the record consists of. Its tables may be left out, since who only watches its sources needs none; what is
    there must be as it was locked. Raises RecordError."""
    _refuse_other_folder(folder)
    present = set(file_names(folder))
    lock = read_lock(folder)
    if lock is not None:
        check_lock(folder, {name: entry for name, entry in lock.items() if name in present})
    return artifacts.read_contents(read_bounded(folder / artifacts.NAME))


def _refuse_other_folder(folder: Path) -> None:
    """Raise RecordError where the folder is no record."""
    try:
        what = "" if (folder / artifacts.NAME).is_file() else f"it has no {artifacts.NAME}"
        what = what if folder.is_dir() else "there is no such folder"
    except OSError as error:  # not allowed to look, or a name the file system cannot hold
        what = error.strerror or str(error)
    if what:
        raise RecordError(f"{folder} is not a record: {what}. Give --record a folder with a {artifacts.NAME}.")


def _read_folder(folder: Path, must_be_locked: bool) -> tuple[dict[str, bytes], dict[str, Locked] | None]:
    """Contents of the files by name, read once, and the lock they were held against."""
    _refuse_other_folder(folder)
    lock = read_lock(folder)
    if lock is not None:
        return check_lock(folder, lock), lock
    if must_be_locked:
        raise RecordError(f"{folder}: {LOCK} is missing from the built-in record. Install marin-repro again.")
    return {name: read_bounded(path_inside(folder, name)) for name in file_names(folder)}, None


def _account_for_files(folder: Path, present: set[str], listed: tuple[RecordFile, ...]) -> None:
    """Every table has its source in record.toml; every file that record.toml lists is there; no table is misnamed."""
    names = {file.name for file in listed}
    for name in sorted(names):
        path_inside(folder, name)
        if name not in present:
            raise RecordError(
                f"{artifacts.NAME}, [[file]] {name}: the record has no such file. Put it back, or remove the entry."
            )
    known = {*TABLES, RUN_CONFIGURATION, CLAIMS}
    for name in sorted(present):
        if name.endswith((".csv", ".json")) and "/" not in name and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}."
            raise RecordError(f"{folder}: unknown table {name!r}; {hint}")
        if name in known and name not in names and name != CLAIMS:  # each claim names its own source
            raise RecordError(
                f"{artifacts.NAME}: {name} has no [[file]] entry. Every table of a record names its source."
            )


def _read_table(name: str, data: bytes) -> Any:
    kind, key = TABLES[name]
    rows = read_rows(kind, data, name)
    if key:
        refuse_repeated(rows, lambda row: tuple(getattr(row, part) for part in key), name, " and ".join(key))
    if kind is GridRow:
        return _grid(rows)
    if kind is LineageRow:
        _refuse_shared_steps(rows, name)
        return tuple(_segment(row, f"{name}, {row.run_id}") for row in rows)
    return rows


def _grid(rows: tuple[GridRow, ...]) -> dict[str, tuple[GridPoint, ...]]:
    """Each rung's points by step; rungs in the order of the file."""
    rungs = dict.fromkeys(row.rung for row in rows)
    return {rung: tuple(sorted(GridPoint(row.step, row.loss) for row in rows if row.rung == rung)) for rung in rungs}


def _refuse_shared_steps(rows: tuple[LineageRow, ...], name: str) -> None:
    """Raise RecordError where two runs own a step, or rows are not in the order of steps. A gap may be: the sources can
    lack a run."""
    for row in rows:
        if row.end_step_exclusive is not None and row.end_step_exclusive <= row.start_step:
            raise RecordError(
                f"{name}, {row.run_id}: it ends at {row.end_step_exclusive:,}, and begins at {row.start_step:,}. "
                "Give the first step it owns, and the first that it no longer owns."
            )
    for before, after in pairwise(rows):
        end = before.end_step_exclusive
        if end is None or after.start_step < end:
            ends = "no end" if end is None else f"its end at {end:,}"
            raise RecordError(
                f"{name}, {after.run_id}: it begins at step {after.start_step:,}, and {before.run_id} above it has "
                f"{ends}. Put the runs in the order of steps; each step belongs to one run, and only the last is open."
            )


def _segment(row: LineageRow, where: str) -> LineageSegment:
    values = {part.name: getattr(row, part.name) for part in fields(row)}
    commits = tuple(filter(None, (part.strip() for part in row.launch_commits.split(";"))))
    try:
        starts = tuple(int(part) for part in filter(None, row.mixture_stage_starts.split(";")))
    except ValueError as error:
        raise RecordError(
            f"{where}, mixture_stage_starts: {row.mixture_stage_starts!r} is no list of steps."
        ) from error
    return LineageSegment(**{**values, "launch_commits": commits, "mixture_stage_starts": starts})


def _read_configuration(data: bytes) -> RunConfiguration:
    content = parse_json(data, RUN_CONFIGURATION)
    if not isinstance(content, dict):
        raise RecordError(f"{RUN_CONFIGURATION}: must be an object with the key first.")
    return read_entry(RunConfiguration, content, RUN_CONFIGURATION)
