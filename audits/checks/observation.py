"""What a check sees, and what it says.

View          the record, its ledger, and everything that was published or derived, with a few ways to look at it
Observation   what a reader takes for granted, what the record holds instead, on which claims that rests
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property

from audits.claims import Claim, Kind, Ledger, Scope
from audits.derive import Pool, Statement
from audits.intervals import Interval, shown_number
from repro.record.facts import Record


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One finding of a check. `expected` and `found` are a few words each; `settles` is what would settle it."""

    kind: Kind
    quantity: str
    scope: Scope = ()
    expected: str
    found: str
    arithmetic: str
    claims: tuple[Claim, ...] = ()
    tables: tuple[str, ...] = ()  # what else it rests on: files of the record, entries of record.toml
    rule: str
    settles: str


@dataclass(frozen=True)
class View:
    """What a check may look at."""

    record: Record
    ledger: Ledger
    pool: Pool

    def claims(self, quantity: str) -> list[Claim]:
        """The published claims of a quantity, in the ledger's order."""
        return [one for one in self.pool.by_quantity.get(quantity, ()) if isinstance(one, Claim) and one.id in self.ids]

    @cached_property
    def ids(self) -> set[str]:
        """Ids of the ledger's claims, which a table's own figures are not among."""
        return {one.id for one in self.ledger.claims}

    def best(self, quantity: str, scope: Scope = ()) -> Statement | None:
        """The best number that is known of the quantity in a scope."""
        return next(iter(self.pool.about(quantity, scope)), None)

    def number(self, quantity: str, scope: Scope = ()) -> Fraction | None:
        """The middle of the best number."""
        best = self.best(quantity, scope)
        return best.value.middle if best is not None and isinstance(best.value, Interval) else None

    def label(self, quantity: str) -> str:
        """The quantity as a reader is told."""
        return self.ledger.quantities[quantity].label


def numbers(claims: list[Claim]) -> Iterator[tuple[Claim, Interval]]:
    """The claims that state a number, with it."""
    for claim in claims:
        if isinstance(claim.value, Interval):
            yield claim, claim.value


def moment(text: str) -> datetime | None:
    """The first moment of a list of ISO 8601 days or moments, in UTC; None where it is none."""
    first = text.split(";")[0].strip()
    try:
        found = datetime.fromisoformat(first)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def several(words: list[str], most: int = 6) -> str:
    """A few of them, and how many more there are."""
    shown = ", ".join(words[:most])
    return f"{shown} and {len(words) - most} more" if len(words) > most else shown


def rounded(value: Fraction | float, digits: int = 4) -> str:
    """A number for a sentence."""
    return shown_number(Fraction(value), significant=digits)
