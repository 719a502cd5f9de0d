"""Precision and recall on an invented thread, whose claims were written down by hand before it was ever read."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from audits.check import Audit, audit_record
from audits.claims import Claim, read_ledger
from audits.extract.extraction import Extraction, extract, ledger
from audits.extract.registry import read_registry
from audits.extract.scopes import Subject
from benchmarks.extraction import documents, once, same
from repro.record.artifacts import RunFacts
from repro.record.facts import Record

HERE = Path(__file__).parent
TERN = Subject(rungs=("s512", "s1024", "s2048", "s4096"), target="s4096", names=frozenset({"38B-A3B"}))
EXPECTED = read_ledger((HERE / "thread_claims.json").read_bytes()).claims


@pytest.fixture(scope="module")
def extraction() -> Extraction:
    return extract(documents((HERE / "thread.md").read_text()), read_registry(), TERN)


@pytest.fixture(scope="module")
def found(extraction: Extraction) -> tuple[Claim, ...]:
    return read_ledger(json.dumps(ledger(extraction, read_registry())).encode()).claims


def agree(one: Claim, other: Claim) -> bool:
    return one.source.address == other.source.address and same(one, other)


def test_precision_is_95_percent_or_more(found: tuple[Claim, ...]) -> None:
    wrong = [
        f"{one.id} {one.printed} {one.scope} {one.quote}" for one in found if not any(agree(one, e) for e in EXPECTED)
    ]
    precision = 1 - len(wrong) / len(found)
    print(f"precision {precision:.4f} of {len(found)}")
    assert precision >= 0.95, wrong


def audited(thread: str) -> Audit:
    """The thread held against itself, and nothing else."""
    content = json.dumps(ledger(extract(documents(thread), read_registry(), TERN), read_registry()))
    run = RunFacts(name="tern", title="Tern", snapshot=date(2026, 6, 1))
    return audit_record(Record(folder=Path("nowhere"), lock={}, run=run), read_ledger(content.encode()))


def test_the_auditor_finds_no_contradiction_in_a_consistent_thread() -> None:
    audit = audited((HERE / "thread.md").read_text())
    assert not [finding.title for finding in audit.findings if finding.severity in ("error", "warning")]
    assert audit.relations_checked >= 8


def test_the_auditor_finds_what_two_posts_say_differently() -> None:
    thread = (HERE / "thread.md").read_text().replace("stays 4096 and", "stays 8192 and").replace("0.00095", "0.0011")
    assert {finding.quantity.name for finding in audited(thread).findings} >= {
        "shape.sequence_length",
        "optimizer.adam_learning_rate",
        "training.tokens_per_step",  # it follows from the length
    }


def test_recall_is_85_percent_or_more(found: tuple[Claim, ...]) -> None:
    wanted = once(EXPECTED)
    missed = [
        f"{group[0].id} {group[0].quantity} {group[0].printed} {group[0].scope}"
        for group in wanted
        if not any(agree(one, claim) for one in found for claim in group)
    ]
    recall = 1 - len(missed) / len(wanted)
    print(f"recall {recall:.4f} of {len(wanted)}")
    assert recall >= 0.85, missed
