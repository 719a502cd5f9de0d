"""In a consistent record every claim that something is held against can be changed by no one unseen."""

from __future__ import annotations

from decimal import Decimal

import pytest

from audits.check import audit_record
from audits.claims import Ledger
from audits.intervals import Interval, read_number
from benchmarks.mutations import KINDS, consistent_part, mutate, mutations
from repro.record.facts import Record, load_record
from tests.audits.conftest import AuditClaims, claim


@pytest.fixture(scope="module")
def consistent() -> tuple[Record, Ledger]:
    return consistent_part(load_record())


def test_the_consistent_part_has_no_error_and_no_warning(consistent: tuple[Record, Ledger]) -> None:
    audit = audit_record(*consistent)
    assert not [one.title for one in audit.findings if one.severity in ("error", "warning")]
    assert audit.coverage.claims > 300


def test_most_claims_of_the_consistent_part_are_held_against_something(consistent: tuple[Record, Ledger]) -> None:
    coverage = audit_record(*consistent).coverage
    held = set(coverage.compared) | set(coverage.related)
    assert len(held) / coverage.claims >= 0.6


def test_of_covered_mutations_95_in_100_are_found_and_named(consistent: tuple[Record, Ledger]) -> None:
    """Every 24th claim, which is no choice of ours; benchmarks/mutations.py changes all of them."""
    outcomes = [one for one in mutate(*consistent, every=24) if one.covered]
    assert {one.kind for one in outcomes} == set(KINDS)
    assert len(outcomes) > 20
    assert sum(one.found for one in outcomes) / len(outcomes) >= 0.95
    assert not any(one.unnamed for one in outcomes)


@pytest.mark.parametrize(
    ("value", "digits", "changed"),
    [
        ("18.0T", "printed", {"36.0T", "81.0T", "18.5T"}),
        ("390,251", "exact", {"780502", "930251", "390256"}),
        ("15000000", "exact", {"30000000", "51000000", "20000000"}),
        ("80%", "printed", {"160%", "08%", "85%"}),
        ("8", "exact", {"16", "13"}),
        ("2.70e24", "approximate", {"5.40e24", "7.20e24", "3.70e24"}),
    ],
)
def test_a_number_is_changed_by_more_than_its_rounding(
    audit_claims: AuditClaims, value: str, digits: str, changed: set[str]
) -> None:
    (one,) = audit_claims(claim("a", "training.tokens", value, digits=digits)).ledger.claims
    assert isinstance(one.value, Interval)
    mutants = list(mutations(one))
    assert {mutant.printed.removeprefix("about ") for _, mutant in mutants} == changed
    for _, mutant in mutants:
        assert isinstance(mutant.value, Interval)
        assert mutant.value.low > one.value.high or mutant.value.high < one.value.low


def test_ten_half_widths_are_five_units_of_the_last_printed_digit(audit_claims: AuditClaims) -> None:
    (one,) = audit_claims(claim("a", "training.tokens", "23.106T")).ledger.claims
    moved = dict(mutations(one))["ten half-widths"].value
    assert isinstance(moved, Interval)
    assert isinstance(one.value, Interval)
    assert moved.middle - one.value.middle == 5 * read_number("0.001T", "exact").low == Decimal(5) * 10**9


def test_what_follows_from_itself_is_no_excuse(audit_claims: AuditClaims) -> None:
    """The last log step of a wrong number of steps agrees with that number about as far as its digits go."""
    audit = audit_claims(
        claim("right", "training.steps", "390251", digits="exact", source="config"),
        claim("wrong", "training.steps", "780000", digits="approximate"),
    )
    (finding,) = audit.findings
    assert finding.severity == "error"
    assert finding.suspects[0] == "wrong"
