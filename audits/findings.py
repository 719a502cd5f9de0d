"""Findings: what a contradiction is called, how grave it is, what it says, and what to check next. Declared once.

    error      a contradiction that nothing in the record explains, of a quantity that moves a headline
    warning    any other contradiction that the record explains in part or not at all
    explained  a contradiction that the record itself accounts for
    note       no contradiction of its own: another convention of counting, digits cut off, a state that changed with
               time, what follows from another finding, what an outsider cannot have

What a check observes (`audits.checks`) is a note where it is a matter of definition, time or access, or of nothing that
anyone would conclude from; else a warning; explained where the record accounts for it. A number whose digits had to be
reconstructed can hide a finding, but never makes an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from audits.checks.observation import Observation
from audits.claims import RANKS, Claim, Explanation, Scope
from audits.derive import Statement
from audits.intervals import Interval, relative_difference
from audits.quantities import HEADLINE, Quantity
from audits.relations import Derived

Severity = Literal["error", "warning", "explained", "note"]
EXPLAINED = {
    "full": "The record explains it",
    "partial": "The record explains it in part",
    "drift": "It changed with time",
}
FIT = "forecast"  # id of the source that `computed.presupposed` gives to what a fit takes for granted
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "explained", "note")  # the gravest first
Verdict = Literal["inconsistent", "explained", "ambiguous", "inconclusive", "unverifiable"]
VERDICTS: tuple[Verdict, ...] = ("inconsistent", "explained", "ambiguous", "inconclusive", "unverifiable")
GRANTED = "taken for granted"  # the relation of what a check expects
MILD = ("definition", "drift", "access")  # kinds of observation that contradict nothing
TOLD = 3  # effect of a quantity that only tells how the run was run


@dataclass(frozen=True, kw_only=True)
class Value:
    """Statements that can all be right together."""

    statements: tuple[Statement, ...]  # the best first
    reference: bool = False
    why: str = ""  # for a value that is no contradiction of its own: what it follows from, or how it counts
    follows: str = ""  # id of the claim that it follows from

    @property
    def best(self) -> Statement:
        """The statement whose digits stand for all."""
        return self.statements[0]

    @property
    def published(self) -> tuple[Claim, ...]:
        """The claims among them."""
        return tuple(one for one in self.statements if isinstance(one, Claim))

    @property
    def reconstructed(self) -> bool:
        """Whether nothing firmer than reconstructed digits says so."""
        return all(isinstance(one, Claim) and one.digits == "reconstructed" for one in self.statements)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A contradiction, or a note, about one quantity in one scope. `values` has the reference first."""

    quantity: Quantity
    scope: Scope
    values: tuple[Value, ...]
    explanation: Explanation | None = None
    implied: tuple[str, ...] = ()  # what each value would mean for another quantity
    observation: Observation | None = None  # where a check found it; then `found` is the reference, `expected` odd

    @property
    def id(self) -> str:
        """Stays the same from audit to audit: the quantity, the scope if it is not the run itself, a check's kind."""
        scope = ",".join(f"{key}={value}" for key, value in self.scope)
        kind = f"#{self.observation.kind}" if self.observation else ""
        return self.quantity.name + (f"@{scope}" if scope else "") + kind

    @property
    def kind(self) -> str:
        """What sort of finding it is: contradiction, or the kind of a check's observation."""
        return self.observation.kind if self.observation else "contradiction"

    @property
    def odd(self) -> tuple[Value, ...]:
        """The values that contradict the reference; for a note, those that only seem to."""
        real = tuple(value for value in self.values if not value.reference and not value.why)
        return real or tuple(value for value in self.values if value.why)

    @property
    def severity(self) -> Severity:
        """By the rules on top of this file."""
        if self.observation is not None:
            if self.explanation is not None and self.explanation.degree == "full":
                return "explained"
            mild = self.kind in MILD or (self.kind == "missing" and self.quantity.effect == TOLD)
            return "note" if mild or (self.explanation and self.explanation.degree == "drift") else "warning"
        if all(value.why for value in self.odd) or (self.explanation and self.explanation.degree == "drift"):
            return "note"
        if self.explanation is not None:
            return "explained" if self.explanation.degree == "full" else "warning"
        firm = any(not value.reconstructed for value in self.odd) and not self.values[0].reconstructed
        return "error" if self.quantity.effect == HEADLINE and firm else "warning"

    @property
    def verdict(self) -> Verdict:
        """One neutral word: what an auditor may say of it."""
        if self.severity == "explained" or self.kind == "drift":
            return "explained" if self.explanation or self.severity == "explained" else "inconclusive"
        if self.kind == "access":
            return "unverifiable"
        if self.kind in ("missing", "comparability"):
            return "inconclusive"
        if self.kind == "definition":
            return "ambiguous"
        if self.severity == "note":
            return "explained" if self.explanation or any(value.follows for value in self.odd) else "ambiguous"
        reconstructed = self.values[0].reconstructed or all(value.reconstructed for value in self.odd)
        return "inconclusive" if reconstructed and not self.observation else "inconsistent"

    @property
    def suspects(self) -> tuple[str, ...]:
        """Ids of all that could be wrong: the odd claims first, then the rest, then what was derived from."""
        published = [claim.id for value in (*self.odd, *self.values) for claim in value.published]
        return tuple(dict.fromkeys((*published, *(root for one in self.derived for root in one.roots))))

    @property
    def title(self) -> str:
        """The quantity, and the two sides as printed."""
        if self.observation is not None:
            about = f"{self.quantity.label}{_of(self.scope)}"
            return f"{about}: {self.observation.found}; expected {self.observation.expected}"
        sides = " and ".join(self._quoted(value.best) for value in self.odd)
        return f"{self.quantity.label}{_of(self.scope)}: {sides} against {self._quoted(self.values[0].best)}"

    def _quoted(self, statement: Statement) -> str:
        return f"“{statement.printed}”" if self.quantity.is_name else statement.printed

    @property
    def difference(self) -> float | None:
        """Of the farthest odd value from the reference, relative to the reference; None between names."""
        reference = self.values[0].best.value
        apart = [
            relative_difference(value.best.value, reference)
            for value in self.odd
            if isinstance(value.best.value, Interval) and isinstance(reference, Interval)
        ]
        known = [one for one in apart if one is not None]
        return max(known, key=abs) if known else None

    @property
    def derived(self) -> tuple[Derived, ...]:
        """The arithmetic that was held against the claims."""
        return tuple(one for value in self.values for one in value.statements if isinstance(one, Derived))

    @property
    def text(self) -> str:
        """What speaks for each side, in sentences."""
        parts = [value.why for value in self.values if value.why]
        if self.explanation is not None:
            parts.append(f"{EXPLAINED[self.explanation.degree]}: {self.explanation.text}")
        elif self.severity != "note":
            parts.append("No explanation is recorded.")
        return " ".join((*parts, *self.implied))

    @property
    def advice(self) -> str:
        """What to check next."""
        if self.observation is not None:
            return f"What would settle it: {self.observation.settles}"
        reference = self.values[0].best
        if self.severity == "note":
            return "Say which is meant, or which is superseded, wherever it is repeated."
        if self.severity == "explained":
            return "Say which of them is meant wherever it is repeated."
        published = {claim.source.citation for value in self.odd for claim in value.published if claim.source.id != FIT}
        sources = _several(sorted(published))
        if isinstance(reference, Derived):
            check = f"Repeat the arithmetic from {_several(list(reference.inputs))}."
            check += f" Then have it corrected in {sources}, or say so wherever that is used." if sources else ""
        elif sources == reference.source.citation:
            check = f"Ask which of the two is meant in {sources}."
        else:
            check = f"Compare {sources} with {reference.source.citation}, and ask which holds."
        return f"{check} {self._meanwhile(reference)}".strip()

    def _meanwhile(self, reference: Statement) -> str:
        """Which value to use until it is settled: only a number that was resolved, pinned or derived will do."""
        firm = isinstance(reference, Derived) or reference.source.rank <= RANKS.index("pinned code")
        if self.quantity.is_name or not firm:
            return ""
        return f"Until it is settled, use {reference.printed} ({_authority(reference)})."

    def order(self) -> tuple[Any, ...]:
        """Sorts by what changes a conclusion: notes last, then the quantity, then how far apart the sides are."""
        apart = abs(self.difference) if self.difference is not None else 1.0  # two names are wholly apart
        return (self.severity == "note", self.quantity.effect, -apart, self.id)


