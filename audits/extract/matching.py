"""Passages × registry → which number states which quantity; what stays ambiguous, and what is not read, and why.

The alias with the most words wins. Where two quantities are left, the number is ambiguous and both are told. Nothing is
read from code, from quotations, from text whose direction of reading is overridden, nor from what would be if.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from audits.extract.numbers import MAX_NUMBERS, Number, scan
from audits.extract.passages import Passage
from audits.extract.registry import Candidate, Registry
from audits.extract.scopes import Context, Sentence, Subject, context_of
from audits.extract.words import CONNECTING, Pattern, Token, find_words, key_words, match_pattern, tokens_of
from audits.intervals import read_number

MAX_SENTENCE = 2000  # characters; a longer one is read in pieces
MAX_KEYED = 20  # numbers of one cell that its key is tried on
NUMERALS = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
NUMERALS |= {"ten": "10", "eleven": "11", "twelve": "12"}
_ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|approx|ca|vs|no|fig|eq|sec|resp|cf|etc)\.$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?:[.!?:]\s+(?=[A-Z0-9\"'(*`~≈])|\n|\s[·•|]\s|\s—\s|;\s)")
_PARTS = re.compile(r"\s·\s|\s—\s|;\s")
TOO_MANY = f"beyond the first {MAX_NUMBERS:,} numbers of a paragraph"
NO_QUANTITY = "no quantity is named beside it"


@dataclass(frozen=True, kw_only=True)
class Found:
    """A number that states a quantity; a name where `number` is None. Places are in the passage's text."""

    quantity: str
    start: int
    end: int
    number: Number | None
    name: str = ""
    context: Context
    convention: str = ""
    words: str  # of the whole fact, for the quotation


