"""Claims: one number or name that somebody published, as an interval, with where it stands and what it speaks of.

    claims.json   {"sources": [...], "quantities": [...], "claims": [...], "explanations": [...]}

A claim states `value` (digits as published, see `intervals`), `between` (two ends), or `name` (words, in the spelling
by which they are compared). Its scope says what it speaks of: {} is the run that the record is about, one rung of its
ladder is {"rung": …}, {"step": …} one moment. Explanations are places
where the record itself accounts for a contradiction.

Comes in: the bytes of claims.json. Goes out: frozen values, or a RecordError that names the claim and the field.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from audits.intervals import Digits, Interval, between, read_number, shown
from audits.quantities import QUANTITIES, Quantity, find_quantity
from repro.errors import RecordError
from repro.files import parse_json
from repro.record.entries import ENTRY, read_entry, refuse_repeated

NAME = "claims.json"

RANKS = ("resolved run configuration", "pinned code", "issue", "blog", "third party")  # the best first
SOURCE_KINDS: Mapping[str, str] = {  # kind of source: its rank
    "run-configuration": "resolved run configuration",
    "run-metric": "resolved run configuration",
    "table": "resolved run configuration",
    "launcher-code": "pinned code",
    "analysis-code": "pinned code",
    "repository-code": "pinned code",
    "repository-script": "pinned code",
    "issue-body": "issue",
    "issue-comment": "issue",
    "pull-request": "issue",
    "repository-document": "issue",
    "project-page": "issue",
    "blog": "blog",
    "blog-paraphrase": "blog",
    "third-party-audit": "third party",
    "third-party-article": "third party",
    "third-party-log": "third party",
}


def _known_kind(kind: str) -> str:
    if kind not in SOURCE_KINDS:
        near = difflib.get_close_matches(kind, SOURCE_KINDS, n=1)
        raise ValueError(f"did you mean {near[0]!r}?" if near else f"known kinds are {', '.join(SOURCE_KINDS)}")
    return kind


# definition      the same words stand for two things
# drift           it was so, and changed; or it was planned, and came otherwise
# access          an outsider cannot have it
# missing         nobody says
# behaviour       the configuration says one thing, what runs does another
# comparability   two figures that are set side by side differ in more than they say
# provenance      it cannot be traced to where it is said to be from
Kind = Literal["definition", "drift", "access", "missing", "behaviour", "comparability", "provenance"]
SourceKind = Annotated[str, AfterValidator(_known_kind)]
Scope = tuple[tuple[str, str], ...]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Source:
    """Where something was published. `address` is a link, or empty where no public one is known."""

    id: str
    kind: SourceKind
    address: str = ""
    citation: str

    @property
    def rank(self) -> int:
        """0 is the best; see RANKS."""
        return RANKS.index(SOURCE_KINDS[self.kind])


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Date:
    """When it was published: the words of the record, and the days they allow where that can be told."""

    text: str
    first: str = ""  # ISO 8601, a day or a moment
    last: str = ""


@plain_dataclass(frozen=True, kw_only=True)
class Claim:
    """One published number (`value` an Interval) or name (`value` a str); `printed` is what a reader is shown."""

    id: str
    quantity: str
    value: Interval | str
    printed: str
    digits: Digits | Literal["named"]
    scope: Scope
    convention: str
    source: Source
    place: str
    date: Date
    quote: str
    note: str


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Explanation:
    """Where the record itself accounts for a finding about this quantity and scope: wholly, in part, or by time.

    `kind` is that of the finding: contradiction, or what a check calls its own.
    """

    quantity: str
    scope: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["contradiction"] | Kind = "contradiction"
    degree: Literal["full", "partial", "drift"]
    text: str
    source: str  # id of a source


@plain_dataclass(frozen=True, kw_only=True)
class Ledger:
    """All that a claims.json says."""

    claims: tuple[Claim, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    quantities: Mapping[str, Quantity] = field(default_factory=lambda: QUANTITIES)


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class _Sections:
    sources: tuple[Mapping[str, Any], ...] = ()
    quantities: tuple[Mapping[str, Any], ...] = ()
    claims: tuple[Mapping[str, Any], ...] = ()
    explanations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class _QuantityEntry:
    name: str
    label: str
    unit: str
    effect: Literal[0, 1, 2, 3]
    conventions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class _ClaimEntry:
    id: str
    quantity: str
    value: str = ""
    digits: Digits | None = None
    between: tuple[str, str] | None = None
    name: str = ""
    scope: Mapping[str, str] = field(default_factory=dict)
    convention: str = ""
    source: str
    place: str = ""
    date: Date
    quote: str = ""
    note: str = ""


def read_ledger(data: bytes) -> Ledger:
    """Read claims.json. Raises RecordError that names the claim (by id, or its place in the list) and the field."""
    content = parse_json(data, NAME)
    _refuse_control_characters(content)
    if not isinstance(content, dict):
        raise RecordError(f"{NAME}: must be an object with the lists sources, quantities, claims and explanations.")
    sections = read_entry(_Sections, content, NAME)
    sources = {source.id: source for source in _read_all(Source, sections.sources, "source", "id")}
    declared = _read_all(_QuantityEntry, sections.quantities, "quantity", "name")
    for entry in declared:
        if entry.name in QUANTITIES:
            raise RecordError(f"{NAME}, quantity {entry.name}: is in the vocabulary already; leave the entry out.")
    own = {e.name: Quantity(e.name, e.label, e.unit, e.effect, e.conventions) for e in declared}
    known = {**QUANTITIES, **own}
    claims = tuple(_claim(entry, sources, known) for entry in _read_all(_ClaimEntry, sections.claims, "claim", "id"))
    explanations = tuple(
        read_entry(Explanation, entry, f"{NAME}, explanation number {number}")
        for number, entry in enumerate(sections.explanations, start=1)
    )
    refuse_repeated(
        explanations,
        lambda one: (one.quantity, freeze_scope(one.scope), one.kind),
        f"{NAME}, explanation",
        "quantity, scope and kind",
    )
    for number, explanation in enumerate(explanations, start=1):
        where = f"{NAME}, explanation number {number}"
        find_quantity(explanation.quantity, known, where)
        _find_source(explanation.source, sources, where)
    return Ledger(claims=claims, explanations=explanations, sources=sources, quantities=known)


def _refuse_control_characters(content: Any, place: str = "") -> None:
    """Texts of a ledger are one line each: what moves a terminal's cursor, or ends a line, is none of them."""
    if isinstance(content, str) and not content.isprintable():
        odd = next(letter for letter in content if not letter.isprintable())
        raise RecordError(f"{NAME}, {place}: holds the character {odd!r}, which no reader can see. Take it out.")
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = ((one.get("id", n) if isinstance(one, dict) else n, one) for n, one in enumerate(content, start=1))
    for key, value in items:
        _refuse_control_characters(str(key), f"{place}, a key".lstrip(", "))
        _refuse_control_characters(value, f"{place} {key}".strip())


