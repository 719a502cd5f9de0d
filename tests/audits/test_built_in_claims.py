"""The published claims of the built-in record: complete, sourced, comparable, and no more quoted than needed."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import Any

import pytest

from audits.claims import Claim, Ledger, Scope, freeze_scope, read_ledger
from audits.intervals import Interval, overlap
from audits.quantities import QUANTITIES
from repro.record.facts import load_record

ID = re.compile(r"([A-Z]{2,5})-(\d+)(?:\.([a-z0-9][A-Za-z0-9_]*))?")
FAMILIES = {  # how many entries of each kind the public record was read for, 246 in all
    "PAR": 5, "ARC": 13, "TOK": 8, "STEP": 4, "BATCH": 2, "RATIO": 1, "PHASE": 9, "EPOCH": 5, "MIXV": 5, "STORE": 8,
    "FLOP": 7, "GPU": 6, "DUR": 4, "THR": 9, "MFU": 4, "CAP": 7, "DROP": 13, "LR": 8, "WD": 4, "ZL": 2, "PREC": 3,
    "REMAT": 1, "LAD": 15, "FC": 6, "GN": 5, "DAT": 24, "ACC": 8, "LIC": 2, "RUN": 26, "EV": 15, "PROG": 6, "CTX": 6,
    "FUND": 1, "OPS": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> bytes:
    content = load_record().claims
    assert content is not None
    return content


@pytest.fixture(scope="module")
def ledger(data: bytes) -> Ledger:
    return read_ledger(data)


@pytest.fixture(scope="module")
def entries(data: bytes) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = json.loads(data)["claims"]
    return claims


def about(ledger: Ledger, quantity: str, **scope: str) -> list[Claim]:
    return [one for one in ledger.claims if (one.quantity, one.scope) == (quantity, freeze_scope(scope))]


def number(claim: Claim) -> Interval:
    assert isinstance(claim.value, Interval)
    return claim.value


def test_every_entry_became_one_claim_or_several_with_parts(ledger: Ledger) -> None:
    parts: dict[str, list[str | None]] = defaultdict(list)
    for claim in ledger.claims:
        match = ID.fullmatch(claim.id)
        assert match, claim.id
        parts[f"{match[1]}-{match[2]}"].append(match[3])
    assert Counter(entry.partition("-")[0] for entry in parts) == FAMILIES
    assert len(parts) == 246
    for entry, named in parts.items():
        assert named == [None] or None not in named, f"{entry} is both whole and in parts"


def test_every_source_has_a_rank_and_a_link_or_says_that_there_is_none(ledger: Ledger) -> None:
    for source in ledger.sources.values():
        assert 0 <= source.rank <= 4
        assert source.citation
        assert source.address.startswith("https://") or not source.address, source.id
    assert {claim.source.id for claim in ledger.claims} | {one.source for one in ledger.explanations} == set(
        ledger.sources
    )


def test_what_is_pinned_is_linked_at_its_commit(ledger: Ledger) -> None:
    for source in ledger.sources.values():
        if "/blob/" in source.address and source.id != "launcher-later":
            commit = source.address.split("/blob/")[1].split("/")[0]
            assert re.fullmatch(r"[0-9a-f]{8,40}", commit), source.address
            assert commit in source.citation or source.id == "metrics-ladder", source.id


def test_no_private_number_of_an_index_is_cited(data: bytes) -> None:
    assert not re.search(rb"\bindex id|\bid \d{8,}|derived here|\bseed\b|\bhelper\b", data)


def test_quotations_are_a_few_words(ledger: Ledger) -> None:
    assert max(len(claim.quote.split()) for claim in ledger.claims) <= 8


def test_a_quotation_of_a_printed_number_shows_its_digits(entries: list[dict[str, Any]]) -> None:
    shown = [entry for entry in entries if entry.get("quote") and entry.get("digits") in ("printed", "approximate")]
    assert len(shown) > 60
    for entry in shown:
        digits = re.match(r"-?[\d.,]+(?:e-?\d+)?", entry["value"])
        assert digits, entry["id"]
        assert digits[0] in entry["quote"], entry["id"]


def test_exact_values_are_written_out(entries: list[dict[str, Any]]) -> None:
    for entry in entries:
        if entry.get("digits") == "exact":
            assert re.fullmatch(r"[\d,]+(\.\d+)?|\d+e\d+", entry["value"]), entry["id"]


def test_every_quantity_is_known_and_every_declared_one_is_used(ledger: Ledger, data: bytes) -> None:
    declared = {entry["name"] for entry in json.loads(data)["quantities"]}
    assert not declared & set(QUANTITIES)
    assert declared <= {claim.quantity for claim in ledger.claims}


def test_days_run_forwards(ledger: Ledger) -> None:
    for claim in ledger.claims:
        assert claim.date.text
        for day in (claim.date.first, claim.date.last):
            assert re.fullmatch(r"(\d{4}-\d\d-\d\d(T[\d:]+Z)?)?", day), claim.id
        if claim.date.first and claim.date.last:
            assert claim.date.first[:10] <= claim.date.last[:10], claim.id


def test_steps_in_scopes_are_digits(ledger: Ledger) -> None:
    steps = [value for claim in ledger.claims for key, value in claim.scope if key == "step"]
    assert len(steps) > 20
    assert all(step.isdecimal() for step in steps)


def test_every_explanation_is_about_a_contradiction_that_is_there(ledger: Ledger) -> None:
    assert (
        len({(one.quantity, freeze_scope(one.scope), one.kind) for one in ledger.explanations})
        == len(ledger.explanations)
        > 25
    )
    for one in ledger.explanations:
        if one.kind != "contradiction":
            continue  # a check's: test_checks.py holds each of them against its finding
        claims = about(ledger, one.quantity, **one.scope)
        assert claims, one.quantity
        assert contradictory(claims), one.quantity


def contradictory(claims: list[Claim]) -> bool:
    values = [claim.value for claim in claims]
    return any(
        not overlap(first, second) if isinstance(first, Interval) and isinstance(second, Interval) else first != second
        for place, first in enumerate(values)
        for second in values[:place]
    )


MEETING: list[tuple[str, dict[str, str], set[str]]] = [  # what people found contradictory: the sides, as printed
    ("training.tokens", {}, {"18.0T", "18.75T"}),
    ("training.steps", {}, {"390,139", "390,251"}),
    ("hardware.gpus", {}, {"792", "704"}),
    ("training.flops", {}, {"5e24", "about 2.70e24", "2.7e24"}),
    ("transport.sender_factor", {}, {"1.10", "1.15"}),
    ("optimizer.muonh_learning_rate", {}, {"0.003291", "0.003290470163258143"}),
    ("optimizer.schedule", {}, {"linear", "under cosine decay"}),
    ("forecast.loss", {}, {"2.039", "2.070"}),
    ("ladder.stop_fraction", {"rung": "d2048"}, {"81%", "80.03%", "80.05%", "about 80%"}),
    ("ladder.finished_rungs", {}, {"4", "3"}),
    ("data.raw_tokens", {}, {"25.6T", "25.25T"}),
    ("data.raw_sources", {}, {"292", "152", "293"}),
    ("data.kmeans_clusters", {}, {"5,000", "500"}),
    ("data.shuffle_window_blocks", {}, {"8", "512"}),
    ("data.topic_tokens", {"topic": "c04"}, {"3.38T", "0.1741T"}),
    ("mixture.simulated_epoching", {}, {"yes", "no"}),
    ("optimizer.gate_router_weight_decay", {}, {"0.02", "0.03"}),
    ("transport.expert_chunks", {}, {"1", "2"}),
]


@pytest.mark.parametrize(("quantity", "scope", "sides"), MEETING, ids=[row[0] for row in MEETING])
def test_what_people_found_contradictory_meets(
    ledger: Ledger, quantity: str, scope: dict[str, str], sides: set[str]
) -> None:
    claims = about(ledger, quantity, **scope)
    assert sides <= {claim.printed for claim in claims}
    assert contradictory(claims)


@pytest.mark.parametrize("chain", ["issue", "blog"])
def test_each_chain_of_the_data_adds_up(ledger: Ledger, chain: str) -> None:
    def middle(part: str) -> float:
        return float(sum(number(one).middle for one in about(ledger, f"data.{part}_tokens", chain=chain)))

    removed = middle("removed") + middle("deduplicated") + middle("decontaminated")
    assert removed > 2e12
    assert middle("raw") - removed == pytest.approx(middle("kept"), rel=1e-3)


def test_the_gate_before_the_launch_does_not_speak_of_the_run(ledger: Ledger) -> None:
    own: Scope = freeze_scope({"run": "MHEP-118"})
    gate = {claim.quantity: claim.printed for claim in ledger.claims if claim.scope == own}
    assert gate["transport.sender_factor"] == "1.10"
    assert gate["routing.drop_fraction"] == "19.33%"


def test_the_published_lineage_is_that_of_the_table(ledger: Ledger) -> None:
    starts = {claim.scope[0][1]: number(claim).low for claim in ledger.claims if claim.quantity == "run.segment_start"}
    ends = {claim.scope[0][1]: number(claim).low for claim in ledger.claims if claim.quantity == "run.segment_end"}
    segments = load_record().hero_lineage
    assert starts == {segment.run_id: segment.start_step for segment in segments}
    assert ends == {segment.run_id: segment.end_step_exclusive for segment in segments[:-1]}
