"""How fast the big run goes, and when it would end if it went on so.

    seconds a step    calendar time over completed steps between two moments of the lineage, stops and replays included;
                      or tokens a step over a logged rate, as if nothing ever stopped
    projected end     last moment known + (planned steps - completed steps) x seconds a step

A pace says nothing of what is planned to change: a longer context, other hardware, a shorter run.

Comes in: a record and what its claims state. Goes out: `Pace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, Literal, NamedTuple

from repro.ladder.recipe import Recipe
from repro.ladder.trends import Statement
from repro.record.facts import RUN_CONFIGURATION, Record
from repro.record.tables import LineageSegment

RATE, RATE_OF_SUMMARY = "tokens_per_second", "throughput/tokens_per_second"
PLANNED_END, PLANNED_DAYS, CALENDAR_RATE = "run.planned_end", "run.planned_days", "throughput.calendar_rate"
DAY = 86_400.0  # seconds
ENOUGH = 1_000  # steps: a calendar pace over fewer is that of one stop, or of none


class Projection(NamedTuple):
    """One pace, and the end that it leads to."""

    pace: str  # which, in words
    kind: Literal["calendar", "without stops"]
    seconds_per_step: float
    steps: int  # completed over the span it is from; 0 where it is a rate
    ends: datetime
    source: str


class Plan(NamedTuple):
    """An end that somebody announced, and by how many days the projections miss it (positive: they end later)."""

    announced: str  # as printed
    label: str  # the quantity in words
    unit: str  # of a number; empty of a date
    ends: datetime
    days_late: tuple[float, float]  # of the earliest and of the latest projection
    claim: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Where the run stood when the record ends. `projections` are empty where it is done, or no pace is known."""

    completed: int  # steps of the final history
    planned: int
    at: datetime | None
    state: str  # of the latest W&B run
    projections: tuple[Projection, ...]
    plans: tuple[Plan, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The part `pace` of the command line's `track` object."""
        return {
            "completed_steps": self.completed,
            "planned_steps": self.planned,
            "at": _iso(self.at) if self.at else None,
            "state": self.state,
            "projections": [one._asdict() | {"ends": _iso(one.ends)} for one in self.projections],
            "plans": [one._asdict() | {"ends": _iso(one.ends), "days_late": list(one.days_late)} for one in self.plans],
            "notes": list(self.notes),
        }


def project_end(record: Record, recipe: Recipe, planned: int, statements: Sequence[Statement] = ()) -> Pace | None:
    """The paces that the record knows; None where it has no lineage."""
    if not record.hero_lineage:
        return None
    notes: list[str] = []
    first, latest = record.hero_lineage[0], record.hero_lineage[-1]
    completed = latest.summary_step + 1
    at = _moment(latest.last_heartbeat, f"last heartbeat of {latest.run_id}", notes)
    projections: list[Projection] = []
    if at is not None and completed < planned:
        for kind, pace, seconds, steps, source in _paces(record, recipe, first, latest, at, statements, notes):
            ends = _later(at, seconds * (planned - completed), f"the pace of {pace}", notes)
            if ends is not None:
                projections.append(Projection(pace, kind, seconds, steps, ends, source))
        if latest.state != "running":
            left = f"{latest.run_id} is {latest.state}, {planned - completed:,} steps before the planned end"
            notes.append(f"{left}: a projected end takes it to have gone on at once.")
    return Pace(
        completed=completed,
        planned=planned,
        at=at,
        state=latest.state,
        projections=tuple(projections),
        plans=tuple(_plans(first, projections, statements, notes)),
        notes=tuple(notes),
    )


def _paces(
    record: Record,
    recipe: Recipe,
    first: LineageSegment,
    latest: LineageSegment,
    at: datetime,
    statements: Sequence[Statement],
    notes: list[str],
) -> Iterator[tuple[Literal["calendar", "without stops"], str, float, int, str]]:
    spans = [("the whole run", first), *([("the latest W&B run", latest)] if latest is not first else [])]
    for words, since in spans:
        start = _moment(since.launched, f"launch of {since.run_id}", notes)
        steps = latest.summary_step + 1 - since.start_step
        if start is not None and start < at and steps >= ENOUGH:
            yield "calendar", words, (at - start).total_seconds() / steps, steps, "hero_lineage.csv"
    for one in statements:
        if one.quantity == CALENDAR_RATE and one.low is not None and one.high is not None and one.low > 0:
            words = ", ".join(one.scope.values()) or "as claimed"
            yield "calendar", words, 2 * recipe.tokens_per_step / (one.low + one.high), 0, f"claim {one.id}"
    rates, source = _logged_rates(record, latest)
    rate = median(rates) if rates else 0.0
    if rate > 0:
        yield "without stops", "the latest W&B run as logged", recipe.tokens_per_step / rate, 0, source
    summary = record.run_configuration.summary if record.run_configuration else {}
    last = summary.get(RATE_OF_SUMMARY)
    if isinstance(last, int | float) and last > 0:
        yield "without stops", "the last logged step", recipe.tokens_per_step / last, 0, RUN_CONFIGURATION


def _logged_rates(record: Record, latest: LineageSegment) -> tuple[list[float], str]:
    """Tokens a second of the latest run's own steps, and where they stand: medians of windows, else of single steps, of
    which one would weigh as much as a window of hundreds."""
    windows = [
        row
        for row in record.hero_windows
        if row.metric == RATE and row.run == latest.run_id and row.first_step >= latest.start_step
    ]
    if windows:
        first, last = min(row.first_step for row in windows), max(row.end_step_exclusive for row in windows) - 1
        return [row.median for row in windows], f"hero_windows.csv, steps {first:,} to {last:,}"
    rows = [row for row in record.hero_train if row.run == latest.run_id and row.step >= latest.start_step]
    rates = [(row.step, row.tokens_per_second) for row in rows if row.tokens_per_second is not None]
    if not rates:
        return [], ""
    steps = [step for step, _ in rates]
    return [rate for _, rate in rates], f"hero_train.csv, steps {min(steps):,} to {max(steps):,}"


def _plans(
    first: LineageSegment, projections: Sequence[Projection], statements: Sequence[Statement], notes: list[str]
) -> Iterator[Plan]:
    calendar = [one.ends for one in projections if one.kind == "calendar"]
    if not calendar:
        return
    for one in statements:
        ends = None
        if one.quantity == PLANNED_END and not one.scope:
            ends = _moment(one.printed, f"claim {one.id}", notes)
        elif one.quantity == PLANNED_DAYS and not one.scope and one.low is not None and one.high is not None:
            start = _moment(first.launched, f"launch of {first.run_id}", notes)
            ends = _later(start, DAY * (one.low + one.high) / 2, f"claim {one.id}", notes) if start else None
        if ends is not None:
            late = [(end - ends).total_seconds() / DAY for end in (min(calendar), max(calendar))]
            unit = "days" if one.quantity == PLANNED_DAYS else ""
            yield Plan(one.printed, one.label, unit, ends, (late[0], late[1]), one.id, one.address)


def _moment(text: str, what: str, notes: list[str]) -> datetime | None:
    """The first of the moments that a field lists, in UTC; a day is taken at its midnight. None, and a note, else."""
    try:
        moment = datetime.fromisoformat(text.split(";")[0].strip())
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the latter: within hours of the calendar's first or last day
        notes.append(f"{what}: {text[:60]!r} is no date that can be read.")
        return None


def _later(moment: datetime, seconds: float, what: str, notes: list[str]) -> datetime | None:
    """So many seconds on; None, and a note, where that is beyond the calendar's years 1 to 9999."""
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:
        notes.append(f"{what}: {seconds:.3g} seconds from {moment:%Y-%m-%d} lie beyond any date.")
        return None


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
