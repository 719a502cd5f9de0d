"""What a record reports of drops, beside what was simulated: how far the two agree, and why others are not compared.

A reported fraction is held against the simulated row of its own conditions: tokens a sequence, transport, racks that
the balance is measured on, at the run's own capacity factors. Where one study reports several sequence lengths, its
growth from one to the next is held against the simulated growth, which hangs less on how strong preferences are.

    agrees       simulated over reported lies within a factor of 2, either way
    too low, too high                   beyond it
    not simulated                       no row has these conditions; what to ask for is said
    not compared                        another shape, another transport, or no measurement; why is said

Comes in: statements of the record, rows of `drops`. Goes out: one `Compared` a statement, one `Growth` a step. No JAX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import log2
from typing import Any, Literal, NamedTuple

from repro.ladder.trends import Statement

ROUGHLY = 2.0  # a factor, either way
Verdict = Literal["agrees", "too low", "too high", "not simulated", "not compared"]

ONE_RACK = ("one-rack comparison", "one-rack contexts")  # pull request 8549; issue 9615
RAGGED_STUDIES = ("one-rack contexts",)  # issue 9615 measures the transport that the run has by then
RAGGED_FROM = 81_716  # the run's step; lineage.csv
TRANSPORTS: Mapping[str, str] = {"pooled wave": "pooled_wave", "ragged": "ragged", "earlier": "earlier"}
EARLIER_LIKE = "pooled_wave"  # the nearest of ours: it has fixed slots at the source too


class Conditions(NamedTuple):
    """Under which a fraction was measured, or simulated."""

    seq_len: int
    transport: str
    racks: int


class Row(NamedTuple):
    """A simulated row at the run's own capacity factors."""

    conditions: Conditions
    drop_fraction: float
    low: float | None  # of its interval
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One statement of the record."""

    statement: Statement
    conditions: Conditions | None
    row: Row | None
    verdict: Verdict
    why: str

    @property
    def reported(self) -> float | None:
        """The middle of what its digits allow."""
        low, high = self.statement.low, self.statement.high
        return None if low is None or high is None else (low + high) / 2

    @property
    def ratio(self) -> float | None:
        """Simulated over reported."""
        return self.row.drop_fraction / self.reported if self.row and self.reported else None

    def as_json(self) -> dict[str, Any]:
        """One of `record` in the command line's `drops` object."""
        row = self.row
        return {
            **self.statement.as_json(),
            "reported": self.reported,
            "conditions": None if self.conditions is None else self.conditions._asdict(),
            "simulated": None if row is None else row.drop_fraction,
            "simulated_interval_95": None if row is None else [row.low, row.high],
            "ratio": self.ratio,
            "verdict": self.verdict,
            "why": self.why,
        }


@dataclass(frozen=True, kw_only=True)
class Growth:
    """From one sequence length of a study to its next."""

    claims: tuple[str, str]
    seq_lens: tuple[int, int]
    reported: float  # the longer's fraction over the shorter's
    simulated: float | None  # None: nothing was dropped at the shorter
    same_direction: bool
    agrees: bool  # within a factor of 2
    citation: str
    address: str

    def as_json(self) -> dict[str, Any]:
        """One of `growth` in the command line's `drops` object."""
        return dict(vars(self))


def compare(statements: Sequence[Statement], rows: Sequence[Row], *, seq_len: int, racks: int) -> tuple[Compared, ...]:
    """Each statement beside its row; `seq_len` and `racks` are the run's own."""
    found = {row.conditions: row for row in rows}
    return tuple(_compare(one, found, seq_len, racks) for one in statements)


def grow(compared: Sequence[Compared]) -> tuple[Growth, ...]:
    """The growth between neighbouring lengths of each study that has two or more with a row."""
    with_rows = [one for one in compared if one.row and one.conditions and one.reported and "context" in _scope(one)]
    return tuple(
        _growth(short, long)
        for _, group in groupby(sorted(with_rows, key=_study), key=_study)
        for short, long in pairwise(sorted(group, key=_length))
        if _length(short) < _length(long)
    )


def conditions_of(one: Statement, *, seq_len: int, racks: int) -> Conditions | str:
    """Under which it was measured; a reason where nothing that is simulated has its like."""
    scope, run = one.scope, one.scope.get("run")
    if not scope:
        return "a prediction, not a measurement"
    if run is not None and run not in ONE_RACK:
        return f"of {run}: another shape, and a model hardly trained"
    alone = run in ONE_RACK or scope.get("study") in ONE_RACK
    transport = _transport(scope)
    if transport is None:
        return "the record does not say by which transport"
    context = re.fullmatch(r"(\d+)K", scope.get("context", ""))
    # 4K, 65K and 262K are powers of two, however they are rounded.
    length = 2 ** round(log2(1000 * int(context[1]))) if context else seq_len
    return Conditions(length, transport, 1 if alone else racks)


