"""Records in which all is well raise no alarm, and one changed number in them does.

tests/records/ holds two invented runs, a dense one and one stated in tokens per parameter, with other runs' figures,
rounded and approximate ones beside exact ones; and the ids of those claims of the built-in record that agree, kept as a
list so that a false alarm is not simply left out of it.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from audits.check import audit_record
from audits.claims import Ledger, read_ledger
from audits.report.document import document
from audits.report.junit import as_junit
from audits.report.render import as_html
from audits.report.sarif import as_sarif
from benchmarks.mutations import consistent_tables, mutate
from repro.record.facts import Record, load_record

RECORDS = Path(__file__).parents[1] / "records"
INVENTED = ("kestrel-8b", "heron-400m")


def invented(name: str) -> tuple[Record, Ledger]:
    record = load_record(RECORDS / name)
    assert record.claims is not None
    return record, read_ledger(record.claims)


@pytest.fixture(scope="module")
def subset() -> tuple[Record, Ledger]:
    """The built-in record's tables and those of its claims that agree."""
    built_in = load_record()
    assert built_in.claims is not None
    ledger = read_ledger(built_in.claims)
    ids = set((RECORDS / "marin-535b.txt").read_text().split())
    kept = tuple(claim for claim in ledger.claims if claim.id in ids)
    assert len(kept) == len(ids) > 300
    known = tuple(one for one in ledger.explanations if one.kind != "contradiction")
    return consistent_tables(built_in), replace(ledger, claims=kept, explanations=known)


def alarms(record: Record, ledger: Ledger) -> list[str]:
    return [one.title for one in audit_record(record, ledger).findings if one.severity in ("error", "warning")]


@pytest.mark.parametrize("name", INVENTED)
def test_an_invented_consistent_record_gives_no_finding_at_all(name: str) -> None:
    record, ledger = invented(name)
    audit = audit_record(record, ledger)
    assert not [one.title for one in audit.findings]
    assert audit.coverage.share > 0.8
    assert audit.relations_checked > 4


def test_what_agrees_in_the_built_in_record_gives_no_error_and_no_warning(subset: tuple[Record, Ledger]) -> None:
    assert alarms(*subset) == []


@pytest.mark.parametrize("name", INVENTED)
def test_of_covered_changes_to_an_invented_record_95_in_100_are_found_and_named(name: str) -> None:
    """Every other claim, which is no choice of ours; benchmarks/mutations.py --record changes all of them."""
    outcomes = [one for one in mutate(*invented(name), every=2) if one.covered]
    assert len(outcomes) > 50
    assert sum(one.found for one in outcomes) / len(outcomes) >= 0.95
    assert not any(one.unnamed for one in outcomes)


@pytest.mark.parametrize(
    ("name", "claim", "value", "title"),
    [
        ("kestrel-8b", "report-01", "2,099,999,336,448", "training tokens: 2,099,999,336,448 against"),
        ("kestrel-8b", "config-17", "576", "GPUs"),
        ("heron-400m", "plan-01", "16", "tokens per active parameter"),
    ],
)
def test_one_changed_number_is_a_finding(name: str, claim: str, value: str, title: str) -> None:
    record = load_record(RECORDS / name)
    assert record.claims is not None
    content = json.loads(record.claims)
    (changed,) = (one for one in content["claims"] if one["id"] == claim)
    changed["value"] = value
    found = audit_record(record, read_ledger(json.dumps(content).encode())).findings
    assert any(title in one.title and claim in one.suspects for one in found), [one.title for one in found]


def test_one_changed_number_of_the_built_in_record_is_a_finding(subset: tuple[Record, Ledger]) -> None:
    record, ledger = subset
    steps = next(c for c in ledger.claims if c.quantity == "training.steps" and not c.scope and c.digits == "exact")
    kept = tuple(
        replace(one, value=replace(one.value, low=one.value.low + 7, high=one.value.high + 7)) if one is steps else one
        for one in ledger.claims
    )
    assert alarms(record, replace(ledger, claims=kept))


@pytest.mark.parametrize("name", INVENTED)
def test_a_record_of_two_thousand_claims_is_audited_in_five_seconds(name: str) -> None:
    """One record, said again of as many runs as it takes; all its relations hold in each."""
    record, ledger = invented(name)
    again = [
        replace(one, id=f"{one.id}/{number}", scope=tuple(sorted((*one.scope, ("arm", str(number))))))
        for number in range(2000 // len(ledger.claims) + 1)
        for one in ledger.claims
    ]
    assert len(again) >= 2000
    start = time.process_time()
    audit = audit_record(record, replace(ledger, claims=tuple(again)))
    report = document(audit)
    texts = (as_html(report), as_sarif(report, record.claims), as_junit(report))
    assert time.process_time() - start < 5  # of the processor, so that others on the machine do not count
    assert all(texts)
    assert not audit.findings
    assert audit.coverage.share > 0.8
