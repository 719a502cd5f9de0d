"""Claims × relations → findings, and what could not be checked. A pure function of the record and its ledger.

For each quantity and scope, what is published is held against the rest and against what the relations derive. Numbers
that some one value satisfies agree; the cluster of the best source is the reference, every other one contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

from audits.checks import CHECKS, observations
from audits.checks.observation import Observation, View
from audits.claims import Claim, Explanation, Ledger, Scope, freeze_scope
from audits.computed import computed, not_computed, presupposed
from audits.coverage import Coverage, coverage
from audits.derive import Pool, Statement, derive, missing_inputs, preference, read_back
from audits.findings import GRANTED, Finding, Unverifiable, Value
from audits.intervals import Interval, cut_off, intersection, shown
from audits.quantities import Quantity
from audits.relations import ARITHMETIC, RELATIONS, Derived, Relation
from audits.tables import table_claims
from repro.record.facts import Record


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found. `checked` counts the relations that were evaluated, and in how many scopes."""

    record: Record
    ledger: Ledger
    findings: tuple[Finding, ...]
    unverifiable: tuple[Unverifiable, ...]
    relations_checked: int
    scopes_checked: int
    checks: int
    coverage: Coverage


def audit_record(record: Record, ledger: Ledger) -> Audit:
    """Hold every claim of the ledger and the record's tables against each other and against the relations."""
    relations = [one for one in RELATIONS if one.recipe in ("", record.run.recipe)]
    pool = Pool(ledger.quantities)
    pool.add(ledger.claims)
    pool.add(table_claims(record))
    pool.add(presupposed(record))
    from_tables = computed(record)
    pool.add(from_tables)
    evaluated = derive(pool, relations)
    findings = [
        found
        for name, scope in _groups(pool)
        if (found := _examine(ledger.quantities[name], scope, pool, ledger.explanations, relations)) is not None
    ]
    seen = observations(View(record, ledger, pool))
    findings += [_observed(one, ledger) for one in seen]
    return Audit(
        record=record,
        ledger=ledger,
        findings=tuple(sorted(findings, key=Finding.order)),
        unverifiable=(
            *_unlocked(record),
            *starmap(_not_computed, not_computed(record)),
            *_unchecked(ledger.claims, pool, relations),
        ),
        relations_checked=len(evaluated) + len({one.relation for one in from_tables}),
        scopes_checked=sum(map(len, evaluated.values())) + len({(one.relation, one.scope) for one in from_tables}),
        checks=len(CHECKS),
        coverage=coverage(ledger, pool, seen),
    )


def _observed(one: Observation, ledger: Ledger) -> Finding:
    """A check's observation as a finding: what was found, with the claims it rests on, against what was expected."""
    ids = tuple(claim.id for claim in one.claims)
    found, expected = (
        Derived(
            quantity=one.quantity,
            scope=one.scope,
            value=printed,
            printed=printed,
            relation=relation,
            source=ARITHMETIC,
            arithmetic=arithmetic,
            inputs=inputs,
            roots=inputs,
            rank=0,
        )
        for printed, relation, arithmetic, inputs in (
            (one.found, one.rule, one.arithmetic, (*ids, *one.tables)),
            (one.expected, GRANTED, f"{GRANTED}: {one.rule}", ()),
        )
    )
    return Finding(
        quantity=ledger.quantities[one.quantity],
        scope=one.scope,
        values=(Value(statements=(found, *one.claims), reference=True), Value(statements=(expected,))),
        explanation=_explanation(one.quantity, one.scope, ledger.explanations, one.kind),
        observation=one,
    )


def _explanation(
    quantity: str, scope: Scope, explanations: Sequence[Explanation], kind: str = "contradiction"
) -> Explanation | None:
    wanted = (quantity, scope, kind)
    return next((one for one in explanations if (one.quantity, freeze_scope(one.scope), one.kind) == wanted), None)