def groups(findings: Sequence[Finding]) -> list[str]:
    """For each finding the id of the one it has its root in, its own where it has none.

    What follows from a claim has its root where that claim is odd; a check's finding in the contradiction of the same
    quantity and scope; what an outsider cannot have in the first finding of that kind.
    """
    contradictions = {(one.quantity.name, one.scope): one.id for one in findings if one.observation is None}
    odd = {
        claim.id: one.id
        for one in reversed(findings)
        if one.observation is None and one.severity != "note"
        for value in one.odd
        for claim in value.published
    }
    closed = next((one.id for one in findings if one.kind == "access"), "")
    roots = []
    for one in findings:
        follows = next((odd[value.follows] for value in one.odd if value.follows in odd), "")
        beside = contradictions.get((one.quantity.name, one.scope), "") if one.observation is not None else ""
        roots.append(follows or beside or (closed if one.kind == "access" else one.id))
    return roots


@dataclass(frozen=True, kw_only=True)
class Unverifiable:
    """Something that could not be checked, and why."""

    subject: str  # id of a claim, or a part of the record
    quantity: str
    reason: str


def _of(scope: Scope) -> str:
    return f" ({', '.join(f'{key} {value}' for key, value in scope)})" if scope else ""


def _authority(statement: Statement) -> str:
    if isinstance(statement, Derived):
        return f"derived: {statement.relation}"
    return f"{RANKS[statement.source.rank]}: {statement.source.citation}"


def _several(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
