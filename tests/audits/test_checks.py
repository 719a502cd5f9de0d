"""What each check finds, and that it stays silent where nothing is amiss."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from audits.check import Audit, audit_record
from audits.checks import CHECKS, observations
from audits.checks.observation import View
from audits.claims import freeze_scope, read_ledger
from audits.derive import Pool
from audits.findings import Finding
from repro.record.facts import Record, load_record
from tests.audits.conftest import AuditClaims, claim


def named(id: str, quantity: str, name: str, **more: Any) -> dict[str, Any]:
    return claim(id, quantity, name=name, **more)


def exactly(id: str, quantity: str, value: str, **more: Any) -> dict[str, Any]:
    return claim(id, quantity, value, digits="exact", **more)


def seen(audit: Audit) -> list[Finding]:
    return [one for one in audit.findings if one.observation is not None]


def only(audit: Audit) -> Finding:
    (found,) = seen(audit)
    return found


STUDY = {"study": "small"}

# A record that shows it, the finding's id and severity, and the same record put right
ROWS: list[tuple[str, list[dict[str, Any]], str, str, list[dict[str, Any]]]] = [
    (
        "something that nobody outside can have",
        [named("a", "access.artifacts", "in a private bucket")],
        "access.artifacts#access",
        "note",
        [named("a", "access.artifacts", "public")],
    ),
    (
        "an input that is to be deleted",
        [
            named("gone", "data.store_to_be_deleted", "yes", scope={"store": "pond"}),
            named("read", "data.store", "pond", scope={"rung": "small"}),
        ],
        "data.store_to_be_deleted@store=pond#provenance",
        "warning",
        [
            named("gone", "data.store_to_be_deleted", "yes", scope={"store": "lake"}),
            named("read", "data.store", "pond", scope={"rung": "small"}),
        ],
    ),
    (
        "a field that is empty",
        [named("a", "run.wandb_commit", "null")],
        "run.wandb_commit#missing",
        "warning",
        [named("a", "run.wandb_commit", "0123abc")],
    ),
    (
        "weights without a licence",
        [named("a", "licence.code", "Apache-2.0"), named("b", "licence.data", "ODC-By")],
        "licence.weights#missing",
        "warning",
        [named("a", "licence.code", "MIT"), named("b", "licence.data", "ODC-By"), named("c", "licence.weights", "MIT")],
    ),
    (
        "two ways of counting",
        [
            claim("a", "training.flops", "2.7e24"),
            claim("b", "training.flops", "2.6e24", convention="without the LM head"),
        ],
        "training.flops#definition",
        "note",
        [
            claim("a", "training.flops", "2.7e24"),
            claim("b", "training.flops", "2.7e24", convention="without the LM head"),
        ],
    ),
    (
        "a figure without the run that it was measured on",
        [
            claim("a", "routing.drop_fraction", "3%", scope={"context": "4K"}),
            claim("b", "routing.drop_fraction", "3.1%", scope={"run": "large"}, source="config"),
            claim("c", "routing.drop_fraction", "19.3%", scope={"run": "small"}, source="config"),
        ],
        "routing.drop_fraction@context=4K#definition",
        "note",
        [
            claim("a", "routing.drop_fraction", "3%", scope={"context": "4K"}),
            claim("b", "routing.drop_fraction", "3.1%", scope={"run": "large"}, source="config"),
            claim("c", "routing.drop_fraction", "19.3%", scope={"run": "small", "context": "64K"}, source="config"),
        ],
    ),
    (
        "a study whose figures the run has not",
        [
            claim("run", "routing.drop_fraction", "9.1e-5", scope={"segment": "late"}),
            claim("short", "routing.drop_fraction", "1.86e-4", scope={**STUDY, "context": "4K"}),
            claim("long", "routing.drop_fraction", "8.3e-4", scope={**STUDY, "context": "8K"}),
        ],
        "routing.drop_fraction@segment=late#comparability",
        "warning",
        [
            claim("run", "routing.drop_fraction", "9.1e-5", scope={"segment": "late"}),
            claim("short", "routing.drop_fraction", "9.1e-5", scope={**STUDY, "context": "4K"}),
            claim("long", "routing.drop_fraction", "8.3e-4", scope={**STUDY, "context": "8K"}),
        ],
    ),
    (
        "sides that differ before the treatment",
        [claim("a", "study.difference_before_treatment", "-0.6%", scope=STUDY)],
        "study.difference_before_treatment@study=small#comparability",
        "warning",
        [claim("a", "study.difference_before_treatment", "0.0%", scope=STUDY)],
    ),
    (
        "means over unequal batches",
        [
            named("how", "evaluation.bpb_average", "over batches"),
            exactly("a", "evaluation.batch_size", "64", scope={"rung": "small"}),
            exactly("b", "evaluation.batch_size", "704"),
        ],
        "evaluation.batch_size#comparability",
        "warning",
        [
            named("how", "evaluation.bpb_average", "over bytes"),
            exactly("a", "evaluation.batch_size", "64", scope={"rung": "small"}),
            exactly("b", "evaluation.batch_size", "704"),
        ],
    ),
    (
        "a study's horizon beside the run's",
        [claim("run", "training.tokens", "18.0T"), claim("study", "training.tokens", "18.7T", scope=STUDY)],
        "study.horizon@study=small#comparability",
        "warning",
        [claim("run", "training.tokens", "18.0T"), claim("study", "training.tokens", "1.8T", scope=STUDY)],
    ),
    (
        "worse in words and better in numbers",
        [named("a", "mixture.new_in_simulation", "worse"), claim("b", "mixture.compute_gain", "1.2", scope=STUDY)],
        "mixture.new_in_simulation#comparability",
        "warning",
        [named("a", "mixture.new_in_simulation", "better"), claim("b", "mixture.compute_gain", "1.2", scope=STUDY)],
    ),
    (
        "checkpoints of two layouts",
        [
            claim("n", "parameters.total", "535B"),
            claim("a", "checkpoint.bytes", "5.36T", scope={"step": "100"}),
            claim("b", "checkpoint.bytes", "4.29T", scope={"step": "200"}),
        ],
        "checkpoint.bytes#drift",
        "note",
        [
            claim("n", "parameters.total", "535B"),
            claim("a", "checkpoint.bytes", "5.36T", scope={"step": "100"}),
            claim("b", "checkpoint.bytes", "5.37T", scope={"step": "200"}),
        ],
    ),
    (
        "steps that were trained twice",
        [
            exactly("batch", "training.batch_size", "100"),
            exactly("length", "shape.sequence_length", "10"),
            exactly("a", "run.replay_first_step", "11", scope={"replay": "1"}),
            exactly("b", "run.replay_last_step", "20", scope={"replay": "1"}),
        ],
        "progress.executed_tokens#drift",
        "note",
        [exactly("batch", "training.batch_size", "100"), exactly("length", "shape.sequence_length", "10")],
    ),
]


@pytest.mark.parametrize(("what", "claims", "id", "severity", "right"), ROWS, ids=[row[0] for row in ROWS])
def test_a_check_finds_what_misleads_and_nothing_where_it_is_put_right(
    audit_claims: AuditClaims,
    what: str,
    claims: list[dict[str, Any]],
    id: str,
    severity: str,
    right: list[dict[str, Any]],
) -> None:
    found = only(audit_claims(*claims))
    assert (found.id, found.severity) == (id, severity)
    assert {one["id"] for one in claims if one["quantity"] == found.quantity.name} <= set(found.suspects)
    assert found.advice.startswith("What would settle it: ")
    assert not seen(audit_claims(*right))


def test_trained_twice_counts_both_ends(audit_claims: AuditClaims) -> None:
    rows = next(claims for what, claims, *_ in ROWS if what == "steps that were trained twice")
    assert (
        "10 steps replayed and 0 discarded, of 1,000 tokens each: 10,000 tokens"
        in only(audit_claims(*rows)).derived[0].arithmetic
    )


def test_a_check_that_the_record_explains_is_explained(audit_claims: AuditClaims) -> None:
    why = {
        "quantity": "run.commit_pushed",
        "kind": "access",
        "degree": "full",
        "text": "The branch was private.",
        "source": "issue",
    }
    rows = (named("a", "run.commit_pushed", "no"),)
    assert only(audit_claims(*rows)).severity == "note"
    assert only(audit_claims(*rows, explanations=(why,))).severity == "explained"
    other = {**why, "kind": "missing"}
    assert only(audit_claims(*rows, explanations=(other,))).severity == "note"


# The built-in record


@pytest.fixture(scope="module")
def built_in() -> tuple[Record, Audit]:
    record = load_record()
    assert record.claims is not None
    return record, audit_record(record, read_ledger(record.claims))


def by_id(audit: Audit) -> dict[str, Finding]:
    found = {one.id: one for one in audit.findings}
    assert len(found) == len(audit.findings), "two findings have one id"
    return found


def test_every_explanation_of_a_check_is_about_a_finding_that_is_there(built_in: tuple[Record, Audit]) -> None:
    _, audit = built_in
    found = {(one.quantity.name, one.scope, one.kind) for one in audit.findings}
    checks = [one for one in audit.ledger.explanations if one.kind != "contradiction"]
    assert len(checks) > 10
    for one in checks:
        assert (one.quantity, freeze_scope(one.scope), one.kind) in found, one


TABLES = [  # what only tables show: finding, severity, words of its arithmetic
    ("configuration.idle_fields#behaviour", "warning", "model.moe_implementation is ragged_all_to_all"),
    ("mixture.zero_quota_cells@phase=0#behaviour", "warning", "blocks of 49,152 sequences"),
    ("configuration.edited@run=hero-12d8b6f0-dee637#provenance", "warning", "ended at 58,014"),
    (
        "routing.receiver_drop_fraction@run=hero-fa4sm100-nomask-step146k#behaviour",
        "explained",
        "receiver_drop_fraction is 0",
    ),
    ("evaluation.bare_mean#definition", "note", "eval_dropless/uncheatable_eval/bpb is 0.504039"),
    ("mixture.compute_gain@study=H100 ladder#definition", "note", "0.925068 to 0.918442 bits a byte: ×1.1968"),
    ("run.planned_end#drift", "note", "170,732 of 390,251 steps are left"),
    ("context.extension_fraction@extension=first#drift", "note", "4,096 tokens at step 219,518"),
    ("context.early_cooldown_start#missing", "note", "launched 2026-08-20"),
    ("forecast.residual#comparability", "warning", "2.14481 − 2.14598 at step 218,999"),
    ("training.phase_fraction#drift", "note", "stages from steps 0, 108,000, 312,192"),
    ("progress.executed_tokens#drift", "note", "1,185 steps replayed and 1,221 discarded"),
    ("citation.comment#provenance", "warning", "comments of issue 8435"),
    ("access.artifacts#access", "note", "3 of 51 artifacts"),
]


@pytest.mark.parametrize(("id", "severity", "words"), TABLES, ids=[row[0] for row in TABLES])
def test_what_the_tables_of_the_built_in_record_show(
    built_in: tuple[Record, Audit], id: str, severity: str, words: str
) -> None:
    finding = by_id(built_in[1])[id]
    assert finding.severity == severity
    assert words in finding.derived[0].arithmetic


def test_no_check_rests_on_the_ids_of_claims(built_in: tuple[Record, Audit]) -> None:
    record, audit = built_in
    assert record.claims is not None
    content = json.loads(record.claims)
    for number, one in enumerate(content["claims"]):
        one["id"] = f"c{number}"
    renamed = audit_record(record, read_ledger(json.dumps(content).encode()))
    assert [one.id for one in seen(renamed)] == [one.id for one in seen(audit)]


def test_a_record_of_tables_alone_has_checks_that_can_be_made(built_in: tuple[Record, Audit]) -> None:
    record, _ = built_in
    audit = audit_record(replace(record, claims=None), read_ledger(b"{}"))
    assert {"configuration.idle_fields#behaviour", "access.artifacts#access"} <= set(by_id(audit))


def test_every_check_is_listed_once(built_in: tuple[Record, Audit]) -> None:
    assert len(set(CHECKS)) == len(CHECKS) == built_in[1].checks


def test_an_empty_record_has_no_observations(audit_claims: AuditClaims) -> None:
    audit = audit_claims()
    assert not observations(View(audit.record, audit.ledger, Pool(audit.ledger.quantities)))
