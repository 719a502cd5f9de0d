"""Claims × relations → what must hold: each relation evaluated in every scope where its inputs are known.

For an input the record's best value is taken: the one that speaks most narrowly of the scope, then the best source,
then an exact number, then a derived one, then the one of more digits, then the later date. Scopes narrow down: a moment
of a run has the run's batch size, but one rung has nothing of another (`quantities.REFINING`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from audits.claims import Claim, Scope
from audits.intervals import Interval, cut_off, exact, image, overlap, shown
from audits.quantities import REFINING, Quantity
from audits.relations import ARITHMETIC, COUNTS, STEP, SUMS, Count, Derived, Relation, Sum

Statement = Claim | Derived


@dataclass
class Pool:
    """All statements by quantity, growing while relations are evaluated."""

    quantities: Mapping[str, Quantity]
    by_quantity: dict[str, list[Statement]] = field(default_factory=dict)
    # Quantity and identity of the scope: its scopes, each with what is said there.
    by_thing: dict[tuple[str, Scope], dict[Scope, list[Statement]]] = field(default_factory=dict)

    def add(self, statements: Iterable[Statement]) -> None:
        """Put statements in, each under its quantity."""
        for statement in statements:
            self.by_quantity.setdefault(statement.quantity, []).append(statement)
            there = self.by_thing.setdefault((statement.quantity, identity(statement.scope)), {})
            there.setdefault(statement.scope, []).append(statement)

    def about(self, quantity: str, scope: Scope, convention: str = "") -> list[Statement]:
        """What speaks of the quantity in this scope or a wider one, in the convention (default: the first), best first.

        Alternatives come last.
        """
        first = next(iter(self.quantities[quantity].conventions), "")
        wanted, around = {convention} if convention else {"", first}, set(scope)
        found = [
            one
            for wider, said in self.by_thing.get((quantity, identity(scope)), {}).items()
            if around.issuperset(wider)
            for one in said
            if isinstance(one.value, Interval)
            and one.convention in wanted
            and not (isinstance(one, Derived) and one.only_checks)
        ]
        return sorted(found, key=preference)


def identity(scope: Scope) -> Scope:
    """The part of a scope that says which thing is meant."""
    return tuple(pair for pair in scope if pair[0] not in REFINING)


def preference(statement: Statement) -> tuple[object, ...]:
    """Sorts the best statement of one quantity first."""
    published = isinstance(statement, Claim)
    width = statement.value.high - statement.value.low if isinstance(statement.value, Interval) else 0
    point = width == 0
    return (
        isinstance(statement, Derived) and bool(statement.alternative),
        -len(statement.scope),
        statement.source.rank if isinstance(statement, Claim) else statement.rank,
        not point,
        published != point,  # an exact number as published, else what was derived rather than what was rounded
        width,
        _descending(statement.date.last) if isinstance(statement, Claim) else (),
        statement.printed,
        statement.id if isinstance(statement, Claim) else statement.relation,
    )


def derive(pool: Pool, relations: Sequence[Relation]) -> dict[tuple[str, str], set[Scope]]:
    """Evaluate the relations in order and add what they give to the pool.

    Returns, for each (quantity, relation) the scopes in which it could be evaluated.
    """
    evaluated: dict[tuple[str, str], set[Scope]] = {}
    for total in SUMS:
        for one in _add_up(total, pool):
            evaluated.setdefault((one.quantity, one.relation), set()).add(one.scope)
            pool.add([one])
    for count in COUNTS:
        for one in _counted(count, pool):
            evaluated.setdefault((one.quantity, one.relation), set()).add(one.scope)
            pool.add([one])
    for relation in relations:
        for scope in _scopes(relation, pool):
            results = _evaluate(relation, scope, pool)
            if results:
                evaluated.setdefault((relation.output, relation.name), set()).add(scope)
            pool.add(results)
    return evaluated


def read_back(relation: Relation, claim: Claim, pool: Pool) -> Interval | None:
    """What the relation's implied input would have to be for the claim to be right; None where an input is missing."""
    if relation.read_back is None or not isinstance(claim.value, Interval):
        return None
    others = [name for name in relation.inputs if name != relation.implied]
    inputs = [_best(relation, name, claim.scope, pool) for name in others]
    values = [one.value for one in inputs if one is not None and isinstance(one.value, Interval)]
    if len(values) < len(others) or any(value.low <= 0 for value in (claim.value, *values)):
        return None
    try:
        return relation.read_back(claim.value, *values)
    except ValueError:
        return None