def _transport(scope: Mapping[str, str]) -> str | None:
    named = scope.get("transport") or scope.get("segment", "")
    if named in TRANSPORTS:
        return TRANSPORTS[named]
    if scope.get("study") in RAGGED_STUDIES:
        return "ragged"
    step = re.search(r"\d+", scope.get("step", "") or named)
    return None if step is None else "ragged" if int(step[0]) >= RAGGED_FROM else "pooled_wave"


def _compare(one: Statement, rows: Mapping[Conditions, Row], seq_len: int, racks: int) -> Compared:
    conditions = conditions_of(one, seq_len=seq_len, racks=racks)
    if isinstance(conditions, str):
        return Compared(statement=one, conditions=None, row=None, verdict="not compared", why=conditions)
    if conditions.transport == "earlier":
        row = rows.get(conditions._replace(transport=EARLIER_LIKE))
        why = "another transport, whose rule the record does not give; beside it the pooled wave's, for the growth"
        return Compared(statement=one, conditions=conditions, row=row, verdict="not compared", why=why)
    row = rows.get(conditions)
    if row is None:
        name = conditions.transport.replace("_", "-")
        why = f"--seq-len {conditions.seq_len} --transport {name} --racks {conditions.racks} would be it"
        return Compared(statement=one, conditions=conditions, row=None, verdict="not simulated", why=why)
    held = Compared(statement=one, conditions=conditions, row=row, verdict="agrees", why="")
    if held.ratio is None:
        return Compared(statement=one, conditions=conditions, row=row, verdict="not compared", why="no number")
    verdict: Verdict = "agrees" if _close(held.ratio) else "too low" if held.ratio < 1 else "too high"
    inside = row.low is not None and row.high is not None and row.low <= (held.reported or 0) <= row.high
    why = "" if row.low is None else f"the reported one lies {'in' if inside else 'out'}side the interval over layers"
    return Compared(statement=one, conditions=conditions, row=row, verdict=verdict, why=why)


def _growth(short: Compared, long: Compared) -> Growth:
    (before, first), (after, then) = _both(short), _both(long)
    reported, simulated = then / first, after / before if before else None
    return Growth(
        claims=(short.statement.id, long.statement.id),
        seq_lens=(_length(short), _length(long)),
        reported=reported,
        simulated=simulated,
        same_direction=(after > before) == (reported > 1),
        agrees=simulated is not None and _close(simulated / reported),
        citation=long.statement.citation,
        address=long.statement.address,
    )


def lines(compared: Sequence[Compared], growths: Sequence[Growth]) -> Iterator[str]:
    """Both as sentences, each with the claim that it is from."""
    for one in compared:
        told = f"reported {one.statement.printed} [{one.statement.id}]"
        if one.conditions:
            told += f" at {one.conditions.seq_len:,} tokens, {one.conditions.transport.replace('_', ' ')}"
            told += f", {one.conditions.racks} rack{'s' if one.conditions.racks > 1 else ''}"
        if one.row and one.ratio is not None:
            told += f"; simulated {_share(one.row.drop_fraction)}, {one.ratio:.2g} times as much"
        yield f"{told}: {one.verdict}{f' ({one.why})' if one.why else ''}"
    for growth in growths:
        simulated = "out of nothing" if growth.simulated is None else f"{growth.simulated:.1f} times"
        direction = "the same" if growth.same_direction else "the other"
        yield (
            f"from {growth.seq_lens[0]:,} to {growth.seq_lens[1]:,} tokens: reported {growth.reported:.1f} times "
            f"[{', '.join(growth.claims)}], simulated {simulated}: "
            f"{direction} direction, size {'agrees' if growth.agrees else 'differs'}"
        )


def _both(one: Compared) -> tuple[float, float]:
    assert one.row
    assert one.reported
    return one.row.drop_fraction, one.reported


def _close(ratio: float) -> bool:
    return 1 / ROUGHLY <= ratio <= ROUGHLY


def _scope(one: Compared) -> Mapping[str, str]:
    return one.statement.scope


def _study(one: Compared) -> tuple[str, str, int]:
    assert one.conditions
    return one.statement.citation, one.conditions.transport, one.conditions.racks


def _length(one: Compared) -> int:
    assert one.conditions
    return one.conditions.seq_len


def _share(value: float) -> str:
    return f"{value:.2%}" if value >= 0.001 or value == 0 else f"{value:.1e}"
