"""The auditor knows no claim, no run, no rung and no expected value: renaming a record changes names only."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import audits
from audits.check import Audit, audit_record
from audits.claims import read_ledger
from audits.report.document import document
from repro.record.facts import load_record

SOURCES = sorted(path for path in Path(audits.__file__).parent.rglob("*") if path.suffix in (".py", ".jinja"))


def built_in_claims() -> dict[str, Any]:
    content = load_record().claims
    assert content is not None
    return json.loads(content)


def audit_of(claims: dict[str, Any]) -> Audit:
    record = load_record()
    return audit_record(record, read_ledger(json.dumps(claims).encode()))


def test_no_file_of_the_auditor_names_a_claim_a_run_or_a_rung() -> None:
    record = load_record()
    names = {claim["id"] for claim in built_in_claims()["claims"]}
    names |= {segment.run_id for segment in record.hero_lineage} | {row.run_id for row in record.ladder_rungs}
    names |= {row.rung for row in record.ladder_rungs} | {record.run.name}
    names |= {store for cell in record.mixture_weights for store in cell.tokens}
    assert len(names) > 250
    assert len(SOURCES) > 10
    words = re.compile(r"[\w.-]+")
    for path in SOURCES:
        named = names & set(words.findall(path.read_text()))
        assert not named, f"{path.name} names {sorted(named)}"


@pytest.mark.parametrize("value", ["390139", "22762487808", "535477106688", "18.75T", "2.0387", "0.2039", "23.106"])
def test_no_file_of_the_auditor_holds_an_expected_value(value: str) -> None:
    assert not [path.name for path in SOURCES if value in path.read_text().replace("_", "")]


def test_the_same_findings_on_a_record_whose_ids_are_renamed() -> None:
    claims = built_in_claims()
    before = audit_of(claims)
    for number, claim in enumerate(claims["claims"]):
        claim["id"] = f"renamed-{len(claims['claims']) - number:04}"
    after = audit_of(claims)
    kept = ("id", "severity", "title", "relative_difference", "relation")
    views = [
        [{key: finding[key] for key in kept} for finding in document(audit)["findings"]] for audit in (before, after)
    ]
    assert views[0] == views[1]
    assert len(views[0]) > 5


def test_the_order_of_claims_changes_no_finding() -> None:
    claims = built_in_claims()
    before = [(finding.id, finding.severity, finding.title) for finding in audit_of(claims).findings]
    claims["claims"].reverse()
    claims["sources"].reverse()
    assert [(finding.id, finding.severity, finding.title) for finding in audit_of(claims).findings] == before
