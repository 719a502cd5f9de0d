"""How much of a record was read and held against anything: counted before any finding is believed.

A claim is *compared* where another source, or a table of the record, states the same quantity in the same scope; it is
*related* where a relation, a sum or a check has it among its arguments and had all the others. The rest is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audits.checks.observation import Observation
from audits.claims import Claim, Ledger
from audits.derive import Pool
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
    unchecked: tuple[str, ...]

    @property
    def share(self) -> float:
        """Of the claims, those that anything was held against."""
        return 1 - len(self.unchecked) / self.claims if self.claims else 0.0


def coverage(ledger: Ledger, pool: Pool, seen: Sequence[Observation]) -> Coverage:
    """Count what a filled pool holds against what."""
    own = {claim.id for claim in ledger.claims}
    statements = [one for among in pool.by_quantity.values() for one in among]
    by_place: dict[tuple[str, object], list[Claim]] = {}
    for one in statements:
        if isinstance(one, Claim):
            by_place.setdefault((one.quantity, one.scope), []).append(one)
    compared = {one.id for among in by_place.values() if len(among) > 1 for one in among} & own
    derived = [one for one in statements if isinstance(one, Derived) and not one.alternative]
    checked = {(one.quantity, one.scope) for one in derived}
    held = {key for key in checked if key in by_place}
    related = {one.id for key in held for one in by_place[key]}
    related |= {root for one in derived if (one.quantity, one.scope) in held for root in one.roots}
    related |= {claim.id for one in seen for claim in one.claims}
    related &= own
    order = [claim.id for claim in ledger.claims]
    return Coverage(
        claims=len(ledger.claims),
        numbers=sum(isinstance(claim.value, Interval) for claim in ledger.claims),
        names=sum(isinstance(claim.value, str) for claim in ledger.claims),
        table_figures=sum(isinstance(one, Claim) and one.id not in own for one in statements),
        compared=tuple(id for id in order if id in compared),
        related=tuple(id for id in order if id in related),
        unchecked=tuple(id for id in order if id not in compared | related),
    )
