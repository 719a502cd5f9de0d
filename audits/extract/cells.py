"""What becomes of the numbers of a passage: by itself, or as the cell of a table.

The key of a cell is the head of its column, or the first cell of its row. A cell may hold several facts, apart by a
middle dot or a dash, and pairs: under "experts / top-k" stands "384 / 8". Nothing is read from code, from quotations,
nor from text whose direction of reading is overridden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from audits.extract.matching import Reader
from audits.extract.numbers import Number, scan
from audits.extract.outcomes import Found, Outcome, Unclear, Unread, why_unread
from audits.extract.passages import Passage
from audits.extract.registry import Candidate, Registry
from audits.extract.scopes import Subject
from audits.extract.words import CONNECTING, find_words, key_words, tokens_of

MAX_KEYED = 20  # numbers of one cell that its key is tried on
_PARTS = re.compile(r"\s·\s|\s—\s|;\s")


@dataclass(frozen=True, kw_only=True)
class Table:
    """How a table is read: by its heads, or by the first cell of each row."""

    by_heads: bool


def read_passage(
    passage: Passage, table: Table | None, registry: Registry, subject: Subject, source: str
) -> list[Outcome]:
    """What becomes of every number of a passage, and the names that it states, in their order."""
    numbers = scan(passage.text, passage.code)
    why = ""
    if passage.voice != "author":
        why = "in code" if passage.voice == "code" else "in a quotation"
    elif passage.overridden:
        why = "in a text whose direction of reading is overridden"
    if why:
        return [
            Unread(start=one.start, end=one.end, why=why_unread(one, why) if one.kind == "rest" else why)
            for one in numbers
        ]
    reader = Reader(passage, numbers, registry, subject, source)
    if passage.cell is not None and table is not None and not passage.heading:
        return _complete(_cell(reader, table), numbers)
    return _complete(reader.prose(0, len(passage.text)), numbers)


def _complete(outcomes: list[Outcome], numbers: Sequence[Number]) -> list[Outcome]:
    """With those numbers that are parts of names, and those that a cut between two sentences went through."""
    told = {(one.start, one.end) for one in outcomes}
    missed = [one for one in numbers if (one.start, one.end) not in told]
    return outcomes + [
        Unread(start=one.start, end=one.end, why=why_unread(one, "cut by a sentence's end")) for one in missed
    ]


def table_of(cells: Sequence[Passage], registry: Registry) -> Table:
    """How a table is read, by the cells of its first row: by heads where one of them names a quantity."""
    heads = [one.cell.head for one in cells if one.cell is not None and one.cell.row == 1 and one.cell.column > 0]
    return Table(by_heads=any(_named(head, registry) for head in heads))


def _named(key: str, registry: Registry) -> tuple[Candidate, ...]:
    words = key_words(key)
    return registry.keys.get(words) or registry.keys.get(tuple(one for one in words if one not in CONNECTING), ())


def _cell(reader: Reader, table: Table) -> list[Outcome]:
    """Read a cell: its key is the head of its column, or the first cell of its row."""
    cell = reader.passage.cell
    assert cell is not None
    text = reader.passage.text
    if cell.column == 0:
        return [Unread(start=one.start, end=one.end, why="in the first cell of a row") for one in reader.numbers]
    key = cell.head if table.by_heads else cell.label
    arm = cell.label if table.by_heads else cell.head
    scope = _arm(reader, arm, cell.corner if table.by_heads else "", table)
    if scope is None:
        return [Unread(start=one.start, end=one.end, why="a difference between columns") for one in reader.numbers]
    outcomes: list[Outcome] = []
    start = 0
    for match in [*_PARTS.finditer(text), None]:
        end = match.start() if match else len(text)
        outcomes += _fact(reader, key, start, end, first=start == 0)
        start = match.end() if match else end
    return [_scoped(reader, one, scope) if isinstance(one, Found) else one for one in outcomes]


def _arm(reader: Reader, arm: str, corner: str, table: Table) -> dict[str, str] | None:
    """The scope that a row, or a column, gives; None for a column of differences."""
    words = key_words(arm)
    if not words or words in (("value",), ("setting",), ("hero",)):
        return {}
    if not table.by_heads and re.search(
        r"\bminus\b|Δ|\bdelta\b|\bdifference\b|\bchange\b|\bpurpose\b|\bnote", arm, re.I
    ):
        return None
    rungs = [rung for rung in reader.subject.rungs if rung in re.findall(r"[\w.-]+", arm)]
    if len(rungs) == 1:
        return {} if rungs[0] == reader.subject.target else {"rung": rungs[0]}
    if any(find_words(cue, tokens_of(arm, [])) >= 0 for cue in reader.registry.cues.get("target", ())):
        return {}
    kind = " ".join(key_words(corner))
    digits = arm.replace(",", "").replace("_", "").strip()
    if kind in ("step", "phase") and digits.isdecimal():
        return {kind: digits}
    if kind in ("rung", "run"):
        return {kind: arm}
    return {"arm": f"{arm}, in a table of {reader.source}"}


def _scoped(reader: Reader, one: Found, scope: dict[str, str]) -> Found:
    """A found number with the scope of its row or column; what is said inside of the cell is narrower."""
    merged = {**scope, **one.context.scope}
    return replace(one, context=replace(one.context, scope=merged))


def _fact(reader: Reader, key: str, start: int, end: int, first: bool) -> list[Outcome]:
    """One part of a cell. The first number of the first part is the key's; the others name their own quantity."""
    outcomes = reader.prose(start, end)
    if first and key:
        outcomes += _names(reader, key, start, end)
    values = [one for one in reader.inside(start, end) if one.kind == "value"][:MAX_KEYED]
    if not values or not key:
        return outcomes
    keys = [part.strip() for part in key.split(" / ")]
    if first and len(keys) > 1 and len(values) >= len(keys):
        last = key_words(keys[-1])
        named = [_named(part, reader.registry) or _named(f"{part} {last[-1]}", reader.registry) for part in keys]
        for candidates, number in zip(named, values, strict=False):
            outcomes = _settle(reader, outcomes, number, candidates, start, end)
        return outcomes
    if first and values:
        plain_values = [one for one in values if not _in_parentheses(reader, one, start)]
        if plain_values:
            candidates = _named(key, reader.registry) or _named(key.split(" / ")[0], reader.registry)
            outcomes = _settle(reader, outcomes, plain_values[0], candidates, start, end)
    for number in values:
        outcomes = _settle(reader, outcomes, number, _composed(reader, key, number, start), start, end, overrule=True)
    return outcomes


