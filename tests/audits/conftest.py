"""A record with nothing in it but claims, to hold one rule at a time against."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from audits.check import Audit, audit_record
from audits.claims import read_ledger
from repro.record.artifacts import RunFacts
from repro.record.facts import Record

SOURCES = [
    {"id": "config", "kind": "run-configuration", "citation": "resolved configuration", "address": "https://a.test/c"},
    {"id": "issue", "kind": "issue-comment", "citation": "the job summary", "address": "https://a.test/i"},
    {"id": "article", "kind": "third-party-article", "citation": "an article"},
]

AuditClaims = Callable[..., Audit]


def claim(id: str, quantity: str, value: str = "", **more: Any) -> dict[str, Any]:
    """An entry of claims.json; digits are printed and the source is the issue unless said otherwise."""
    stated = {"value": value, "digits": "printed"} if value else {}
    return {"id": id, "quantity": quantity, **stated, "source": "issue", "date": {"text": "once"}, **more}


@pytest.fixture
def audit_claims() -> AuditClaims:
    """Audit claims, and explanations, of a run of which nothing else is known."""

    def run(*claims: dict[str, Any], explanations: tuple[dict[str, Any], ...] = ()) -> Audit:
        content = {"sources": SOURCES, "claims": list(claims), "explanations": list(explanations)}
        facts = RunFacts(name="a-run", title="A run", snapshot=date(2026, 1, 1), recipe="marin")
        record = Record(folder=Path("nowhere"), lock={}, run=facts)
        return audit_record(record, read_ledger(json.dumps(content).encode()))

    return run
