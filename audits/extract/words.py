"""Words and patterns: a sentence as tokens, an alias as the tokens to the left and to the right of its number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from audits.extract.numbers import Number

NUMBER = "_"  # in a pattern: any number; as a token: a number of the text
COMPARED = {  # behind a number: what it says is a difference
    *("above", "below", "higher", "lower", "slower", "faster", "more", "fewer", "less", "better", "worse", "greater"),
    *("smaller", "larger", "longer", "shorter", "point"),
}
GAP = "…"  # up to MAX_GAP words
MAX_GAP = 12
MAX_SKIPPED = 3  # connecting words between a key and its number
CONNECTING = {
    *("(", ":", "=", "≈", "is", "was", "are", "were", "of", "at", "set", "fixed", "about", "around"),
    *("exactly", "only", "now", "currently", "stay", "remain", "unchanged", "p50", "p90", "median", "mean"),
}
_WORD = re.compile(r"->|[^\W_]+|[^\w\s]")
_SILENT = frozenset("-*`\"'")
_SPECIAL = re.compile(r"(?<!\S)(?:#|…|_)(?!\S)")


@dataclass(frozen=True)
class Token:
    """A word in the spelling by which words are compared, or a number."""

    word: str
    start: int
    end: int
    number: int = -1  # place in the list of numbers; -1: a word
    digits: str = ""  # of a number
    is_name: bool = False  # a name with digits in it, such as GB200
    plural: bool = False
    glued: str = ""  # the _ or - between it and what stands before it


@dataclass(frozen=True)
class Pattern:
    """An alias around its number. `left` runs leftwards from the number, `right` rightwards."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    weight: int  # its words
    is_key: bool = False
    is_noun: bool = False
    plural: bool = False  # the word next to its number: layers 48 is no layer-15, 48 heads no 64 head dims


@lru_cache(maxsize=4096)
def plain(word: str) -> str:
    """A word in lower case without the s of a plural."""
    low = word.lower()
    return low[:-1] if _is_plural(low) else low


def _is_plural(word: str) -> bool:
    return len(word) > 3 and word.lower().endswith("s") and not word.lower().endswith("ss")


def key_words(text: str) -> tuple[str, ...]:
    """The words of a key, an alias or a cue; hyphens and underscores are spaces, words in parentheses are left out."""
    bare = re.sub(r"\([^()]{0,200}\)", " ", text)
    return tuple(plain(word) for word in _WORD.findall(bare.replace("_", " ")) if word not in _SILENT)


def tokens_of(text: str, numbers: Sequence[Number]) -> list[Token]:
    """The tokens of a sentence. Numbers are those of the same text, in order."""
    found: list[Token] = []
    position = 0
    for place, one in enumerate(numbers):
        _words(text, position, one.start, found)
        if one.kind == "identifier":
            _words(text, one.start, one.end, found, is_name=True)
        else:
            found.append(Token(NUMBER, one.start, one.end, number=place, digits=one.value))
        position = one.end
    _words(text, position, len(text), found)
    return found


def _words(text: str, start: int, end: int, found: list[Token], is_name: bool = False) -> None:
    for match in _WORD.finditer(text, start, end):
        word = match.group()
        if word not in _SILENT:
            before = text[match.start() - 1] if match.start() else ""
            glued = before if before in ("_", "-") else ""
            place = match.start(), match.end()
            found.append(Token(plain(word), *place, is_name=is_name, plural=_is_plural(word), glued=glued))


def compile_alias(text: str, is_key: bool = False, is_noun: bool = False) -> Pattern | None:
    """An alias as a pattern; None where it has not exactly one # with something beside it."""
    written: list[str] = []
    position = 0
    for match in _SPECIAL.finditer(text):
        written += _WORD.findall(text[position : match.start()].replace("_", " "))
        written.append(match.group())
        position = match.end()
    written = [word for word in (*written, *_WORD.findall(text[position:].replace("_", " "))) if word not in _SILENT]
    if written.count("#") != 1:
        return None
    parts = [plain(word) for word in written]
    place = parts.index("#")
    left, right = tuple(reversed(parts[:place])), tuple(parts[place + 1 :])
    weight = sum(part not in ("#", NUMBER, GAP) for part in parts)
    beside = [one[0] for one in (left, right) if one and one[0] not in (NUMBER, GAP)]
    if not beside:
        return None
    nearest = written[place - 1] if is_key else written[-1] if is_noun else ""
    return Pattern(left, right, weight, is_key, is_noun, _is_plural(nearest))


def match_pattern(pattern: Pattern, tokens: Sequence[Token], place: int) -> bool:
    """Whether an alias stands around the number at `place`."""
    start = _walk(pattern.left, tokens, place, -1, skip=pattern.is_key, names=False)
    end = _walk(pattern.right, tokens, place, 1, skip=False, names=pattern.is_noun) if start is not None else None
    if start is None or end is None or tokens[start].glued == "_":
        return False
    if pattern.is_key and start and tokens[start - 1].number >= 0:  # 4M tokens per step (65,536 per GPU)
        return False
    if any(token.word in COMPARED for token in tokens[end + 1 : end + 2]):  # 0.3 MFU points, MFU 2% above the control
        return False
    if pattern.plural and pattern.is_key:
        near = next(token for token in reversed(tokens[start:place]) if token.word == pattern.left[0])
        return near.plural
    return not (pattern.plural and pattern.is_noun) or tokens[end].plural or tokens[place + 1].glued == "-"


def _walk(parts: Sequence[str], tokens: Sequence[Token], place: int, step: int, skip: bool, names: bool) -> int | None:
    at = place + step
    if skip:  # connecting words between a key and its number
        for _ in range(MAX_SKIPPED):
            if parts and 0 <= at < len(tokens) and tokens[at].word in CONNECTING and tokens[at].word != parts[0]:
                at += step
    if names:  # 11× GB200 NVL72 racks
        for _ in range(3):
            if parts and 0 <= at < len(tokens) and (tokens[at].is_name or tokens[at].word == "×"):
                at += step
    last = place
    number = 0
    while number < len(parts):
        part = parts[number]
        if part == GAP:
            target = parts[number + 1] if number + 1 < len(parts) else None
            for _ in range(MAX_GAP + 1):
                if not 0 <= at < len(tokens):
                    return None
                if tokens[at].word == target:
                    break
                at += step
            else:
                return None
            number += 1
            continue
        if not 0 <= at < len(tokens) or part not in (tokens[at].word, tokens[at].digits):
            return None
        last, at, number = at, at + step, number + 1
    return last


def find_words(words: Sequence[str], tokens: Sequence[Token], start: int = 0) -> int:
    """Place of the first run of tokens that are these words, from `start` on; -1 where there is none."""
    first, length = words[0], len(words)
    for place in range(start, len(tokens) - length + 1):
        if tokens[place].word == first and all(
            tokens[place + number].word == word for number, word in enumerate(words)
        ):
            return place
    return -1