@dataclass(frozen=True, kw_only=True)
class Unclear:
    """A number that may state several quantities."""

    quantities: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A number that was not read."""

    start: int
    end: int
    why: str


Outcome = Found | Unclear | Unread


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
            Unread(start=one.start, end=one.end, why=_why(one, why) if one.kind == "rest" else why) for one in numbers
        ]
    reader = _Reader(passage, numbers, registry, subject, source)
    if passage.cell is not None and table is not None and not passage.heading:
        return _complete(reader.cell(table), numbers)
    return _complete(reader.prose(0, len(passage.text)), numbers)


def _complete(outcomes: list[Outcome], numbers: Sequence[Number]) -> list[Outcome]:
    """With those numbers that are parts of names, and those that a cut between two sentences went through."""
    told = {(one.start, one.end) for one in outcomes}
    missed = [one for one in numbers if (one.start, one.end) not in told]
    return outcomes + [Unread(start=one.start, end=one.end, why=_why(one, "cut by a sentence's end")) for one in missed]


def table_of(cells: Sequence[Passage], registry: Registry) -> Table:
    """How a table is read, by the cells of its first row: by heads where one of them names a quantity."""
    heads = [one.cell.head for one in cells if one.cell is not None and one.cell.row == 1 and one.cell.column > 0]
    return Table(by_heads=any(_named(head, registry) for head in heads))


def _named(key: str, registry: Registry) -> tuple[Candidate, ...]:
    words = key_words(key)
    return registry.keys.get(words) or registry.keys.get(tuple(one for one in words if one not in CONNECTING), ())


@dataclass(frozen=True)
class _Reader:
    passage: Passage
    numbers: Sequence[Number]
    registry: Registry
    subject: Subject
    source: str

    @cached_property
    def starts(self) -> list[int]:
        return [one.start for one in self.numbers]

    def inside(self, start: int, end: int) -> list[Number]:
        """The numbers that stand between two places of the text."""
        between = self.numbers[bisect_left(self.starts, start) : bisect_left(self.starts, end)]
        return [one for one in between if one.end <= end]

    def prose(self, start: int, end: int) -> list[Outcome]:
        """Read a stretch of text sentence by sentence."""
        outcomes: list[Outcome] = []
        for first, last in _sentences(self.passage.text, start, end):
            outcomes += self._sentence(first, last)
        return outcomes

    def cell(self, table: Table) -> list[Outcome]:
        """Read a cell: its key is the head of its column, or the first cell of its row."""
        cell = self.passage.cell
        assert cell is not None
        text = self.passage.text
        if cell.column == 0:
            return [Unread(start=one.start, end=one.end, why="in the first cell of a row") for one in self.numbers]
        key = cell.head if table.by_heads else cell.label
        arm = cell.label if table.by_heads else cell.head
        scope = self._arm(arm, cell.corner if table.by_heads else "", table)
        if scope is None:
            return [Unread(start=one.start, end=one.end, why="a difference between columns") for one in self.numbers]
        outcomes: list[Outcome] = []
        start = 0
        for match in [*_PARTS.finditer(text), None]:
            end = match.start() if match else len(text)
            outcomes += self._fact(key, start, end, first=start == 0)
            start = match.end() if match else end
        return [self._scoped(one, scope) if isinstance(one, Found) else one for one in outcomes]

    def _arm(self, arm: str, corner: str, table: Table) -> dict[str, str] | None:
        """The scope that a row, or a column, gives; None for a column of differences."""
        words = key_words(arm)
        if not words or words in (("value",), ("setting",), ("hero",)):
            return {}
        if not table.by_heads and re.search(
            r"\bminus\b|Δ|\bdelta\b|\bdifference\b|\bchange\b|\bpurpose\b|\bnote", arm, re.I
        ):
            return None
        rungs = [rung for rung in self.subject.rungs if rung in re.findall(r"[\w.-]+", arm)]
        if len(rungs) == 1:
            return {} if rungs[0] == self.subject.target else {"rung": rungs[0]}
        if any(find_words(cue, tokens_of(arm, [])) >= 0 for cue in self.registry.cues.get("target", ())):
            return {}
        kind = " ".join(key_words(corner))
        digits = arm.replace(",", "").replace("_", "").strip()
        if kind in ("step", "phase") and digits.isdecimal():
            return {kind: digits}
        if kind in ("rung", "run"):
            return {kind: arm}
        return {"arm": f"{arm}, in a table of {self.source}"}

    def _scoped(self, one: Found, scope: dict[str, str]) -> Found:
        """A found number with the scope of its row or column; what is said inside of the cell is narrower."""
        merged = {**scope, **one.context.scope}
        return replace(one, context=replace(one.context, scope=merged))

    def _fact(self, key: str, start: int, end: int, first: bool) -> list[Outcome]:
        """One part of a cell. The first number of the first part is the key's; the others name their own quantity."""
        outcomes = self.prose(start, end)
        if first and key:
            outcomes += self._names(key, start, end)
        values = [one for one in self.inside(start, end) if one.kind == "value"][:MAX_KEYED]
        if not values or not key:
            return outcomes
        keys = [part.strip() for part in key.split(" / ")]
        if first and len(keys) > 1 and len(values) >= len(keys):
            last = key_words(keys[-1])
            named = [_named(part, self.registry) or _named(f"{part} {last[-1]}", self.registry) for part in keys]
            for candidates, number in zip(named, values, strict=False):
                outcomes = self._settle(outcomes, number, candidates, start, end)
            return outcomes
        if first and values:
            plain_values = [one for one in values if not self._in_parentheses(one, start)]
            if plain_values:
                candidates = _named(key, self.registry) or _named(key.split(" / ")[0], self.registry)
                outcomes = self._settle(outcomes, plain_values[0], candidates, start, end)
        for number in values:
            outcomes = self._settle(outcomes, number, self._composed(key, number, start), start, end, overrule=True)
        return outcomes

    def _names(self, key: str, start: int, end: int) -> Iterator[Outcome]:
        """A name that a cell states: linear, under the key schedule."""
        sentence = self._view(start, end)
        for candidate in _named(key, self.registry):
            for words, name in self.registry.names.get(candidate.quantity, ()):
                at = find_words(words, sentence.tokens)
                if at >= 0:
                    last = sentence.tokens[at + len(words) - 1].end
                    yield self._found(candidate, None, sentence, at, start, last - sentence.tokens[at].start, name)
                    return

    def _composed(self, key: str, number: Number, start: int) -> tuple[Candidate, ...]:
        """What the key and the word before the number name together: kv heads, and local 12."""
        before = key_words(self.passage.text[max(start, number.start - 40) : number.start])
        if not before or not before[-1].isalpha():
            return ()
        words = key_words(key)
        words = words[1:] if words[:1] in (("num",), ("n",)) else words
        joined = (before[-1], *words), (*words, before[-1])
        return next((found for one in joined if (found := self.registry.keys.get(one, ()))), ())

    def _in_parentheses(self, number: Number, start: int) -> bool:
        text = self.passage.text[start : number.start]
        return text.count("(") > text.count(")")

    def _settle(
        self,
        outcomes: list[Outcome],
        number: Number,
        candidates: Sequence[Candidate],
        start: int,
        end: int,
        overrule: bool = False,
    ) -> list[Outcome]:
        """Let a number be its key's, unless the words beside it said more of it."""
        fitting = [one for one in candidates if self._fits(one, number)]
        if not fitting:
            return outcomes
        result = []
        for one in outcomes:
            mine = one.start == number.start and one.end == number.end
            if mine and (overrule or not isinstance(one, Found)):
                one = self._decide(fitting, number, start, end)
            result.append(one)
        return result

    def _decide(self, fitting: Sequence[Candidate], number: Number, start: int, end: int) -> Outcome:
        names = tuple(dict.fromkeys(one.quantity for one in fitting))
        if len(names) > 1:
            return Unclear(quantities=names, start=number.start, end=number.end)
        sentence = self._view(start, end)
        place = next(at for at, one in enumerate(sentence.tokens) if one.start == number.start - start)
        return self._found(fitting[0], number, sentence, place, start)

    def _view(self, start: int, end: int) -> Sentence:
        """A stretch of the text as a sentence."""
        numbers = [replace(one, start=one.start - start, end=one.end - start) for one in self.inside(start, end)]
        text = self.passage.text[start:end]
        return Sentence(text, numbers, tokens_of(text, numbers), self.passage.headings, self.registry, self.source)

    def _sentence(self, start: int, end: int) -> list[Outcome]:
        sentence = self._view(start, end)
        outcomes: list[Outcome] = []
        for place, token in enumerate(sentence.tokens):
            if token.number >= 0:
                outcomes += self._number(sentence.numbers[token.number], sentence, place, start)
            elif token.word in NUMERALS:
                number = Number(
                    start=token.start, end=token.end, kind="value", value=NUMERALS[token.word], rounded=False
                )
                read = self._number(number, sentence, place, start, numeral=True)
                outcomes += [one for one in read if isinstance(one, Found)]
            elif token.word in self.registry.said:
                outcomes += self._said(sentence, place, start)
        return _longest_names(outcomes)

    def _said(self, sentence: Sentence, place: int, start: int) -> Iterator[Outcome]:
        """A value that is said in words: no weight decay."""
        for words, candidate in self.registry.said[sentence.tokens[place].word]:
            tokens = sentence.tokens[place : place + len(words)]
            if find_words(words, tokens) != 0:
                continue
            length = tokens[-1].end - tokens[0].start
            number = None
            if not self.registry.quantities[candidate.quantity].is_name:
                first = tokens[0].start + start
                number = Number(start=first, end=first + length, kind="value", value=candidate.value, rounded=False)
            yield self._found(candidate, number, sentence, place, start, length, candidate.value)

    def _number(
        self, number: Number, sentence: Sentence, place: int, start: int, numeral: bool = False
    ) -> list[Outcome]:
        """What becomes of one number. Its places count from the sentence, the outcome's from the passage."""
        there = replace(number, start=number.start + start, end=number.end + start)
        if number.kind == "model name" and sentence.text[number.start : number.end] in self.subject.names:
            return self._model_name(there, sentence, place, start)
        if number.kind != "value":
            return [Unread(start=there.start, end=there.end, why=_why(number))]
        if find_words(("one", "of", "the"), sentence.tokens[max(0, place - 3) : place]) == 0:
            return [Unread(start=there.start, end=there.end, why="one of so many")]
        best: dict[str, tuple[int, Candidate]] = {}
        beyond: set[str] = set()
        loose: set[str] = set()  # what it would be if the sentence had the words for it
        for pattern, candidate in self._near(sentence.tokens, place):
            if (numeral and pattern.is_key) or not match_pattern(pattern, sentence.tokens, place):
                continue
            if pattern.is_noun and pattern.plural and number.value == "1":
                continue  # on 1 rack: said of a trial, not of how many racks there are
            if not self._fits(candidate, number):
                beyond.add(candidate.quantity)
                continue
            if candidate.with_ and candidate.with_.isdisjoint(sentence.words):
                loose.add(candidate.quantity)
                continue
            weight = pattern.weight * 2 + pattern.is_noun  # what stands right behind a number is its own
            if weight > best.get(candidate.quantity, (0, candidate))[0]:
                best[candidate.quantity] = (weight, candidate)
        if not best and len(loose) > 1:
            return [Unclear(quantities=tuple(sorted(loose)), start=there.start, end=there.end)]
        if not best:
            why = f"too large or too small for {', '.join(sorted(beyond))}" if beyond else NO_QUANTITY
            return [Unread(start=there.start, end=there.end, why=why)]
        most = max(weight for weight, _ in best.values())
        leading = [candidate for weight, candidate in best.values() if weight == most]
        if len(leading) > 1:
            names = tuple(sorted(one.quantity for one in leading))
            return [Unclear(quantities=names, start=there.start, end=there.end)]
        return [self._found(leading[0], there, sentence, place, start)]

    def _model_name(self, there: Number, sentence: Sentence, place: int, start: int) -> list[Outcome]:
        """12B-A1B states the parameters of the run whose name it is: all, and the active ones."""
        total, _, active = self.passage.text[there.start : there.end].partition("-A")
        return [
            self._found(Candidate(quantity=name), replace(there, kind="value", value=value), sentence, place, start)
            for name, value in (("parameters.total", total), ("parameters.active", active))
        ]

    def _near(self, tokens: Sequence[Token], place: int) -> Iterator[tuple[Pattern, Candidate]]:
        """Patterns whose word next to the number stands near it, and their candidates."""
        left = {token.digits or token.word for token in tokens[max(0, place - 4) : place]}
        right = {token.digits or token.word for token in tokens[place + 1 : place + 5]}
        for word in sorted(left):
            yield from self.registry.by_left.get(word, ())
        for word in sorted(right):
            yield from self.registry.by_right.get(word, ())

    def _fits(self, candidate: Candidate, number: Number) -> bool:
        """Whether the quantity can have this value at all."""
        entry = self.registry.entries[candidate.quantity]
        unit = self.registry.quantities[candidate.quantity].unit
        if self.registry.quantities[candidate.quantity].is_name or number.unit:
            return False
        if (number.value.endswith("%") and unit != "fraction") or (number.high and unit == "steps"):
            return False
        for value in filter(None, (number.value, number.high)):
            exact = read_number(value, "exact").low
            if (entry.least is not None and exact < entry.least) or (entry.most is not None and exact > entry.most):
                return False
        return True

    def _found(
        self,
        candidate: Candidate,
        number: Number | None,
        sentence: Sentence,
        place: int,
        start: int,
        length: int = 0,
        name: str = "",
    ) -> Outcome:
        """The outcome for a number, or for words of `length` characters at the token `place` that state a name."""
        first = number.start if number else sentence.tokens[place].start + start
        last = number.end if number else first + length
        entry = self.registry.entries[candidate.quantity]
        context = context_of(sentence, place, entry, self.subject)
        if context.status == "hypothesis":
            return Unread(start=first, end=last, why="said of what would be, or could be")
        scope, quantity = dict(context.scope), candidate.quantity
        if context.status == "forecast" and entry.forecast:
            quantity = entry.forecast
            scope.pop("step", None)
        return Found(
            quantity=quantity,
            start=first,
            end=last,
            number=number,
            name=name if number is None else "",
            context=replace(context, scope={**scope, **dict(candidate.scope)}),
            convention=candidate.convention,
            words=self.passage.text[max(0, first - 60) : last + 40],
        )


