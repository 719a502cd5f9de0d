"""A run's directory: who writes what into it, and how it is read back. No JAX.

    manifest.json     what the run is (`identity`: recipe, departures, data, seed, code, record) and how it went
                      (`execution`: machine, versions, times, outcome); only the first must agree on a resume
    metrics.jsonl     one object a logged step, in the order of steps
    evals/*.json      one evaluation a file, named by suite and step
    checkpoints/      owned by `repro.ladder.checkpoint`

One process writes at a time (`hold_run`). Files are written whole, metrics a line at a time; a line that a crash cut
off is dropped when the run is resumed.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.errors import OutputError, RecordError, UsageError
from repro.files import canonical_json, output_errors, parse_json, read_bounded, write_atomically

MANIFEST, METRICS, EVALS, HELD = "manifest.json", "metrics.jsonl", "evals", ".held"
HELD_OUT = "heldout"  # the suite of evaluations that training makes itself
VERSION = 1
MAX_METRICS = 2**30  # bytes

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a run is, and how it went."""

    identity: Mapping[str, Any]
    execution: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> Json:
        """As it stands in manifest.json."""
        return {"version": VERSION, "identity": dict(self.identity), "execution": dict(self.execution)}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json whole. Raises OutputError."""
    write_atomically(folder / MANIFEST, canonical_json(manifest.as_json()))


def read_manifest(folder: Path) -> Manifest:
    """Read a run's manifest. Raises RecordError where the folder is no run, or one of another version."""
    if not (folder / MANIFEST).is_file():
        raise RecordError(f"{folder} is not a run: it has no {MANIFEST}. Name the folder that train wrote.")
    content = parse_json(read_bounded(folder / MANIFEST), f"{folder}/{MANIFEST}")
    if not isinstance(content, dict) or set(content) != {"version", "identity", "execution"}:
        raise RecordError(f"{folder}/{MANIFEST}: must hold version, identity and execution, and nothing else.")
    if content["version"] != VERSION:
        raise RecordError(
            f"{folder}/{MANIFEST}: version {content['version']!r} is not {VERSION}, which this program reads."
        )
    return Manifest(identity=content["identity"], execution=content["execution"])


def check_resumable(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise UsageError, naming the first differing field, where the run in the folder is not the one meant."""
    there = read_manifest(folder).identity
    for place, (found, wanted) in _differences(there, json.loads(canonical_json(dict(identity)))):
        raise UsageError(
            f"{folder} holds another run: {place} is {found!r} there and would be {wanted!r} now. Resume it with what "
            "it was started with, or choose another --out."
        )


def append_metrics(folder: Path, row: Mapping[str, Any]) -> None:
    """Add one step's metrics; numbers that are not finite are written as text, so that the file stays strict JSON."""
    line = json.dumps({name: _strict(value) for name, value in row.items()}, allow_nan=False) + "\n"
    with output_errors(folder / METRICS), (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(line)


def read_metrics(folder: Path) -> list[Json]:
    """All whole lines of metrics.jsonl; a last line without its end is left out. Raises RecordError."""
    if not (folder / METRICS).is_file():
        return []
    data = read_bounded(folder / METRICS, MAX_METRICS)
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        row = parse_json(line, f"{folder}/{METRICS}, line {number}")
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise RecordError(f"{folder}/{METRICS}, line {number}: must be an object with a whole number under step.")
        rows.append(row)
    return rows


def cut_metrics(folder: Path, steps_completed: int) -> None:
    """Keep the metrics of zero-based steps below `steps_completed`: what a restored checkpoint knows of."""
    kept = [row for row in read_metrics(folder) if row["step"] < steps_completed]
    write_atomically(folder / METRICS, "".join(json.dumps(row) + "\n" for row in kept))


def evaluation_path(folder: Path, suite: str, steps_completed: int) -> Path:
    """Where that evaluation lies, or would."""
    return folder / EVALS / f"{suite}-{steps_completed:08d}.json"


def write_evaluation(folder: Path, suite: str, steps_completed: int, result: Mapping[str, Any]) -> Path:
    """Write one evaluation as evals/SUITE-STEP.json and return its path."""
    path = evaluation_path(folder, suite, steps_completed)
    write_atomically(path, canonical_json(dict(result)))
    return path


def has_evaluation(folder: Path, suite: str, steps_completed: int) -> bool:
    """Whether that evaluation is there."""
    return evaluation_path(folder, suite, steps_completed).is_file()


def cut_evaluations(folder: Path, suite: str, steps_completed: int) -> None:
    """Remove a suite's evaluations after `steps_completed` updates, of which a restored checkpoint knows nothing."""
    last = evaluation_path(folder, suite, steps_completed)
    with output_errors(folder / EVALS):
        for path in (folder / EVALS).glob(f"{suite}-*.json"):
            if path.name > last.name:
                path.unlink()


def read_evaluations(folder: Path, suite: str) -> list[Json]:
    """A suite's evaluations in the order of steps."""
    paths = sorted((folder / EVALS).glob(f"{suite}-*.json"))
    return [parse_json(read_bounded(path), str(path)) for path in paths]


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Be the only process that writes this run. Raises OutputError where another one is; a dead one holds nothing."""
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / HELD, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(
                f"{folder} is being written by process {_holder(handle)}. Wait for it, or choose another --out."
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)  # gives the lock back


def _holder(handle: int) -> str:
    return os.pread(handle, 20, 0).decode(errors="replace") or "unknown"


def _strict(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _differences(first: Any, second: Any, place: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Places at which two values of JSON differ, with both."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys((*first, *second)):
            yield from _differences(first.get(key), second.get(key), f"{place}.{key}".lstrip("."))
    elif first != second:
        yield place, (first, second)
