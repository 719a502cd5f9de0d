"""A forecast frozen before the outcome is known: a dated file that is never written twice.

    {"schema_version": 1,
     "frozen": "2026-12-02T10:59:00Z",           UTC, when the file was made
     "program": "marin-repro 0.1.0",
     "fit": {...},                               what `fit --points --json` printed: form, coefficients, the digest of
                                                 the points, intervals, how well they are identified, predictions
     "sha256": "..."}                            of the canonical JSON of all above: a later edit shows

The digest shows an edit, not who made it or when: for others to believe the date, publish the file or its digest.

Comes in: a `PointFit`. Goes out: the file, and, for whoever holds it against measurements, a `FrozenForecast`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from repro import __version__
from repro.errors import OutputError, RecordError, UsageError
from repro.files import canonical_json, parse_json, read_bounded
from repro.ladder.forms import FORMS, Form, example_place
from repro.ladder.point_fit import PointFit

SCHEMA_VERSION = 1
KEYS = ("schema_version", "frozen", "program", "fit", "sha256")


@dataclass(frozen=True, kw_only=True)
class FrozenForecast:
    """A forecast as it was frozen. `fit` is the whole object of `fit --points --json`."""

    path: Path
    sha256: str  # of its content, as the file itself says and as was checked
    frozen: datetime
    program: str
    form: Form
    coefficients: Mapping[str, float]
    fit: Mapping[str, Any]

    def loss_at(self, place: Mapping[str, float]) -> float:
        """The frozen law at a place, by column."""
        return self.form.loss_at(self.coefficients, place)


def refuse_existing(path: Path) -> None:
    """OutputError where something stands at `path`: asked before a fit, so that nobody waits for it in vain."""
    if os.path.lexists(path):
        raise OutputError(f"{path} exists; a frozen forecast is not written twice. Choose another name for --freeze.")


def freeze(fit: PointFit, path: Path, now: datetime | None = None) -> FrozenForecast:
    """Write the forecast to a file that does not exist yet. UsageError where it forecasts nothing, else OutputError."""
    if not fit.predictions:
        raise UsageError(
            "--freeze has nothing to forecast: say where with --at, such as --at " + example_place(fit.form)
        )
    content = {
        "schema_version": SCHEMA_VERSION,
        "frozen": (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "program": f"marin-repro {__version__}",
        "fit": fit.as_json(),
    }
    content["sha256"] = _digest(content)
    _write_new(path, canonical_json(content))
    return read_forecast(path)


def read_forecast(path: Path) -> FrozenForecast:
    """A frozen forecast, unchanged. RecordError where it is missing, changed, or of a version not known here."""
    content = parse_json(read_bounded(path), str(path))
    if not isinstance(content, dict) or "schema_version" not in content:
        raise RecordError(
            f"{path} is no frozen forecast: it has no schema_version. Make one with fit --points --freeze."
        )
    version = content["schema_version"]
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema_version {version!r}, not {SCHEMA_VERSION}. Use the version of marin-repro that wrote it."
        )
    if missing := [key for key in KEYS if key not in content]:
        raise RecordError(f"{path}: no {missing[0]}. The file was cut or edited; use a whole copy.")
    stated = content["sha256"]
    if stated != (found := _digest({key: value for key, value in content.items() if key != "sha256"})):
        raise RecordError(
            f"{path} was changed after it was frozen: its content has sha256 {found}, the file says {stated}. Use a "
            "copy that is as it was."
        )
    try:
        fit, form = content["fit"], FORMS[content["fit"]["form"]]
        coefficients = {name: float(fit["coefficients"][name]) for name in form.parameters(free_asymptote=True)}
        return FrozenForecast(
            path=path,
            sha256=stated,
            frozen=datetime.fromisoformat(content["frozen"]),
            program=content["program"],
            form=form,
            coefficients=coefficients,
            fit=fit,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path} is no forecast that fit --freeze wrote: {error!r}.") from error


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _write_new(path: Path, content: str) -> None:
    """Make the file, whole or not at all. OutputError where it exists: asked of the file system, not before."""
    refuse_existing(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink()
                raise
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}. Choose another place for --freeze."
        ) from error
