"""The big run's gradient norm and drops along its history, and what was said of them, beforehand or on the way.

A trend is a list of spans of steps, each with the median of its values: the record's windows, and neighbouring logged
steps of one run, no more than `SPAN` of them, so that a run of weeks is no single number.
Steps that were trained and then discarded (a hand-over's control) belong to no history and are marked so. A statement
is judged by the spans of the history alone, warm-up left out, and only as far as the record reaches: a peak is open
while nothing was measured where it was expected.

Comes in: a record, and the statements that its claims make (`repro.cli.track` reads them). Goes out: a `Trend` each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any, Literal, NamedTuple

from repro.record.facts import Record
from repro.record.tables import LineageSegment, TrainSample

GRADIENT_NORM, DROPS = "grad_norm", "drop_fraction"  # metrics of hero_windows.csv, columns of hero_train.csv
NORM_PEAK, DROP_FRACTION, DROP_ALERT = (
    "gradient.norm_peak_fraction",
    "routing.drop_fraction",
    "routing.drop_alert",
)
GAP = 1_000  # steps: samples further apart are another span
SPAN = 5_000  # steps: at each multiple of it a span of samples ends; fetch keeps a row every 500, so ten values

Verdict = Literal["as said", "not as said", "open", "another run", "reached", "not reached"]  # the last two: of alerts


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A claim of the record as far as it is needed here; `low` and `high` are the ends its digits allow, or None."""

    id: str
    quantity: str
    label: str  # the quantity in words
    printed: str
    low: float | None
    high: float | None
    scope: Mapping[str, str]
    quote: str
    note: str
    date: str
    citation: str
    address: str

    def as_json(self) -> dict[str, Any]:
        """As it stands in the command line's `track` object."""
        return {
            "claim": self.id,
            "quantity": self.quantity,
            "label": self.label,
            "printed": self.printed,
            "quote": self.quote,
            "note": self.note,
            "scope": dict(self.scope),
            "date": self.date,
            "citation": self.citation,
            "address": self.address,
        }


class Span(NamedTuple):
    """Median of a metric over logged steps [first_step, end_step); n values."""

    first_step: int
    end_step: int
    run: str
    n: int
    value: float
    history: Literal["whole", "part", "none"]  # how much of it is in the history of the final weights
    source: str


class Judgement(NamedTuple):
    """A statement, and whether it came so as far as the record reaches."""

    statement: Statement
    verdict: Verdict
    found: str


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Spans in the order of steps, and the statements about them."""

    metric: str
    spans: tuple[Span, ...]
    judgements: tuple[Judgement, ...]

    def as_json(self) -> dict[str, Any]:
        """One entry of the part `trends` of the command line's `track` object."""
        return {
            "spans": [span._asdict() for span in self.spans],
            "statements": [
                one.statement.as_json() | {"verdict": one.verdict, "found": one.found} for one in self.judgements
            ],
        }


def gradient_norm(record: Record, planned: int, warm_up: int, statements: Sequence[Statement]) -> Trend:
    """Where the gradient norm stood highest, against where its peak was expected. Steps: planned, and of warm-up."""
    spans = read_spans(record, GRADIENT_NORM)
    seen = _settled(spans, warm_up)
    about = [one for one in statements if one.quantity == NORM_PEAK]
    return Trend(
        metric=GRADIENT_NORM,
        spans=spans,
        judgements=tuple(Judgement(one, *_judge_peak(one, seen, planned)) for one in about),
    )


def drops(record: Record, planned: int, warm_up: int, statements: Sequence[Statement]) -> Trend:
    """The share of assignments that found no room, against what was expected and what would raise an alert."""
    spans = read_spans(record, DROPS)
    seen = _settled(spans, warm_up)
    judged = []
    for one in statements:
        if one.quantity == DROP_ALERT:
            judged.append(Judgement(one, *_judge_alert(one, seen)))
        elif one.quantity == DROP_FRACTION and not one.scope:  # with a scope it is a measurement, or of another run
            judged.append(Judgement(one, *_judge_range(one, seen)))
    return Trend(metric=DROPS, spans=spans, judgements=tuple(judged))


