"""Sentences × registry → which number states which quantity.

The alias with the most words wins. Where two quantities are left, the number is ambiguous and both are told. Nothing is
read of what would be, or could be.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from audits.extract.numbers import Number, exact_value
from audits.extract.outcomes import NO_QUANTITY, Found, Outcome, Unclear, Unread, why_unread
from audits.extract.passages import Passage
from audits.extract.registry import Candidate, Registry
from audits.extract.scopes import Sentence, Subject, context_of
from audits.extract.words import Pattern, Token, find_words, match_pattern, tokens_of

MAX_SENTENCE = 2000  # characters; a longer one is read in pieces
NUMERALS = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
NUMERALS |= {"ten": "10", "eleven": "11", "twelve": "12"}
_ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|approx|ca|vs|no|fig|eq|sec|resp|cf|etc)\.$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?:[.!?:]\s+(?=[A-Z0-9\"'(*`~≈])|\n|\s[·•|]\s|\s—\s|;\s)")


@dataclass(frozen=True)
class Reader:
    """Reads stretches of one passage. Outcomes have their places in the passage's text."""

    passage: Passage
    numbers: Sequence[Number]
    registry: Registry
    subject: Subject
    source: str

    @cached_property
    def starts(self) -> list[int]:
        """Where its numbers begin."""
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

    def view(self, start: int, end: int) -> Sentence:
        """A stretch of the text as a sentence."""
        numbers = [replace(one, start=one.start - start, end=one.end - start) for one in self.inside(start, end)]
        text = self.passage.text[start:end]
        return Sentence(text, numbers, tokens_of(text, numbers), self.passage.headings, self.registry, self.source)

    def _sentence(self, start: int, end: int) -> list[Outcome]:
        sentence = self.view(start, end)
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
        return self._told_apart(_longest_names(outcomes))

    def _told_apart(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Two rates of one sentence and one scope are of two things that the scope does not tell apart: unclear."""
        values: dict[tuple[object, ...], set[str]] = {}
        for one in outcomes:
            if isinstance(one, Found) and one.number is not None and self.registry.entries[one.quantity].moment:
                values.setdefault(_key(one), set()).add(one.number.value)
        return [
            Unclear(quantities=(one.quantity,), start=one.start, end=one.end)
            if isinstance(one, Found) and len(values.get(_key(one), ())) > 1
            else one
            for one in outcomes
        ]

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
            yield self.found(candidate, number, sentence, place, start, length, candidate.value)

    def _number(
        self, number: Number, sentence: Sentence, place: int, start: int, numeral: bool = False
    ) -> list[Outcome]:
        """What becomes of one number. Its places count from the sentence, the outcome's from the passage."""
        there = replace(number, start=number.start + start, end=number.end + start)
        if number.kind == "model name" and sentence.text[number.start : number.end] in self.subject.names:
            return self._model_name(there, sentence, place, start)
        if number.kind != "value":
            return [Unread(start=there.start, end=there.end, why=why_unread(number))]
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
            if not self.fits(candidate, number):
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
        return [self.found(leading[0], there, sentence, place, start)]

    def _model_name(self, there: Number, sentence: Sentence, place: int, start: int) -> list[Outcome]:
        """12B-A1B states the parameters of the run whose name it is: all, and the active ones."""
        total, _, active = self.passage.text[there.start : there.end].partition("-A")
        return [
            self.found(Candidate(quantity=name), replace(there, kind="value", value=value), sentence, place, start)
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

    def fits(self, candidate: Candidate, number: Number) -> bool:
        """Whether the quantity can have this value at all."""
        entry = self.registry.entries[candidate.quantity]
        unit = self.registry.quantities[candidate.quantity].unit
        if self.registry.quantities[candidate.quantity].is_name or number.unit:
            return False
        if (number.value.endswith("%") and unit != "fraction") or (number.high and unit == "steps"):
            return False
        for value in filter(None, (number.value, number.high)):
            exact = exact_value(value)
            if (entry.least is not None and exact < entry.least) or (entry.most is not None and exact > entry.most):
                return False
        return True

    def found(
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


def _key(found: Found) -> tuple[object, ...]:
    return found.quantity, tuple(sorted(found.context.scope.items()))


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