def _names(reader: Reader, key: str, start: int, end: int) -> Iterator[Outcome]:
    """A name that a cell states: linear, under the key schedule."""
    sentence = reader.view(start, end)
    for candidate in _named(key, reader.registry):
        for words, name in reader.registry.names.get(candidate.quantity, ()):
            at = find_words(words, sentence.tokens)
            if at >= 0:
                last = sentence.tokens[at + len(words) - 1].end
                yield reader.found(candidate, None, sentence, at, start, last - sentence.tokens[at].start, name)
                return


def _composed(reader: Reader, key: str, number: Number, start: int) -> tuple[Candidate, ...]:
    """What the key and the word before the number name together: kv heads, and local 12."""
    before = key_words(reader.passage.text[max(start, number.start - 40) : number.start])
    if not before or not before[-1].isalpha():
        return ()
    words = key_words(key)
    words = words[1:] if words[:1] in (("num",), ("n",)) else words
    joined = (before[-1], *words), (*words, before[-1])
    return next((found for one in joined if (found := reader.registry.keys.get(one, ()))), ())


def _in_parentheses(reader: Reader, number: Number, start: int) -> bool:
    text = reader.passage.text[start : number.start]
    return text.count("(") > text.count(")")


def _settle(
    reader: Reader,
    outcomes: list[Outcome],
    number: Number,
    candidates: Sequence[Candidate],
    start: int,
    end: int,
    overrule: bool = False,
) -> list[Outcome]:
    """Let a number be its key's, unless the words beside it said more of it."""
    fitting = [one for one in candidates if reader.fits(one, number)]
    if not fitting:
        return outcomes
    result = []
    for one in outcomes:
        mine = one.start == number.start and one.end == number.end
        if mine and (overrule or not isinstance(one, Found)):
            one = _decide(reader, fitting, number, start, end)
        result.append(one)
    return result


def _decide(reader: Reader, fitting: Sequence[Candidate], number: Number, start: int, end: int) -> Outcome:
    names = tuple(dict.fromkeys(one.quantity for one in fitting))
    if len(names) > 1:
        return Unclear(quantities=names, start=number.start, end=number.end)
    sentence = reader.view(start, end)
    place = next(at for at, one in enumerate(sentence.tokens) if one.start == number.start - start)
    return reader.found(fitting[0], number, sentence, place, start)
