"""How much of a record was read and held against anything: counted before any finding is believed.

A claim is *compared* where another statement of the record, a table's too, is about the same quantity, counted alike,
in the same scope; *related* where a relation or a sum has it among its arguments and had all the others, and what it
gives is held against a claim; *looked at* where a check's finding rests on it. The rest is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audits.checks.observation import Observation
from audits.claims import Claim, Ledger, Scope
from audits.derive import Pool, Statement
from audits.intervals import Interval
from audits.relations import Derived


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Ids of claims, each in the ledger's order; `table_figures` counts what the record's tables state beside them."""

    claims: int
    numbers: int
    names: int
    table_figures: int
    compared: tuple[str, ...]
    related: tuple[str, ...]
    looked_at: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of the claims, those that anything was held against."""
        return 1 - len(self.unchecked) / self.claims if self.claims else 0.0


def coverage(ledger: Ledger, pool: Pool, seen: Sequence[Observation]) -> Coverage:
    """Count what a filled pool holds against what."""
    own = {claim.id for claim in ledger.claims}
    statements = [one for among in pool.by_quantity.values() for one in among]

    def way_of(one: Statement) -> tuple[str, Scope, str]:
        usual = next(iter(ledger.quantities[one.quantity].conventions), "")
        return one.quantity, one.scope, one.convention or usual

    counted_alike: dict[tuple[str, Scope, str], list[Claim]] = {}
    for one in statements:
        if isinstance(one, Claim):
            counted_alike.setdefault(way_of(one), []).append(one)
    compared = {one.id for among in counted_alike.values() if len(among) > 1 for one in among} & own
    derived = [(one, way_of(one)) for one in statements if isinstance(one, Derived) and not one.alternative]
    related = {one.id for _, way in derived for one in counted_alike.get(way, ())}
    related |= {root for one, way in derived if way in counted_alike for root in one.roots}
    related &= own
    looked_at = {claim.id for one in seen for claim in one.claims} & own
    held = compared | related | looked_at
    order = [claim.id for claim in ledger.claims]
    return Coverage(
        claims=len(ledger.claims),
        numbers=sum(isinstance(claim.value, Interval) for claim in ledger.claims),
        names=sum(isinstance(claim.value, str) for claim in ledger.claims),
        table_figures=sum(isinstance(one, Claim) and one.id not in own for one in statements),
        compared=tuple(id for id in order if id in compared),
        related=tuple(id for id in order if id in related),
        looked_at=tuple(id for id in order if id in looked_at),
        unchecked=tuple(id for id in order if id not in held),
    )