def read_spans(record: Record, metric: str) -> tuple[Span, ...]:
    """The metric's windows and the samples between them, in the order of steps."""
    segments = {segment.run_id: segment for segment in record.hero_lineage}
    spans = [
        Span(
            row.first_step,
            row.end_step_exclusive,
            row.run,
            row.n,
            row.median,
            _history(segments.get(row.run), row.first_step, row.end_step_exclusive),
            f"hero_windows.csv, {row.window}",
        )
        for row in record.hero_windows
        if row.metric == metric
    ]
    for rows in _neighbours([row for row in record.hero_train if getattr(row, metric) is not None]):
        first, end = rows[0].step, rows[-1].step + 1
        history = _history(segments.get(rows[0].run), first, end)
        value = median(getattr(row, metric) for row in rows)
        spans.append(Span(first, end, rows[0].run, len(rows), value, history, f"hero_train.csv, {rows[0].source}"))
    return tuple(sorted(spans, key=lambda span: (span.first_step, span.end_step, span.run)))


def _neighbours(rows: Sequence[TrainSample]) -> Iterator[list[TrainSample]]:
    """Samples of one run and source that lie close together, cut at multiples of `SPAN`; of two of one step and run,
    the first source's."""
    unique = {(row.step, row.run): row for row in reversed(rows)}
    ordered = sorted(unique.values(), key=lambda row: (row.run, row.source, row.step))
    for _, group in groupby(ordered, key=lambda row: (row.run, row.source)):
        near: list[TrainSample] = []
        for row in group:
            if near and (row.step - near[-1].step > GAP or row.step // SPAN > near[-1].step // SPAN):
                yield near
                near = []
            near.append(row)
        yield near


def _history(segment: LineageSegment | None, first: int, end: int) -> Literal["whole", "part", "none"]:
    if segment is None:
        return "none"
    last = end if segment.end_step_exclusive is None else min(end, segment.end_step_exclusive)
    inside = last - max(first, segment.start_step)
    return "whole" if inside == end - first else "part" if inside > 0 else "none"


def _settled(spans: Sequence[Span], warm_up: int) -> list[Span]:
    """Spans of the history after warm-up, where neither norm nor drops say anything of the run."""
    return [span for span in spans if span.history == "whole" and span.first_step >= warm_up]


def _judge_peak(one: Statement, seen: Sequence[Span], planned: int) -> tuple[Verdict, str]:
    if one.low is None or one.high is None:
        return "open", "no number is stated"
    if one.scope:
        return "another run", "shown for comparison"
    if not seen:
        return "open", "the record has no gradient norm of the history"
    top, last = max(seen, key=lambda span: span.value), seen[-1]
    place, known = top.first_step / planned, last.end_step / planned
    found = f"the largest median, {top.value:.3f}, stands at {place:.1%}; the record's norms end at {known:.1%}"
    low, high = one.low * planned, one.high * planned
    if known > one.high and not any(span.end_step > low and span.first_step < high for span in seen):
        before = max((span.end_step for span in seen if span.end_step <= low), default=0)
        after = min(span.first_step for span in seen if span.first_step >= high)
        return "open", f"{found}, and none that counts is of steps {before:,} to {after - 1:,}"
    if top.end_step / planned < one.low:
        return ("open" if known < one.high else "not as said"), found
    return ("not as said" if place > one.high else "as said" if known > one.high else "open"), found


def _judge_range(one: Statement, seen: Sequence[Span]) -> tuple[Verdict, str]:
    if one.low is None or one.high is None:
        return "open", "no number is stated"
    if not seen:
        return "open", "the record has no drop fractions of the history"
    below, above = [span for span in seen if span.value < one.low], [span for span in seen if span.value > one.high]
    inside = [span for span in seen if span not in below and span not in above]
    parts = [
        f"{_share(min(values))} to {_share(max(values))} ({words}) from step {spans[0].first_step:,} to "
        f"{spans[-1].end_step - 1:,}"
        for words, spans in (("within", inside), ("below", below), ("above", above))
        if (values := [span.value for span in spans])
    ]
    return ("as said" if inside and not below and not above else "not as said"), "; ".join(parts)


def _judge_alert(one: Statement, seen: Sequence[Span]) -> tuple[Verdict, str]:
    if one.low is None or not seen:
        return "open", "there is nothing to hold against it"
    top = max(seen, key=lambda span: span.value)
    found = f"after warm-up the largest median is {_share(top.value)}, at step {top.first_step:,}"
    return ("reached" if top.value >= one.low else "not reached"), found


def _share(value: float) -> str:
    return f"{value:.2%}" if value >= 0.001 else f"{value:.1e}"