def _groups(pool: Pool) -> list[tuple[str, Scope]]:
    """Every quantity and scope that something is said of, in a fixed order."""
    return sorted({(name, one.scope) for name, statements in pool.by_quantity.items() for one in statements})


def _examine(
    quantity: Quantity,
    scope: Scope,
    pool: Pool,
    explanations: Sequence[Explanation],
    relations: Sequence[Relation],
) -> Finding | None:
    """One finding about the quantity in this scope, or None where all that is said of it can be right together."""
    said = sorted((one for one in pool.by_quantity[quantity.name] if one.scope == scope), key=preference)
    alternatives = [one for one in said if isinstance(one, Derived) and one.alternative]
    firm = [one for one in said if one not in alternatives]
    ranked: list[tuple[bool, Value]] = []  # whether the value's convention is without contradiction, the value
    by_convention = _by_convention(quantity, firm)
    for convention, members in by_convention.items():
        clusters = _clusters(members)
        default = convention == next(iter(by_convention))
        for number, cluster in enumerate(clusters):
            value = Value(statements=tuple(cluster), reference=number == 0)
            if number > 0:
                value = _reduced(value, clusters[0][0], alternatives)
            elif not default:
                value = _other_convention(value, convention, by_convention, quantity)
            ranked.append((len(clusters) == 1, value))
    ranked.sort(key=lambda one: (bool(one[1].why), not one[1].reference, one[0]))
    values = [value for _, value in ranked]
    seeming = [value for value in values if not value.reference or value.why]
    if not any(value.published for value in (*seeming, values[0])) or not seeming:
        return None
    explanation = _explanation(quantity.name, scope, explanations)
    implied = (
        *(line for relation in relations for line in _implied(relation, values, quantity, pool)),
        *(line for value in values if not value.reference for line in _elsewhere(value, alternatives)),
    )
    return Finding(quantity=quantity, scope=scope, values=tuple(values), explanation=explanation, implied=implied)


def _by_convention(quantity: Quantity, said: Sequence[Statement]) -> dict[str, list[Statement]]:
    """What is said in each convention, the default first. A claim that names none goes to the first it agrees with."""
    named = {name: [one for one in said if one.convention == name] for name in quantity.conventions or ("",)}
    default = next(iter(named))
    for one in said:
        if quantity.conventions and not one.convention:
            agreeing = (name for name, members in named.items() if members and _agree(one, members[0]))
            named[next(agreeing, default)].append(one)
    return {name: sorted(members, key=preference) for name, members in named.items() if members}


def _clusters(said: Sequence[Statement]) -> list[list[Statement]]:
    """Statements that some one value satisfies, each put to the first cluster it fits; the best statement opens one."""
    clusters: list[tuple[Interval | str, list[Statement]]] = []
    for one in said:
        for place, (common, members) in enumerate(clusters):
            shared = _common(common, one.value)
            if shared is not None:
                members.append(one)
                clusters[place] = (shared, members)
                break
        else:
            clusters.append((one.value, [one]))
    return [members for _, members in clusters]


def _common(first: Interval | str, second: Interval | str) -> Interval | str | None:
    if isinstance(first, Interval) and isinstance(second, Interval):
        return intersection(first, second)
    return first if first == second else None


def _agree(first: Statement, second: Statement) -> bool:
    return _common(first.value, second.value) is not None


def _cut_off(value: Value, reference: Statement) -> str:
    """Why printed digits that miss the reference by less than one unit are no contradiction: nobody rounded them."""
    for one in value.statements:
        printed = isinstance(one, Claim) and one.digits == "printed" and isinstance(one.value, Interval)
        if not printed or _common(cut_off(one.value), reference.value) is None:  # type: ignore[arg-type]
            return ""
    return f"{value.best.printed} is {reference.printed} cut off after the last printed digit, not rounded."


