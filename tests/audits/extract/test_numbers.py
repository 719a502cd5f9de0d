"""A number in a text: its value, how it is meant, and what only looks like one."""

from __future__ import annotations

import pytest

from audits.extract.numbers import Number, scan


def only(text: str) -> Number:
    found = scan(text)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("390,139", "390,139"),
        ("390\u202f139", "390,139"),
        ("18.0T", "18.0T"),
        ("25.6 trillion", "25.6T"),
        ("1.2 B", "1.2B"),
        ("2.70e24", "2.70e24"),
        ("1e-4", "1e-4"),
        ("6.04e−15", "6.04e-15"),
        ("2.5×10^24", "2.5e24"),
        ("2.5 × 10²⁴", "2.5e24"),
        ("3.2×10⁻¹⁵", "3.2e-15"),
        ("10²⁴", "1e24"),
        ("81 percent", "81%"),
        ("50 pct", "50%"),
        ("13.6 %", "13.6%"),
        ("−0.0061", "-0.0061"),
        ("1/3", "0.3333333333333333"),
        ("top-8", "8"),
        (".25", "0.25"),
    ],
)
def test_a_number_is_read_as_printed(text: str, value: str) -> None:
    assert (only(text).kind, only(text).value) == ("value", value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("d6144", "identifier"),
        ("step_12b", "identifier"),
        ("0cb3167f39", "identifier"),
        ("4738e91", "identifier"),
        ("8f31c2e90a", "identifier"),
        ("3D", "identifier"),
        ("2026-08-19T15:47:34Z", "date"),
        ("2026-08-19 15:47 UTC", "date"),
        ("Aug 19th", "date"),
        ("19 May 2026", "date"),
        ("17:05 UTC", "time"),
        ("08:30 CEST", "time"),
        ("#8435", "reference"),
        ("https://a.test/7/8?x=9", "link"),
        ("12x", "multiple"),
        ("19th", "ordinal"),
        ("1.2.3", "version"),
        ("12B-A1B", "model name"),
        ("+2.6%", "difference"),
        ("10^308", "beyond"),
        ("1e999", "beyond"),
        ("9" * 5000, "beyond"),
        ("NaN", "not a number"),
        ("Infinity", "not a number"),
    ],
)
def test_what_only_looks_like_a_number_says_what_it_is(text: str, kind: str) -> None:
    found = scan(text)
    assert found
    assert {one.kind for one in found} == {kind}


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("1-2 days", "1", "2"),
        ("0.003–0.004", "0.003", "0.004"),
        ("1.5–2%", "1.5%", "2%"),
        ("0.0061 to 0.0063", "0.0061", "0.0063"),
        ("between 3 and 5", "3", "5"),
        ("2.31 ± 0.02", "2.29", "2.33"),
    ],
)
def test_a_range_has_two_ends(text: str, low: str, high: str) -> None:
    found = next(one for one in scan(text) if one.kind == "value")
    assert (found.value, found.high) == (low, high)


@pytest.mark.parametrize("text", ["~2.1", "≈ 2.1", "about 2.1", "roughly 2.1", "around 2.1", "near 2.1"])
def test_about_is_kept(text: str) -> None:
    assert only(text).about
    assert only(text).start == 0


def test_bounds_and_changes_are_no_plain_values() -> None:
    assert (only("up to roughly 25%").bound, only("up to roughly 25%").about) == ("at most", True)
    assert only("more than 100").bound == "at least"
    assert [one.kind for one in scan("from ~7% to ~40%")] == ["change", "change"]
    assert [one.kind for one in scan("4k->8k at 50 pct")] == ["change", "change", "value"]


def test_an_operand_states_nothing_but_a_result_does() -> None:
    assert [one.kind for one in scan("0.5/√hidden = 0.006379")] == ["formula", "value"]
    law = "lr = 0.0876 · tokens^-0.35"
    assert {one.kind for one in scan(law, code=[(0, len(law))])} == {"formula"}


def test_every_digit_of_a_text_belongs_to_a_number() -> None:
    text = "a 1 d2 3.4e5x 6/7 #8 9:10 2026-01-02 https://x.test/3 v4.5.6 7B-A8B 9_000 (10) 11% 1²"
    covered = {place for one in scan(text) for place in range(one.start, one.end)}
    assert not [
        text[place:]
        for place, letter in enumerate(text)
        if letter.isdigit() and letter.isascii() and place not in covered
    ]
