"""What printed digits allow: a number as published → the interval of values that its author may have meant.

    printed        "18.0T"      [17.95T, 18.05T)      half a unit of the last digit each side, the upper end left out
    exact          "390,251"    [390251, 390251]      an integer that was counted, a constant of the code
    approximate    "~2.1"       [2.0, 2.2]            a whole unit of the last significant digit each side
    reconstructed  "1.875e13"   as printed            digits that passed through a float: its shortest decimal's

Ends are exact fractions; only what a power or a root makes of them is float64, rounded outwards. Arithmetic closes the
upper end, so that a value which touches an edge is never called a contradiction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Literal

Digits = Literal["printed", "exact", "approximate", "reconstructed"]

SUFFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "B": 9, "T": 12, "%": -2}
NUMBER = re.compile(
    r"(?P<sign>[-+−]?)(?P<whole>\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.(?P<part>\d+))?(?:[eE](?P<exponent>[-+]?\d{1,3}))?"
    r"\s?(?P<suffix>[kKMBT%]?)"
)
MAX_DIGITS = 60  # longer texts are not numbers that somebody published
LARGEST = Fraction(10) ** 45  # nor are larger ones, or smaller than its inverse; products of a few stay in float64


@dataclass(frozen=True)
class Interval:
    """Every number from `low` up to `high`; `high` itself belongs to it where it is closed."""

    low: Fraction
    high: Fraction
    closed: bool = True

    def __post_init__(self) -> None:
        if self.low > self.high or (self.low == self.high and not self.closed):
            raise ValueError(f"an interval runs upwards, not from {self.low} to {self.high}")

    @property
    def middle(self) -> Fraction:
        """Half way between the ends."""
        return (self.low + self.high) / 2

    @property
    def is_point(self) -> bool:
        """Whether one number alone is meant."""
        return self.low == self.high


def exact(value: int | float | Fraction) -> Interval:
    """The one number `value`; of a float64 its shortest decimal, as it was written. ValueError beyond LARGEST."""
    number = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    _refuse_beyond_bounds(number)
    return Interval(number, number)


def read_number(text: str, digits: Digits) -> Interval:
    """The interval that `text` stands for, such as 535.3B, 390,251, 0.003291, 5e24 or 1%.

    ValueError where it is no number.
    """
    match = NUMBER.fullmatch(text.strip())
    if match is None or len(text) > MAX_DIGITS:
        raise ValueError(f"{text[:MAX_DIGITS]!r} is no number such as 535.3B, 390,251, 0.003291, 5e24 or 1%")
    part = match["part"] or ""
    mantissa = int(re.sub(r"[,_]", "", match["whole"]) + part)
    power = int(match["exponent"] or 0) + SUFFIXES[match["suffix"]] - len(part)
    if digits in ("approximate", "reconstructed"):  # trailing zeros of an integer do not count as digits
        while mantissa and mantissa % 10 == 0 and (power >= 0 or digits == "reconstructed"):
            mantissa, power = mantissa // 10, power + 1
    unit = Fraction(10) ** power
    value = -mantissa * unit if match["sign"] in ("-", "−") else mantissa * unit
    _refuse_beyond_bounds(value)
    if digits == "exact":
        return exact(value)
    if digits == "approximate":
        return Interval(value - unit, value + unit)
    return Interval(value - unit / 2, value + unit / 2, closed=False)


def between(low: str, high: str) -> Interval:
    """A range as its author gave it, both ends included."""
    return Interval(read_number(low, "exact").low, read_number(high, "exact").high)


def intersection(first: Interval, second: Interval) -> Interval | None:
    """The values that both allow; None where they contradict each other."""
    low = max(first.low, second.low)
    high = min(first.high, second.high)
    closed = all(one.closed for one in (first, second) if one.high == high)
    return Interval(low, high, closed) if low < high or (low == high and closed) else None


def overlap(first: Interval, second: Interval) -> bool:
    """Whether one value can be meant by both."""
    return intersection(first, second) is not None


def image(function: Callable[..., Any], *arguments: Interval) -> Interval:
    """The values of a function over intervals, where it is monotone in each argument: its extremes at their corners.

    Integers and fractions stay exact; a float64 result is widened by four units in the last place each side, more than
    a product of a few powers errs by. ValueError where it is not defined at a corner, or not a real float64 number.
    """
    try:
        corners = [function(*corner) for corner in product(*({one.low, one.high} for one in arguments))]
        lows, highs = ([_outward(value, end) for value in corners] for end in (-math.inf, math.inf))
    except (ArithmeticError, TypeError) as error:  # a division by zero, an overflow, a root of a negative number
        raise ValueError(f"not defined there: {error}") from error
    return Interval(min(lows), max(highs))


def relative_difference(value: Interval, reference: Interval) -> float | None:
    """(value − reference) / reference of the middles; None where the reference is zero."""
    return float((value.middle - reference.middle) / reference.middle) if reference.middle else None


def cut_off(interval: Interval) -> Interval:
    """What printed digits allow if the rest was cut off rather than rounded: from the number up to the next one."""
    return Interval(interval.middle, interval.middle + interval.high - interval.low, closed=False)


def shown(interval: Interval) -> str:
    """For a reader: an integer in full, another exact number in its shortest decimal, else both ends in six digits."""
    if interval.is_point:
        return shown_number(interval.low)
    low, high = (shown_number(end, significant=6) for end in (interval.low, interval.high))
    return low if low == high else f"{low} to {high}"


def shown_number(value: Fraction, significant: int | None = None) -> str:
    """An integer below 10^16 in full, a larger number in six digits; else the shortest decimal, or fewer digits."""
    if abs(value) >= 10**16:
        return f"{float(value):.6g}"
    if significant:
        value = Fraction(f"{float(value):.{significant}g}")
    return f"{value.numerator:,}" if value.denominator == 1 else repr(float(value))


def _refuse_beyond_bounds(value: Fraction) -> None:
    if value and not 1 / LARGEST <= abs(value) <= LARGEST:
        raise ValueError("a number beyond 10^45, or nearer to 0 than 10^-45, is none that somebody published")


def _outward(value: Any, towards: float) -> Fraction:
    if isinstance(value, float):
        for _ in range(4):
            value = math.nextafter(value, towards)
    return Fraction(value)
