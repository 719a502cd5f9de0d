"""Text → the numbers in it, each with its place, its value as `intervals.read_number` reads it, and how it is meant.

What only looks like a number keeps its place and says what it is instead: a date, a name (d512, GB200), a version, a
reference (#8435), an operand of a formula, one end of a change (from 7% to 40%). Nothing is left out, so that a reader
can be told which numbers of a text were not read, and why.

Every expression below has bounded parts and no nested repetition, so that a scan takes time proportional to its text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from audits.intervals import read_number

Kind = Literal[
    "value",
    "change",  # one end of a change from one state to another
    "difference",  # with a plus before it
    "multiple",  # 12x
    "error",  # what follows a ±
    "formula",
    "ordinal",
    "date",
    "time",
    "identifier",
    "model name",  # 12B-A1B
    "version",
    "reference",
    "link",
    "beyond",  # no number that somebody published
    "not a number",
    "rest",  # of a text with too many numbers
]
Bound = Literal["", "at most", "at least"]

_MONTHS = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|"
    "Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = "[0-9]{1,2}(?:st|nd|rd|th)?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|AM|PM|am|pm|CES?T|[PEMC][SD]?T|[-+−][0-9]{2}:?[0-9]{2})\b)?"
_CLOCK = rf"[0-9]{{1,2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,9}})?)?{_ZONE}"
_DATE = (
    rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_CLOCK})?"
    r"|0[1-9]-[0-3][0-9](?![-0-9.])"
    rf"|{_MONTHS}\.?\s{_DAY}(?:,?\s[0-9]{{4}})?(?![0-9])"
    rf"|{_DAY}\s(?:of\s)?{_MONTHS}\b(?:,?\s[0-9]{{4}}\b)?|{_MONTHS}\s[0-9]{{4}}\b"
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_TOKEN = re.compile(
    rf"""
    (?P<link>(?:https?|s3|gs|ftp)://[^\s<>()\[\]]{{1,2000}})
    |(?<![\w.])(?P<date>{_DATE})
    |(?<![\w.:])(?P<time>{_CLOCK})(?![\w:])
    |(?P<reference>[#][0-9]{{1,12}}\b|\bL[0-9]{{1,7}}\b)
    |(?<![\w.])(?P<model>[0-9]{{1,4}}(?:\.[0-9]{{1,3}})?[MBT]-A[0-9]{{1,4}}(?:\.[0-9]{{1,3}})?[MBT])\b
    |(?<![\w.])(?P<version>v?[0-9]{{1,6}}(?:\.[0-9]{{1,6}}){{2,6}})\b
    |(?P<name>[A-Za-z_][A-Za-z0-9_]{{0,120}}(?:[-./:][A-Za-z0-9_]{{1,120}}){{0,30}})
    |(?P<number>
        (?P<sign>(?<![\w)\]²])[-+−–])?
        (?P<core>[0-9]{{1,3}}(?:[,_\u00a0\u2009\u202f][0-9]{{3}}){{1,12}}(?![0-9])|[0-9]{{1,60}}|(?<![\w.])\.(?=[0-9]))
        (?P<part>(?<=\.)[0-9]{{1,40}}|\.[0-9]{{1,40}})?
        (?:(?P<exponent>[eE][-+−]?[0-9]{{1,9}})(?![A-Za-z0-9])
          |\s?[×x*·]\s?10(?:\^[({{]?(?P<power>[-−+]?[0-9]{{1,4}})|(?P<high>[⁻⁺]?[⁰¹²³⁴-⁹]{{1,4}}))
          |(?P<lifted>[⁻⁺]?[⁰¹²³⁴-⁹]{{1,4}})
          |\^[({{]?(?P<raised>[-−+]?[0-9]{{1,6}}(?:\.[0-9]{{1,20}})?))?
        (?P<rest>[0-9]*)
        (?P<tail>[A-Za-z][A-Za-z0-9_]{{0,60}})?
    )
    """,
    re.VERBOSE,
)
_HEX = re.compile(r"(?=[0-9a-f]{0,63}[a-f])(?=[a-f]{0,63}[0-9])[0-9a-f]{7,64}")
_WORD_NUMBER = re.compile(r"[A-Za-z]{2,40}(?:-[A-Za-z]{1,40}){0,3}-(?=[0-9]{1,12}(?:[.][0-9]{1,9})?$)")
_SCALE_WORD = re.compile(r"\s?(thousand|million|billion|trillion|percent|per\s?cent|pct)\b", re.IGNORECASE)
_SCALES = {"thousand": "K", "million": "M", "billion": "B", "trillion": "T"}
_SUFFIXES = ("k", "K", "M", "B", "T")
_UNITS = frozenset(  # letters that may stand right behind a number without making it a name
    "s ms us min h d GB GiB MB MiB KB KiB TB TiB PB PiB FLOP FLOPs FLOPS TFLOPs PFLOPs tok toks px nm W kW MW".split()  # noqa: SIM905
)
_ABOUT = re.compile(
    r"(?:[≈~∼≃]|\b(?:about|around|roughly|approximately|approx\.?|circa|nearly|almost|near|some|ca\.))\s?$",
    re.IGNORECASE,
)
_BOUNDS: tuple[tuple[re.Pattern[str], Bound], ...] = (
    (
        re.compile(r"(?:[≤<]=?|\b(?:up to|at most|no more than|less than|fewer than|under|below))\s?$", re.IGNORECASE),
        "at most",
    ),
    (
        re.compile(r"(?:(?<![-=])[≥>]=?|\b(?:at least|more than|over|above|no less than))\s?$", re.IGNORECASE),
        "at least",
    ),
)
_FROM = re.compile(r"\bfrom\s(?:[≈~∼]|about |around |roughly )?$", re.IGNORECASE)
_BETWEEN = re.compile(r"\bbetween\s$", re.IGNORECASE)
_NOT_NUMBERS = frozenset({"nan", "inf", "infinity"})
MAX_NUMBERS = 4000  # of one passage
_LOOK_BACK = 24  # characters before a number in which its prefix is looked for


@dataclass(frozen=True, kw_only=True)
class Number:
    """One number of a text, or what only looks like one. `value` and `high` are what `intervals.read_number` reads."""

    start: int  # of its words, prefix such as ~ included
    end: int
    kind: Kind
    value: str = ""
    high: str = ""  # the other end of a range
    about: bool = False
    bound: Bound = ""
    rounded: bool = True  # whether its digits may have been rounded: no plain integer
    fraction: bool = False  # written as a fraction, such as 1/3
    unit: str = ""  # letters right behind it


def scan(text: str, code: Sequence[tuple[int, int]] = (), most: int = MAX_NUMBERS) -> list[Number]:
    """The numbers of a text in their order; after `most` of them, one of the kind "rest" for all that is left.

    In parts set as `code` an operator beside a number makes it an operand.
    """
    found: list[Number] = []
    for match in _TOKEN.finditer(text):
        one = _name(match) if match["name"] else _read(match, text)
        if one is not None:
            found.append(_with_prefix(one, text) if one.kind == "value" else one)
            if len(found) == most:
                found.append(Number(start=match.end(), end=len(text), kind="rest"))
                break
    found = _joined(found, text)
    return [_operand(one, text, any(start <= one.start < end for start, end in code)) for one in found]


def _name(match: re.Match[str]) -> Number | None:
    """A word with a digit in it is a name, but for the 8 of top-8; NaN is none and says so."""
    word, start, end = match["name"], match.start(), match.end()
    if word.lower() in _NOT_NUMBERS:
        return Number(start=start, end=end, kind="not a number")
    if not any(letter in "0123456789" for letter in word):
        return None
    joined = _WORD_NUMBER.match(word)
    if joined:
        digits = word[joined.end() :]
        return Number(start=start + joined.end(), end=end, kind="value", value=digits, rounded="." in digits)
    return Number(start=start, end=end, kind="identifier")


def _read(match: re.Match[str], text: str) -> Number:
    start, end = match.start(), match.end()
    for group, kind in _GROUPS:
        if match[group]:
            return Number(start=start, end=end, kind=kind)
    core, part, tail = match["core"], match["part"] or "", match["tail"] or ""
    words = match.group()
    if _HEX.fullmatch(words) and not re.fullmatch(r"[0-9]{1,2}e[0-9]{1,9}|[0-9]+", words):
        return Number(start=start, end=end, kind="identifier")
    if match["rest"]:
        return Number(start=start, end=end, kind="beyond")
    digits = re.sub(r"[\u00a0\u2009\u202f]", ",", core) if core != "." else "0"
    value = digits + (part if part.startswith(".") or not part else "." + part)
    exponent = (match["exponent"] or "")[1:] or match["power"] or (match["high"] or "").translate(_SUPERSCRIPTS)
    if raised := match["raised"] or (match["lifted"] or "").translate(_SUPERSCRIPTS):
        if digits != "10" or part or "." in raised:
            return Number(start=start, end=end, kind="formula")
        value, exponent = "1", raised
    exponent = exponent.replace("−", "-").replace("+", "")
    sign = (match["sign"] or "").replace("−", "-").replace("–", "-")
    suffix, unit, kind = _tail(tail)
    if not tail and (scale := _SCALE_WORD.match(text, end)):
        suffix, end = _SCALES.get(scale[1].lower(), "%"), scale.end()
    elif not tail and text[end : end + 2].lstrip().startswith("%"):
        suffix, end = "%", text.index("%", end) + 1
    elif not tail and re.match(r"\s?[KMBT]\b(?![-/])", text[end : end + 4]) and text[end : end + 1] == " ":
        suffix, end = text[end + 1], end + 2
    if re.match(r"0[0-9]", digits) and kind == "value":  # the 09 of 09/04
        kind = "identifier"
    if sign == "+" and kind == "value":
        kind = "difference"
    value = ("-" if sign == "-" else "") + value + (f"e{exponent}" if exponent else "") + suffix
    rounded = bool(part or exponent or suffix)
    one = Number(start=start, end=end, kind=kind, value=value, rounded=rounded, unit=unit)
    return one if kind != "value" or _is_readable(value) else replace(one, kind="beyond", value="")


_GROUPS: tuple[tuple[str, Kind], ...] = (
    ("link", "link"),
    ("date", "date"),
    ("time", "time"),
    ("reference", "reference"),
    ("model", "model name"),
    ("version", "version"),
)


def _tail(tail: str) -> tuple[str, str, Kind]:
    """Suffix, unit and kind of a number by the letters right behind it."""
    if not tail:
        return "", "", "value"
    if tail in _SUFFIXES:
        return tail, "", "value"
    if tail in ("x", "X"):
        return "", "x", "multiple"
    if tail in ("st", "nd", "rd", "th"):
        return "", "", "ordinal"
    if tail in _UNITS:
        return "", tail, "value"
    return "", "", "identifier"


@lru_cache(maxsize=4096)
def exact_value(value: str) -> float:
    """A number as a float, to be held against what is plausible. ValueError where `intervals` cannot read it."""
    return float(read_number(value, "exact").low)


def _is_readable(value: str) -> bool:
    try:
        exact_value(value)
    except ValueError:
        return False
    return True


def _with_prefix(one: Number, text: str) -> Number:
    """Widen a number by the words before it that say how it is meant: ~, about, up to, ≤."""
    start, about, bound = one.start, one.about, one.bound
    for _ in range(3):
        before = text[max(0, start - _LOOK_BACK) : start]
        if match := _ABOUT.search(before):
            about = True
        else:
            for pattern, name in _BOUNDS:
                if match := pattern.search(before):
                    bound = name
                    break
        if match is None:
            break
        start -= len(before) - match.start()
    return replace(one, start=start, about=about, bound=bound)


def _joined(found: list[Number], text: str) -> list[Number]:
    """Join ranges, fractions and ± to one number; the two ends of a change are no claims of a state."""
    result: list[Number] = []
    for one in found:
        last = result[-1] if result else None
        if last is None or not _joinable(last, one):
            result.append(one)
            continue
        gap = text[last.end : one.start]
        before = text[max(0, last.start - _LOOK_BACK) : last.start]
        arrow = re.fullmatch(r"\s?(?:->|→|⟶|=>)\s?", gap)
        if arrow or (gap in (" to ", " up to ") and _FROM.search(before)):
            result[-1] = replace(last, kind="change")
            result.append(replace(one, kind="change"))
        elif gap in ("–", "-", " – ", " to ") or (gap == " and " and _BETWEEN.search(before)):
            result[-1] = _range(last, one) or last
            if result[-1] is last:
                result.append(one)
        elif re.fullmatch(r"\s?(?:±|\+/-|\+-)\s?", gap):
            result[-1] = _with_error(last, one) or last
            result.append(replace(one, kind="error"))
        elif gap == "/" and (share := _fraction(last, one)) is not None:
            result[-1] = share
        else:
            result.append(one)
    return result


def _joinable(last: Number, one: Number) -> bool:
    return {last.kind, one.kind} <= {"value", "change", "multiple"} and not last.high and not last.fraction


def _range(low: Number, high: Number) -> Number | None:
    """One number with two ends; the lower takes the upper's suffix. None where it does not run upwards."""
    if {low.kind, high.kind} != {"value"}:
        return None
    first = _with_suffix(low.value, high.value)
    if "e" in first or not _is_readable(first) or exact_value(first) > exact_value(high.value):
        return None
    return replace(low, end=high.end, value=first, high=high.value, unit=high.unit, rounded=True)


def _with_suffix(value: str, other: str) -> str:
    """A number with the suffix of the other, if it has none of its own."""
    bare = value[-1:].isdigit() and "e" not in value and not other[-1:].isdigit()
    return value + other[-1:] if bare else value


def _with_error(one: Number, error: Number) -> Number | None:
    """`one ± error` as a range."""
    try:
        middle, width = (Decimal(_plain(value)) for value in (_with_suffix(one.value, error.value), error.value))
    except InvalidOperation:
        return None
    low, high = (f"{end:f}" for end in (middle - abs(width), middle + abs(width)))
    if not (_is_readable(low) and _is_readable(high)):
        return None
    return replace(one, value=low, high=high, rounded=True)


def _plain(value: str) -> str:
    """A number without its suffix and commas, for decimal arithmetic."""
    scale = {"k": "e3", "K": "e3", "M": "e6", "B": "e9", "T": "e12", "%": "e-2"}
    body = re.sub(r"[,_]", "", value)
    return body[:-1] + scale[body[-1]] if body[-1] in scale else body


def _fraction(top: Number, bottom: Number) -> Number | None:
    """1/3 as a decimal of 16 digits; None where one of them is no small integer."""
    if not (re.fullmatch(r"[0-9]{1,4}", top.value) and re.fullmatch(r"[1-9][0-9]{0,3}", bottom.value)):
        return None
    share = Fraction(int(top.value), int(bottom.value))
    value = f"{share.numerator / share.denominator:.16g}"
    return replace(top, end=bottom.end, value=value, fraction=True) if _is_readable(value) else None


def _operand(one: Number, text: str, code: bool) -> Number:
    """A number that a formula computes with states nothing: 0.5 of 0.5/√d, and in code every operand."""
    if one.kind not in ("value", "multiple"):
        return one
    before, after = text[max(0, one.start - 2) : one.start], text[one.end : one.end + 3]
    beside = before.endswith(("^", "√", "**")) or re.match(
        r"\s?[·×*/^]\s?(?:√|\\|[A-Za-z]\w?[)^/·*])|\^|/√|\s?√", after
    )
    operator = code and (re.search(r"[-·*×/^√(+,]\s?$", before) or re.match(r"\s?[·*×/^√+]|\s?\)|\s?-\s", after))
    return replace(one, kind="formula") if beside or operator else one
