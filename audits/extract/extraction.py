"""Documents → an extraction: claims with the words they stand in, what stays ambiguous, what was not read, oddities.

    documents_of(name, bytes)  →  extract(documents, registry, subject)  →  ledger(extraction), coverage(extraction)

`ledger` is claims.json, which `audits.claims` reads and `audits.check` holds against the rest. `coverage` says how many
numbers the texts hold, how many were read, and lists those that were not, each with its reason.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from audits.claims import SOURCE_KINDS
from audits.extract.cells import Table, read_passage, table_of
from audits.extract.documents import Document
from audits.extract.markdown import read_markdown
from audits.extract.outcomes import TOO_MANY, Found, Outcome, Unclear, Unread
from audits.extract.pages import read_html
from audits.extract.passages import Oddity, Passage, Reading, one_line
from audits.extract.registry import Registry
from audits.extract.scopes import Subject
from audits.extract.settings import Leaf, read_constants, read_leaves
from audits.quantities import QUANTITIES

MOST = 8000  # numbers of one document
MAX_TOTAL = 8 * 2**20  # characters of all documents together
UNCOUNTED = ("", "ratio", "nats/token", "bits/byte", "fraction", "×")  # a plain integer of such a unit may be rounded
UNREAD = ("too long", "too many numbers", "not read", "not HTML")  # kinds of oddity that hide a text, or part of one


@dataclass(frozen=True, kw_only=True)
class Span:
    """Where something stands: in which source, at which characters of its text, on which line."""

    source: str
    place: str
    line: int
    start: int
    end: int
    quote: str


@dataclass(frozen=True, kw_only=True)
class ExtractedClaim:
    """A claim as it goes to claims.json, with what that has no field for."""

    id: str
    quantity: str
    value: str = ""
    high: str = ""  # the other end of a range
    name: str = ""
    digits: str = ""
    scope: Mapping[str, str]
    convention: str
    status: str
    step_kind: str
    span: Span


@dataclass(frozen=True, kw_only=True)
class AmbiguousNumber:
    """A number that may state one of several quantities."""

    candidates: tuple[str, ...]
    span: Span


@dataclass(frozen=True, kw_only=True)
class UnreadNumber:
    """A number that states no claim, and why not."""

    why: str
    span: Span


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """All that was read of some documents. `repeated` counts numbers that say again what their source said before."""

    documents: tuple[Document, ...]
    claims: tuple[ExtractedClaim, ...]
    ambiguous: tuple[AmbiguousNumber, ...]
    unread: tuple[UnreadNumber, ...]
    oddities: tuple[tuple[str, Oddity], ...]  # id of the document, what is odd
    repeated: int


def extract(documents: Sequence[Document], registry: Registry, subject: Subject | None = None) -> Extraction:
    """Read documents. Nothing that a text holds makes it fail: what cannot be read is told."""
    gathered = _Gathered(registry, subject or Subject())
    left = MAX_TOTAL
    for document in documents:
        left -= len(document.text)
        if left < 0:
            said = f"not read: it lies beyond the {MAX_TOTAL:,} characters that are read in all"
            gathered.oddities.append((document.id, Oddity(kind="too long", text=said, end=len(document.text))))
        elif document.form == "leaves":
            gathered.leaves(document, list(read_leaves(document.leaves, registry)))
        elif document.form == "python":
            leaves, why = read_constants(document.text, registry)
            gathered.leaves(document, leaves)
            gathered.oddities += [(document.id, Oddity(kind="not read", text=why))] if why else []
        else:
            gathered.text(document, _read(document))
    claims, repeated = _numbered(gathered.claims)
    return Extraction(
        documents=tuple(documents),
        claims=claims,
        ambiguous=tuple(gathered.ambiguous),
        unread=tuple(gathered.unread),
        oddities=tuple(gathered.oddities),
        repeated=repeated,
    )


def _read(document: Document) -> Reading:
    if document.form == "html":
        return read_html(document.text)
    if document.form == "markdown":
        return read_markdown(document.text)
    reading, position = Reading(), 0
    for line in document.text[: 2**18].split("\n"):
        if line.strip():
            reading.passages.append(Passage(text=line, spans=((0, position),)))
        position += len(line) + 1
    if len(document.text) > 2**18:
        reading.oddities.append(Oddity(kind="too long", text=f"read up to character {2**18:,}", start=2**18))
    return reading


class _Gathered:
    """What was read so far."""

    def __init__(self, registry: Registry, subject: Subject) -> None:
        self.registry, self.subject = registry, subject
        self.claims: list[ExtractedClaim] = []
        self.ambiguous: list[AmbiguousNumber] = []
        self.unread: list[UnreadNumber] = []
        self.oddities: list[tuple[str, Oddity]] = []

    def text(self, document: Document, reading: Reading) -> None:
        """Read the passages of a document."""
        self.oddities += [(document.id, one) for one in reading.oddities]
        lines = [0, *(place + 1 for place, letter in enumerate(document.text) if letter == "\n")]
        tables = _tables(reading.passages, self.registry)
        left = MOST
        for passage in reading.passages:
            if passage.overridden:
                start, end = passage.origin(0, len(passage.text))
                odd = Oddity(kind="direction overridden", text=one_line(passage.text), start=start, end=end)
                self.oddities.append((document.id, odd))
            if left <= 0:
                break
            table = tables.get(passage.cell.table) if passage.cell else None
            outcomes = read_passage(passage, table, self.registry, self.subject, document.id)
            left -= len(outcomes)
            for one in outcomes:
                self._outcome(one, passage, document, lines)
            if any(isinstance(one, Unread) and one.why == TOO_MANY for one in outcomes):
                self.oddities.append((document.id, Oddity(kind="too many numbers", text=TOO_MANY)))
        if left <= 0:
            said = f"more than {MOST:,} numbers; the rest of the text is not read"
            self.oddities.append((document.id, Oddity(kind="too many numbers", text=said)))

    def _outcome(self, one: Outcome, passage: Passage, document: Document, lines: list[int]) -> None:
        start, end = passage.origin(one.start, one.end)
        words = one.words if isinstance(one, Found) else passage.text[max(0, one.start - 40) : one.end + 30]
        span = Span(
            source=document.id,
            place=passage.place,
            line=bisect.bisect_right(lines, start),
            start=start,
            end=end,
            quote=one_line(words),
        )
        if isinstance(one, Unclear):
            self.ambiguous.append(AmbiguousNumber(candidates=one.quantities, span=span))
        elif not isinstance(one, Found):
            self.unread.append(UnreadNumber(why=one.why, span=span))
        elif one.number is not None and one.number.bound == "at least":
            self.unread.append(UnreadNumber(why="a lower bound without an upper one", span=span))
        else:
            self.claims.append(self._claim(one, document, span))

    def _claim(self, one: Found, document: Document, span: Span) -> ExtractedClaim:
        quantity = self.registry.quantities[one.quantity]
        scope = dict(one.context.scope)
        if self.registry.entries[one.quantity].moment and not scope.keys() & {"step", "rung", "arm"}:
            scope["moment"] = document.date.text
        status = "third-party" if SOURCE_KINDS[document.kind] == "third party" else one.context.status
        convention = one.convention or {
            "completed updates": "completed steps",
            "zero-based log step": "zero-based log step",
        }.get(one.context.step_kind, "")
        stated: dict[str, str] = {"name": one.name}
        if one.number is not None:
            number = one.number
            stated = {
                "value": number.value,
                "high": number.high,
                "digits": _digits(number.about, number.rounded, number.fraction, quantity.unit),
            }
            if number.bound == "at most" and not number.high:
                stated |= {"value": "0", "high": number.value}
        return ExtractedClaim(
            id="",
            quantity=one.quantity,
            **stated,
            scope={key: one_line(value) for key, value in sorted(scope.items())},
            convention=convention if convention in quantity.conventions else "",
            status=status,
            step_kind=one.context.step_kind,
            span=span,
        )

    def leaves(self, document: Document, leaves: Iterable[Leaf]) -> None:
        """Take the settings, metrics or constants of a document."""
        scope = dict(self.subject.runs.get(document.run, {"run": document.run} if document.run else {}))
        if document.step:
            scope["step"] = document.step
        for one in leaves:
            line = document.text.count("\n", 0, one.start) + 1 if document.text else 0
            quote = one_line(f"{one.path} = {one.value}")
            span = Span(
                source=document.id, place=one_line(one.path), line=line, start=one.start, end=one.end, quote=quote
            )
            if not one.quantity:
                self.unread.append(UnreadNumber(why=one.why, span=span))
                continue
            metric = one.path in self.registry.metrics
            self.claims.append(
                ExtractedClaim(
                    id="",
                    quantity=one.quantity,
                    value="" if one.is_name else one.value,
                    name=one.value if one.is_name else "",
                    digits="" if one.is_name else ("reconstructed" if metric else "exact"),
                    scope=scope if metric or not document.step else {},
                    convention="",
                    status="observation" if metric else "configuration",
                    step_kind="zero-based log step" if document.step else "",
                    span=span,
                )
            )


def _digits(about: bool, rounded: bool, fraction: bool, unit: str) -> str:
    if fraction:
        return "reconstructed"
    if about:
        return "approximate"
    return "printed" if rounded or unit in UNCOUNTED else "exact"


def _tables(passages: Sequence[Passage], registry: Registry) -> dict[int, Table]:
    """How each table of a document is read."""
    cells = sorted((one for one in passages if one.cell), key=lambda one: one.cell.table if one.cell else 0)
    return {
        number: table_of(list(group), registry)
        for number, group in groupby(cells, key=lambda one: one.cell.table if one.cell else 0)
    }


def _numbered(claims: Sequence[ExtractedClaim]) -> tuple[tuple[ExtractedClaim, ...], int]:
    """Claims with their ids, once each: what a source says twice in the same digits is one claim."""
    counts: Counter[tuple[str, str]] = Counter()
    kept: dict[tuple[Any, ...], ExtractedClaim] = {}
    for one in claims:
        stated = (one.value, one.high, one.name, one.digits, one.convention, tuple(one.scope.items()))
        key = (one.span.source, one.quantity, *stated)
        if key not in kept:
            counts[one.span.source, one.quantity] += 1
            number = counts[one.span.source, one.quantity]
            kept[key] = replace(one, id=f"{one.span.source}/{one.quantity}/{number}")
    return tuple(kept.values()), len(claims) - len(kept)


def ledger(extraction: Extraction, registry: Registry) -> dict[str, Any]:
    """The content of claims.json. A text that was not wholly read is a claim too, so that an audit tells it."""
    unread = {source: odd for source, odd in reversed(extraction.oddities) if odd.kind in UNREAD}
    used = {one.span.source for one in extraction.claims} | set(unread)
    own = {one.quantity for one in extraction.claims} - set(QUANTITIES)
    return {
        "sources": [
            {"id": one.id, "kind": one.kind, "address": one.address, "citation": one.citation}
            for one in extraction.documents
            if one.id in used
        ],
        "quantities": [
            {"name": name, "label": known.label, "unit": known.unit, "effect": known.effect}
            for name in sorted(own)
            if (known := registry.quantities[name])
        ],
        "claims": [
            *(_entry(one, extraction.documents) for one in extraction.claims),
            *(_unread(one, unread[one.id]) for one in extraction.documents if one.id in unread),
        ],
        "explanations": [],
    }


def _unread(document: Document, odd: Oddity) -> dict[str, Any]:
    return {
        "id": f"{document.id}/not read",
        "quantity": "access.text",
        "name": f"not wholly read: {odd.kind}",
        "scope": {"source": document.id},
        "source": document.id,
        "date": {"text": document.date.text, "first": document.date.first, "last": document.date.last},
        "quote": odd.text,
        "note": "Extracted: the rest of the text may hold anything.",
    }


def _entry(claim: ExtractedClaim, documents: Sequence[Document]) -> dict[str, Any]:
    date = next(one.date for one in documents if one.id == claim.span.source)
    stated: dict[str, Any] = {"name": claim.name}
    if claim.value:
        stated = {"value": claim.value, "digits": claim.digits}
    if claim.high:
        stated = {"between": [claim.value, claim.high]}
    where = f"line {claim.span.line}, characters {claim.span.start} to {claim.span.end}" if claim.span.end else ""
    note = f"{claim.status}; {claim.step_kind}" if claim.step_kind else claim.status
    return {
        "id": claim.id,
        "quantity": claim.quantity,
        **stated,
        "scope": dict(claim.scope),
        "convention": claim.convention,
        "source": claim.span.source,
        "place": ", ".join(filter(None, (claim.span.place, where))),
        "date": {"text": date.text, "first": date.first, "last": date.last},
        "quote": claim.span.quote,
        "note": f"Extracted: {note}.",
    }


def coverage(extraction: Extraction) -> dict[str, Any]:
    """How many numbers the texts hold and how many were read; those that were not, by reason, with their places."""
    stated = [one for one in extraction.claims if one.value]
    read = len(stated) + extraction.repeated
    reasons = Counter(one.why for one in extraction.unread)
    return {
        "numbers": read + len(extraction.ambiguous) + len(extraction.unread),
        "read": read,
        "claims": len(extraction.claims),
        "ambiguous": [{"candidates": list(one.candidates), **_shown(one.span)} for one in extraction.ambiguous],
        "unread_by_reason": dict(sorted(reasons.items(), key=lambda one: (-one[1], one[0]))),
        "unread": [{"why": one.why, **_shown(one.span)} for one in extraction.unread],
        "oddities": [{"source": id, "kind": odd.kind, "text": odd.text} for id, odd in extraction.oddities],
    }


def _shown(span: Span) -> dict[str, Any]:
    return {"source": span.source, "place": span.place, "line": span.line, "quote": span.quote}