def freeze_scope(scope: Mapping[str, str]) -> Scope:
    """A scope as a value that can be compared and kept in sets."""
    return tuple(sorted(scope.items()))


def _claim(entry: _ClaimEntry, sources: Mapping[str, Source], known: Mapping[str, Quantity]) -> Claim:
    where = f"{NAME}, claim {entry.id}"
    quantity = find_quantity(entry.quantity, known, where)
    if entry.convention and entry.convention not in quantity.conventions:
        raise RecordError(
            f"{where}, convention: {entry.convention!r} is none of {quantity.name}'s: "
            f"{', '.join(map(repr, quantity.conventions)) or 'it has none'}."
        )
    value, digits, printed = _value(entry, quantity, where)
    return Claim(
        id=entry.id,
        quantity=entry.quantity,
        value=value,
        printed=printed,
        digits=digits,
        scope=freeze_scope(entry.scope),
        convention=entry.convention,
        source=_find_source(entry.source, sources, where),
        place=entry.place,
        date=entry.date,
        quote=entry.quote,
        note=entry.note,
    )


def _value(entry: _ClaimEntry, quantity: Quantity, where: str) -> tuple[Interval | str, Digits | Literal["named"], str]:
    """The claim's value, how its digits are meant, and how it is shown."""
    if [bool(entry.value), bool(entry.between), bool(entry.name)].count(True) != 1:
        raise RecordError(f"{where}: states its value in exactly one of value, between and name.")
    if quantity.is_name != bool(entry.name):
        wanted = "a name" if quantity.is_name else "a number, in value or between"
        raise RecordError(f"{where}: {quantity.name} is {wanted}.")
    if entry.name:
        return entry.name, "named", entry.quote or entry.name
    if (entry.digits is None) == bool(entry.value):
        raise RecordError(f"{where}, digits: goes with value, and says how its digits are meant.")
    try:
        if entry.between:
            return between(*entry.between), "approximate", f"{entry.between[0]} to {entry.between[1]}"
        assert entry.digits is not None
        value = read_number(entry.value, entry.digits)
    except ValueError as error:
        raise RecordError(f"{where}, value: {error}.") from error
    about = "about " if entry.digits == "approximate" else ""
    counted = value.is_point and value.low.denominator == 1 and entry.value.isdecimal()
    return value, entry.digits, about + (shown(value) if counted else entry.value)


def _find_source(name: str, sources: Mapping[str, Source], where: str) -> Source:
    if name not in sources:
        raise RecordError(f'{where}, source: {name!r} is not listed under "sources". Every claim names a listed one.')
    return sources[name]


def _read_all(kind: type[T], entries: tuple[Mapping[str, Any], ...], what: str, key: str) -> tuple[T, ...]:
    items = tuple(
        read_entry(kind, entry, f"{NAME}, {what} {entry.get(key, f'number {number}')}")
        for number, entry in enumerate(entries, start=1)
    )
    refuse_repeated(items, lambda item: getattr(item, key), f"{NAME}, {what}", key)
    return items
