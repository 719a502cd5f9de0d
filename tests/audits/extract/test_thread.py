"""Precision and recall on an invented thread, whose claims were written down by hand before it was ever read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audits.claims import Claim, read_ledger
from audits.extract.extraction import Extraction, extract, ledger
from audits.extract.registry import read_registry
from audits.extract.scopes import Subject
from benchmarks.extraction import documents, once, same

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