def _reduced(value: Value, reference: Statement, alternatives: Iterable[Derived]) -> Value:
    """The odd value, marked where it is no contradiction of its own: digits cut off, or what follows from another."""
    if why := _cut_off(value, reference):
        return replace(value, why=why)
    own = {claim.id for claim in value.published}  # what follows from itself is no excuse
    for other in alternatives:
        if other.from_claims and not own & set(other.roots) and all(_agree(one, other) for one in value.statements):
            why = f"{value.best.printed} follows from {other.alternative}: {other.arithmetic}."
            return replace(value, why=why, follows=other.alternative)
    return value


def _elsewhere(value: Value, alternatives: Iterable[Derived]) -> list[str]:
    """What an odd value does fit: the same quantity of something else that the record's tables hold."""
    return [
        f"{value.best.printed} is what {other.alternative} has: {other.arithmetic}."
        for other in alternatives
        if not other.from_claims and all(_agree(one, other) for one in value.statements)
    ]


def _other_convention(
    value: Value, convention: str, by_convention: dict[str, list[Statement]], quantity: Quantity
) -> Value:
    """Mark claims that agree with a convention they do not name, and not with the default one."""
    reference = next(iter(by_convention.values()))[0]
    silent = [one for one in value.published if not one.convention and not _agree(one, reference)]
    if not silent:
        return value
    why = f"{silent[0].printed} is {quantity.label} counted {convention!r}, which the claim does not say."
    rest = [one for one in value.statements if one not in silent]
    return Value(statements=(*silent, *rest), reference=True, why=why)


def _implied(relation: Relation, values: Sequence[Value], quantity: Quantity, pool: Pool) -> list[str]:
    """What each contradicting value would mean for another quantity, by the relation read backwards."""
    default = next(iter(quantity.conventions), "")
    if relation.output != quantity.name or relation.read_back is None or relation.convention not in ("", default):
        return []
    lines = []
    for value in values:
        claim = _narrowest(value, {"", relation.convention})
        back = read_back(relation, claim, pool) if claim is not None and not value.why else None
        if claim is not None and back is not None:
            label = pool.quantities[relation.implied].label
            lines.append(f"{claim.printed} implies {shown(back)} {label} ({relation.name}).")
    return lines if len(lines) > 1 else []


def _narrowest(value: Value, conventions: set[str]) -> Claim | None:
    """The published number that says most, among those counted in these conventions."""
    numbers = [one for one in value.published if isinstance(one.value, Interval) and one.convention in conventions]
    return min(numbers, key=lambda one: (one.value.high - one.value.low, one.id), default=None)  # type: ignore[union-attr]


def _unlocked(record: Record) -> list[Unverifiable]:
    if record.lock is not None:
        return []
    return [
        Unverifiable(subject="record", quantity="", reason="it was never locked, so nothing vouches for its bytes.")
    ]


def _not_computed(subject: str, quantity: str, reason: str) -> Unverifiable:
    return Unverifiable(subject=subject, quantity=quantity, reason=reason)


def _unchecked(claims: Sequence[Claim], pool: Pool, relations: Sequence[Relation]) -> list[Unverifiable]:
    """Claims that nothing else speaks of in their scope, and what a relation would have needed to check them."""
    rows = []
    for claim in claims:
        others = [
            one
            for one in pool.by_quantity[claim.quantity]
            if one.scope == claim.scope
            and one is not claim
            and not (isinstance(one, Derived) and (one.alternative or claim.id in one.inputs))
        ]
        if others:
            continue
        lacking = [
            f"{relation.name}: for this scope the record gives no {' and no '.join(missing)}"
            for relation in relations
            if relation.output == claim.quantity and (missing := missing_inputs(relation, claim.scope, pool))
        ]
        used = [
            relation.name
            for relation in relations
            if claim.quantity in relation.inputs and pool.by_quantity.get(relation.output)
        ]
        stands = f"it is used in: {'; '.join(used)}." if used else "no relation speaks of it."
        reason = "; ".join(lacking) or f"no second source states it, and {stands}"
        rows.append(Unverifiable(subject=claim.id, quantity=claim.quantity, reason=reason))
    return rows