def missing_inputs(relation: Relation, scope: Scope, pool: Pool) -> list[str]:
    """Inputs that no statement of the record gives in this scope."""
    return [
        name
        for name in relation.inputs
        if (name == STEP and _step(scope) is None) or (name != STEP and _best(relation, name, scope, pool) is None)
    ]


def _add_up(total: Sum, pool: Pool) -> list[Derived]:
    """What a source's parts make of the whole, or of each other; only where it states two or more of them."""
    stated: dict[tuple[str, Scope], list[Claim]] = {}
    for one in pool.by_quantity.get(total.part, ()):
        if isinstance(one, Claim) and isinstance(one.value, Interval) and dict(one.scope).get(total.key):
            rest = tuple(pair for pair in one.scope if pair[0] != total.key)
            stated.setdefault((one.source.id, rest), []).append(one)
    results = []
    for (_, rest), parts in stated.items():
        for left_out in [None] if total.whole else parts:
            others = [one for one in parts if one is not left_out]
            values = [one.value for one in others if isinstance(one.value, Interval)]
            if len(parts) < 2:
                continue
            value = image(lambda *terms: sum(terms) if total.whole else 1 - sum(terms), *values)
            terms = " + ".join(shown(one) for one in values)
            results.append(
                Derived(
                    quantity=total.whole or total.part,
                    scope=left_out.scope if left_out else rest,
                    value=value,
                    printed=shown(value),
                    relation=total.name,
                    source=ARITHMETIC,
                    arithmetic=f"{total.name}: {terms if total.whole else f'1 − ({terms})'} → {shown(value)}",
                    inputs=tuple(one.id for one in others),
                    roots=tuple(one.id for one in others),
                    rank=max(one.source.rank for one in others),
                )
            )
    return results


def _counted(count: Count, pool: Pool) -> list[Derived]:
    """How many things a source gives the counted name; only where it speaks of two or more of them."""
    stated: dict[str, list[Claim]] = {}
    for one in pool.by_quantity.get(count.part, ()):
        if isinstance(one, Claim) and [key for key, _ in one.scope] == [count.key]:
            stated.setdefault(one.source.id, []).append(one)
    return [
        Derived(
            quantity=count.total,
            scope=(),
            value=exact(number := sum(one.value == count.value for one in parts)),
            printed=shown(exact(number)),
            relation=count.name,
            source=ARITHMETIC,
            arithmetic=f"{count.name}: {number} of {len(parts)}",
            inputs=tuple(one.id for one in parts),
            roots=tuple(one.id for one in parts),
            rank=max(one.source.rank for one in parts),
        )
        for _, parts in sorted(stated.items())
        if len(parts) > 1
    ]


def _scopes(relation: Relation, pool: Pool) -> list[Scope]:
    """Where a relation may be evaluated: wherever something is said of its output or of one of its inputs."""
    names = (relation.output, *relation.inputs)
    return sorted({one.scope for name in names for one in pool.by_quantity.get(name, ())})


