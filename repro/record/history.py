"""The availability log: a line a verification and artifact, and what it says of a loss: new, flaky, or long gone.

    {"at": "2026-10-08T03:00:00Z", "id": "hero-issue", "status": "ok"}

Lines are only added. One bad answer is not death: a loss is new when the last time was good, flaky when it came and
went before, lasting when the last times were all bad, and long gone when they were so for LONG days and more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal

from repro.errors import RecordError
from repro.files import parse_json, read_bounded, write_atomically
from repro.record.verify import STATUSES, ArtifactStatus

LONG = 7  # days
RECENT = 10  # verifications that are looked at for coming and going
MAX_LOG = 256 * 2**20  # bytes: 60 artifacts a night fill it in about a hundred years
BAD = ("changed", "gone", "forbidden", "unreachable")

Course = Literal["new", "flaky", "lasting", "long gone", "back"]


@dataclass(frozen=True)
class Seen:
    """One line of the log."""

    at: datetime
    id: str
    status: str


@dataclass(frozen=True)
class Trend:
    """How an artifact fares: since when it is as it is, and how many verifications that is."""

    course: Course
    since: datetime
    times: int


def read_history(path: Path) -> list[Seen]:
    """The log's lines in their order; none where there is no file. A last line that was cut off is passed over."""
    result = []
    for number, line in enumerate(_whole_lines(path).splitlines(), start=1):
        where = f"{path}, line {number}"
        match parse_json(line, where):
            case {"at": str(at), "id": str(id), "status": str(status)} if status in STATUSES:
                try:
                    moment = datetime.fromisoformat(at)
                except ValueError as error:
                    raise RecordError(f"{where}, at: {at!r} is no date and time.") from error
                if moment.tzinfo is None:
                    raise RecordError(f"{where}, at: {at!r} has no time zone; write it with Z.")
                result.append(Seen(moment, id, status))
            case _:
                raise RecordError(f"{where}: must have at, id and a known status. Remove the line, or name a new file.")
    return result


def append_history(path: Path, statuses: Sequence[ArtifactStatus], now: datetime) -> None:
    """Add a line for each artifact that was asked for; the file is replaced whole, so that no line is ever half."""
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    asked = [one for one in statuses if one.status != "skipped"]
    lines = [json.dumps({"at": at, "id": one.artifact.id, "status": one.status}) + "\n" for one in asked]
    write_atomically(path, _whole_lines(path) + "".join(lines).encode())


def trends(history: Sequence[Seen], statuses: Sequence[ArtifactStatus], now: datetime) -> dict[str, Trend]:
    """By artifact, what the log and the statuses of now say together. What is well and was is left out."""
    past: dict[str, list[Seen]] = {}
    for seen in history:
        past.setdefault(seen.id, []).append(seen)
    found = {
        one.artifact.id: _trend(one, [*past.get(one.artifact.id, []), Seen(now, one.artifact.id, one.status)])
        for one in statuses
        if one.status != "skipped"
    }
    return {id: trend for id, trend in found.items() if trend is not None}


def _trend(one: ArtifactStatus, course: Sequence[Seen]) -> Trend | None:
    closed = one.artifact.expectation != "available"
    bad = [seen.status in BAD and not (closed and seen.status == "forbidden") for seen in course]
    times = next((number for number, was in enumerate(reversed(bad)) if was != bad[-1]), len(bad))
    since = course[-times].at
    recent = bad[-RECENT:]
    turns = sum(first != second for first, second in pairwise(recent))
    if not bad[-1]:
        return Trend("back", since, times) if times == 1 and len(bad) > 1 else None
    if len(bad) == 1:
        return None  # the first time that it is asked for: there is nothing to tell
    if turns > 1:
        return Trend("flaky", since, times)
    if times == 1:
        return Trend("new", since, times)
    return Trend("long gone" if (course[-1].at - since).days >= LONG else "lasting", since, times)


def _whole_lines(path: Path) -> bytes:
    """What the log holds, without a last line that was cut off."""
    if not path.exists():
        return b""
    data = read_bounded(path, MAX_LOG)
    return data[: data.rfind(b"\n") + 1]
