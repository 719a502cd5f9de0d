"""Reading claims.json: every mistake is answered with the claim, the field and the mend."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from audits.claims import RANKS, SOURCE_KINDS, Ledger, read_ledger
from audits.intervals import Interval
from audits.quantities import QUANTITIES
from repro.errors import RecordError
from tests.audits.conftest import SOURCES, claim

OWN = {
    "name": "tea.cups",
    "label": "cups of tea",
    "unit": "cups",
    "effect": 3,
    "conventions": ["with refills", "without"],
}


def read(*claims: dict[str, Any], **sections: Any) -> Ledger:
    content = {"sources": SOURCES, "quantities": [OWN], "claims": list(claims), **sections}
    return read_ledger(json.dumps(content).encode())


def without(entry: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != key}


TOKENS = claim("a", "training.tokens", "18.0T")
SCHEDULE = claim("a", "optimizer.schedule", name="linear")


def test_a_claim_is_read_with_its_interval_and_its_source() -> None:
    (one,) = read(
        {**TOKENS, "place": "section 3", "quote": "18.0T tokens", "scope": {"step": "7", "rung": "w64"}}
    ).claims
    assert one.value == Interval(Fraction(17_950_000_000_000), Fraction(18_050_000_000_000), closed=False)
    assert (one.printed, one.digits, one.place, one.quote) == ("18.0T", "printed", "section 3", "18.0T tokens")
    assert one.scope == (("rung", "w64"), ("step", "7"))  # sorted, so that equal scopes are equal values
    assert one.source.citation == "the job summary"


@pytest.mark.parametrize(
    ("stated", "low", "high", "printed"),
    [
        ({"value": "390,251", "digits": "exact"}, "390251", "390251", "390,251"),
        ({"value": "2.1", "digits": "approximate"}, "2", "2.2", "about 2.1"),
        ({"value": "18.75T", "digits": "reconstructed"}, "18745000000000", "18755000000000", "18.75T"),
        ({"value": "13.6%", "digits": "printed"}, "0.1355", "0.1365", "13.6%"),
        ({"between": ["2%", "8%"]}, "0.02", "0.08", "2% to 8%"),
    ],
)
def test_digits_say_what_a_value_allows(stated: dict[str, Any], low: str, high: str, printed: str) -> None:
    (one,) = read(claim("a", "tea.cups", **stated)).claims
    assert isinstance(one.value, Interval)
    assert (one.value.low, one.value.high) == (Fraction(low), Fraction(high))
    assert one.printed == printed


def test_a_name_is_compared_by_its_spelling_and_shown_in_its_own_words() -> None:
    (plain,) = read(SCHEDULE).claims
    (quoted,) = read({**SCHEDULE, "quote": "decays linearly"}).claims
    assert (plain.value, plain.printed, plain.digits) == ("linear", "linear", "named")
    assert (quoted.value, quoted.printed) == ("linear", "decays linearly")


def test_a_record_may_have_quantities_of_its_own() -> None:
    ledger = read(claim("a", "tea.cups", "3", digits="exact", convention="without"))
    assert ledger.claims[0].convention == "without"
    assert ledger.quantities["tea.cups"].label == "cups of tea"
    assert set(QUANTITIES) < set(ledger.quantities)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (claim("a", "training.token", "1T"), ["claim a: unknown quantity 'training.token'", "mean 'training.tokens'?"]),
        (claim("a", "xyzzy", "1T"), ["claim a: unknown quantity 'xyzzy'", 'declare it under "quantities"']),
        ({**TOKENS, "name": "many"}, ["claim a: states its value in exactly one of value, between and name."]),
        ({**TOKENS, "between": ["1T", "2T"]}, ["claim a: states its value in exactly one of value, between and name."]),
        (claim("a", "training.tokens"), ["claim a: states its value in exactly one of value, between and name."]),
        (claim("a", "training.tokens", name="many"), ["claim a: training.tokens is a number, in value or between."]),
        (claim("a", "optimizer.schedule", "5"), ["claim a: optimizer.schedule is a name."]),
        (without(TOKENS, "source"), ["claim a: source is missing."]),
        ({**TOKENS, "source": ""}, ["claim a, source: '' is not listed"]),
        ({**TOKENS, "source": "hearsay"}, ["claim a, source: 'hearsay' is not listed under \"sources\""]),
        (claim("a", "training.tokens", "18 trillion"), ["claim a, value: '18 trillion' is no number such as 535.3B"]),
        (claim("a", "training.tokens", "NaN"), ["claim a, value: 'NaN' is no number"]),
        (claim("a", "training.tokens", "inf"), ["claim a, value: 'inf' is no number"]),
        ({**TOKENS, "value": 18}, ["claim a, value: 18: should be a valid string"]),
        (claim("a", "training.tokens", between=["2T", "1T"]), ["claim a, value: an interval runs upwards"]),
        (claim("a", "training.tokens", between=["1T"]), ["claim a: between.1 is missing."]),
        (without(TOKENS, "digits"), ["claim a, digits: goes with value"]),
        (
            {**SCHEDULE, "digits": "exact", "name": "", "between": ["1", "2"], "quantity": "tea.cups"},
            ["claim a, digits:"],
        ),
        ({**TOKENS, "digits": "guessed"}, ["claim a, digits: 'guessed'", "'reconstructed'"]),
        (
            {**TOKENS, "convention": "by weight"},
            ["claim a, convention: 'by weight' is none of training.tokens's: it has"],
        ),
        (claim("a", "tea.cups", "3", convention="by weight"), ["none of tea.cups's: 'with refills', 'without'."]),
        ({**TOKENS, "scope": {"step": 7}}, ["claim a, scope.step: 7: should be a valid string"]),
        (without(TOKENS, "date"), ["claim a: date is missing."]),
        ({**TOKENS, "date": {}}, ["claim a: date.text is missing."]),
        ({**TOKENS, "qoute": "18.0T"}, ["claim a: unknown key 'qoute'; did you mean 'quote'?"]),
        (without(TOKENS, "id"), ["claim number 1: id is missing."]),
    ],
)
def test_a_malformed_claim_is_named_with_its_field(entry: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RecordError) as caught:
        read(entry)
    for word in ("claims.json, ", *words):
        assert word in str(caught.value), str(caught.value)


SOURCE = {"id": "s", "kind": "blog", "citation": "a blog"}
EXPLANATION = {"quantity": "training.tokens", "degree": "full", "text": "It says so.", "source": "issue"}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"sources": [{**SOURCE, "kind": "blogg"}]}, ["source s, kind: 'blogg': did you mean 'blog'?"]),
        ({"sources": [{**SOURCE, "kind": "xyzzy"}]}, ["source s, kind: 'xyzzy': known kinds are run-configuration,"]),
        ({"sources": [without(SOURCE, "citation")]}, ["source s: citation is missing."]),
        ({"sources": [SOURCE, SOURCE]}, ["claims.json, source: id 's' stands twice"]),
        ({"claims": [TOKENS, TOKENS]}, ["claims.json, claim: id 'a' stands twice (again as entry 2)"]),
        ({"quantities": [OWN, OWN]}, ["name 'tea.cups' stands twice"]),
        ({"quantities": [{**OWN, "effect": 4}]}, ["quantity tea.cups, effect: 4"]),
        (
            {"quantities": [{**OWN, "name": "training.tokens"}]},
            ["quantity training.tokens: is in the vocabulary already"],
        ),
        ({"explanations": [{**EXPLANATION, "quantity": "training.toke"}]}, ["explanation number 1: unknown quantity"]),
        ({"explanations": [{**EXPLANATION, "source": "hearsay"}]}, ["explanation number 1, source: 'hearsay'"]),
        ({"explanations": [{**EXPLANATION, "degree": "half"}]}, ["explanation number 1, degree: 'half'"]),
        ({"claim": []}, ["claims.json: unknown key 'claim'; did you mean 'claims'?"]),
        ({"claims": {}}, ["claims.json, claims: {}: should be a valid"]),
    ],
)
def test_a_malformed_section_is_named(sections: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RecordError) as caught:
        read(**sections)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"claims": [', "claims.json: not JSON at line 1"),
        (b"[]", "claims.json: must be an object with the lists sources, quantities, claims and explanations."),
        (b'{"claims": [{"id": "a", "value": NaN}]}', "claims.json: NaN is not a number of JSON"),
        (b'{"claims": [], "claims": []}', "claims.json: key 'claims' stands twice"),
        (b'{"claims": "\xff"}', "claims.json: not UTF-8"),
    ],
)
def test_what_is_no_ledger_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_ledger(data)
    assert words in str(caught.value), str(caught.value)


def test_an_empty_ledger_knows_the_vocabulary() -> None:
    ledger = read_ledger(b"{}")
    assert not ledger.claims
    assert ledger.quantities == QUANTITIES


def test_every_kind_of_source_has_one_of_five_ranks() -> None:
    assert len(RANKS) == 5
    assert set(SOURCE_KINDS.values()) == set(RANKS)
    ledger = read(sources=[{**SOURCE, "id": kind, "kind": kind} for kind in SOURCE_KINDS])
    ranks = {kind: source.rank for kind, source in ledger.sources.items()}
    assert ranks["run-configuration"] < ranks["launcher-code"] < ranks["issue-body"] < ranks["blog"]
    assert max(ranks.values()) == ranks["third-party-audit"] == 4