_WHY = {
    "change": "one end of a change from one state to another",
    "difference": "a difference",
    "multiple": "a multiple of something",
    "error": "the width of what stands before the ±",
    "formula": "part of a formula",
    "identifier": "part of a name",
    "model name": "part of a model's name",
    "ordinal": "an ordinal",
    "beyond": "no number that somebody published",
    "not a number": "not a number",
    "rest": TOO_MANY,
}


def _why(number: Number, otherwise: str = "") -> str:
    """Why a number of this kind is not read."""
    return otherwise if number.kind == "value" else _WHY.get(number.kind, f"a {number.kind}")


def _longest_names(outcomes: list[Outcome]) -> list[Outcome]:
    """Of overlapping names keep the longest: "no simulated epoching" is not "simulated epoching"."""
    said = [one for one in outcomes if isinstance(one, Found) and one.number is None]
    inside = [
        one
        for one in said
        if any(other.start <= one.start and one.end <= other.end and other.words != one.words for other in said)
    ]
    return [one for one in outcomes if one not in inside] if inside else outcomes


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Stretches of a text that are read by themselves."""
    first = start
    for match in _SENTENCE_END.finditer(text, start, end):
        if match.group().startswith(".") and _ABBREVIATED.search(
            text[max(first, match.start() - 8) : match.start() + 1]
        ):
            continue
        if match.group().startswith(":"):
            continue
        yield from _pieces(first, match.end())
        first = match.end()
    yield from _pieces(first, end)


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    for first in range(start, end, MAX_SENTENCE):
        yield first, min(first + MAX_SENTENCE, end)