def _evaluate(relation: Relation, scope: Scope, pool: Pool) -> list[Derived]:
    """The derived value, and its alternatives; empty where an input is missing, or all of them hold more widely."""
    best: list[Statement | Interval] = []
    for name in relation.inputs:
        value = _step(scope) if name == STEP else _best(relation, name, scope, pool)
        if value is None:
            return []
        best.append(value)
    claimed = scope in pool.by_thing.get((relation.output, identity(scope)), {})
    if not claimed and not any(getattr(one, "scope", scope) == scope for one in best):
        return []
    results = [_derived(relation, scope, best, alternative="")]
    for place, name in enumerate(relation.inputs):
        for other in _contradicted(relation, name, scope, best[place], pool):
            inputs = [*best[:place], other, *best[place + 1 :]]
            results.append(_derived(relation, scope, inputs, alternative=_named(other)))
    return [one for one in results if one is not None]


def _best(relation: Relation, name: str, scope: Scope, pool: Pool) -> Statement | None:
    found = pool.about(name, scope, relation.input_conventions.get(name, ""))
    if name in relation.as_printed:
        found = [one for one in found if isinstance(one, Claim) and one.digits == "printed"]
    found = [one for one in found if not (isinstance(one, Derived) and one.alternative)]
    return found[0] if found else None


def _contradicted(
    relation: Relation, name: str, scope: Scope, best: Statement | Interval, pool: Pool
) -> list[Statement]:
    """Other values of an input that contradict the best one, each once; digits cut off are no excuse."""
    if isinstance(best, Interval) or name in relation.as_printed:
        return []
    assert isinstance(best.value, Interval)
    others: list[Statement] = []
    for one in pool.about(name, scope, relation.input_conventions.get(name, "")):
        known = [best, *others]
        printed = isinstance(one, Claim) and one.digits == "printed" and isinstance(one.value, Interval)
        if printed and overlap(cut_off(one.value), best.value):  # type: ignore[arg-type]
            continue
        if all(isinstance(k.value, Interval) and not overlap(one.value, k.value) for k in known):  # type: ignore[arg-type]
            others.append(one)
    return others


def _derived(relation: Relation, scope: Scope, inputs: list[Statement | Interval], alternative: str) -> Derived | None:
    """What the relation gives; None where an input is not positive, for which no relation is meant."""
    values = [_number(relation, name, one) for name, one in zip(relation.inputs, inputs, strict=True)]
    if any(value.low <= 0 for name, value in zip(relation.inputs, values, strict=True) if name != STEP):
        return None
    try:
        value = relation.function(*values)
    except ValueError:
        return None
    statements = [one for one in inputs if not isinstance(one, Interval)]
    return Derived(
        quantity=relation.output,
        scope=scope,
        convention=relation.convention,
        value=value,
        printed=shown(value),
        relation=relation.name,
        source=relation.source,
        arithmetic=f"{relation.name}: {', '.join(shown(one) for one in values)} → {shown(value)}",
        inputs=tuple(_named(one) for one in statements),
        roots=tuple(dict.fromkeys(root for one in statements for root in _roots(one))),
        rank=max((one.source.rank if isinstance(one, Claim) else one.rank for one in statements), default=0),
        only_checks=relation.only_checks,
        alternative=alternative,
    )


def _number(relation: Relation, name: str, one: Statement | Interval) -> Interval:
    if isinstance(one, Interval):
        return one
    assert isinstance(one.value, Interval)
    return exact(one.value.middle) if name in relation.as_printed else one.value


def _roots(one: Statement) -> tuple[str, ...]:
    return (one.id,) if isinstance(one, Claim) else one.roots


def _named(one: Statement | Interval) -> str:
    if isinstance(one, Claim):
        return one.id
    assert isinstance(one, Derived)
    return one.alternative or one.relation


def _step(scope: Scope) -> Interval | None:
    """A moment's completed steps: its log step s or s + 1, since a text rarely says which it counts."""
    step = dict(scope).get("step", "")
    if not re.fullmatch(r"[0-9]{1,15}", step):
        return None
    return Interval(exact(int(step)).low, exact(int(step) + 1).high)


def _descending(text: str) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in text)
