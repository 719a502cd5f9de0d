"""Intervals: what digits allow, and arithmetic that never loses a value."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audits.intervals import Interval, between, exact, image, intersection, overlap, read_number, shown

NUMBERS = st.fractions(min_value=-(10**15), max_value=10**15, max_denominator=10**6)
POSITIVE = st.fractions(min_value=Fraction(1, 10**6), max_value=10**15, max_denominator=10**6)


@st.composite
def intervals(draw: st.DrawFn, numbers: st.SearchStrategy[Fraction] = NUMBERS) -> Interval:
    low, high = sorted((draw(numbers), draw(numbers)))
    return Interval(low, high, draw(st.booleans()) or low == high)


def inside(interval: Interval, share: Fraction) -> Fraction:
    return interval.low + (interval.high - interval.low) * share


@pytest.mark.parametrize(
    ("text", "digits", "low", "high"),
    [
        ("18.0T", "printed", "17.95e12", "18.05e12"),
        ("535.3B", "printed", "535.25e9", "535.35e9"),
        ("5e24", "printed", "4.5e24", "5.5e24"),
        ("1%", "printed", "0.005", "0.015"),
        ("0.003291", "printed", "0.0032905", "0.0032915"),
        ("-0.056", "printed", "-0.0565", "-0.0555"),
        ("390,251", "exact", "390251", "390251"),
        ("0.95", "exact", "0.95", "0.95"),
        ("2.1", "approximate", "2.0", "2.2"),
        ("100", "approximate", "0", "200"),
        ("18750000000000", "reconstructed", "18745e9", "18755e9"),
        ("1.875e13", "reconstructed", "18745e9", "18755e9"),
    ],
)
def test_digits_mean_what_the_rule_says(text: str, digits: str, low: str, high: str) -> None:
    interval = read_number(text, digits)  # type: ignore[arg-type]
    assert (interval.low, interval.high) == (Fraction(low), Fraction(high))
    assert interval.closed == (digits in ("exact", "approximate"))


def test_18_0T_and_18_75T_contradict_and_18_005T_does_not() -> None:
    planned = read_number("18.0T", "printed")
    assert not overlap(planned, read_number("18.75T", "printed"))
    assert overlap(planned, exact(18_005_144_633_344))


def test_the_upper_end_of_printed_digits_is_left_out() -> None:
    assert not overlap(read_number("1.0", "printed"), exact(Fraction("1.05")))
    assert overlap(read_number("1.0", "printed"), exact(Fraction("0.95")))
    assert not overlap(read_number("1.0", "printed"), read_number("1.1", "printed"))


@pytest.mark.parametrize("text", ["", "T", "18.0 trillion", "1e9999", "1,0000", "nan", "inf", "1.", "--1", "9" * 61])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number"):
        read_number(text, "printed")


def test_a_range_includes_both_ends_and_runs_upwards() -> None:
    assert between("2%", "8%") == Interval(Fraction("0.02"), Fraction("0.08"))
    with pytest.raises(ValueError, match="runs upwards"):
        between("8%", "2%")


@given(st.integers(0, 10**9), st.integers(0, 9))
def test_a_printed_number_lies_in_its_own_interval(mantissa: int, places: int) -> None:
    text = f"{Fraction(mantissa, 10**places).__float__():.{places}f}"
    for digits in ("printed", "approximate", "reconstructed"):
        assert overlap(read_number(text, digits), exact(Fraction(text)))  # type: ignore[arg-type]


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=0, max_value=10**9, places=6), st.integers(0, 5))
def test_rounding_never_contradicts(value: object, places: int) -> None:
    """Whatever is printed with fewer digits agrees with what it was rounded from."""
    assert overlap(read_number(f"{value:.{places}f}", "printed"), exact(Fraction(str(value)))) or _is_tie(value, places)


def _is_tie(value: object, places: int) -> bool:
    """Half up and half to even differ on a tie, whose upper neighbour's interval begins with it."""
    return (Fraction(str(value)) * 10**places * 2).denominator == 1


@given(intervals(), intervals())
def test_overlap_is_symmetric_and_is_an_intersection(first: Interval, second: Interval) -> None:
    common = intersection(first, second)
    assert common == intersection(second, first)
    if common is not None:
        assert overlap(common, first)
        assert overlap(common, second)


@given(intervals(), intervals(), intervals())
def test_intervals_that_overlap_pairwise_have_a_common_value(a: Interval, b: Interval, c: Interval) -> None:
    """So that clusters may be built by narrowing one intersection (Helly's theorem on a line)."""
    if overlap(a, b) and overlap(b, c) and overlap(a, c):
        common = intersection(a, b)
        assert common is not None
        assert overlap(common, c)


UNIT = st.fractions(0, 1, max_denominator=1000)


@given(intervals(POSITIVE), intervals(POSITIVE), UNIT, UNIT)
def test_arithmetic_keeps_every_value(a: Interval, b: Interval, s: Fraction, t: Fraction) -> None:
    x, y = inside(a, s), inside(b, t)
    for function in (lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q, lambda p, q: p / q):
        assert overlap(image(function, a, b), exact(function(x, y)))


@given(intervals(POSITIVE), UNIT, st.floats(-2, 2))
def test_a_power_keeps_every_value(a: Interval, s: Fraction, exponent: float) -> None:
    result = image(lambda x: float(x) ** exponent, a)
    value = float(inside(a, s)) ** exponent
    assert result.low <= Fraction(math.nextafter(value, math.inf))
    assert Fraction(math.nextafter(value, 0)) <= result.high


def test_exact_arithmetic_stays_exact() -> None:
    tokens = image(lambda steps, batch, length: steps * batch * length, exact(390251), exact(11264), exact(4096))
    assert tokens == exact(18_005_144_633_344)


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (exact(390251), "390,251"),
        (exact(Fraction(0.003290470163258143)), "0.003290470163258143"),
        (read_number("1%", "printed"), "0.005 to 0.015"),
        (exact(27 * 10**23), "2.7e+24"),
    ],
)
def test_intervals_are_shown_for_a_reader(interval: Interval, text: str) -> None:
    assert shown(interval) == text
