"""What is a contradiction, what is none, how grave it is, and what could not be checked."""

from __future__ import annotations

from typing import Any

import pytest

from audits.check import Audit
from audits.findings import Finding
from tests.audits.conftest import AuditClaims, claim


def only(audit: Audit) -> Finding:
    (finding,) = audit.findings
    return finding


TOKENS, STEPS, GPUS = "training.tokens", "training.steps", "hardware.gpus"


def test_18_0T_and_18_75T_contradict(audit_claims: AuditClaims) -> None:
    finding = only(audit_claims(claim("a", TOKENS, "18.0T"), claim("b", TOKENS, "18.75T", source="article")))
    assert finding.title == "training tokens: 18.75T against 18.0T"
    assert finding.severity == "error"
    assert finding.difference == pytest.approx(0.75 / 18)


@pytest.mark.parametrize("other", ["18.005T", "18T", "17.95T", "18005144633344"])
def test_rounding_alone_is_never_reported(audit_claims: AuditClaims, other: str) -> None:
    assert not audit_claims(claim("a", TOKENS, "18.0T"), claim("b", TOKENS, other)).findings


def test_a_number_that_a_relation_contradicts_is_found_without_a_second_claim(audit_claims: AuditClaims) -> None:
    finding = only(
        audit_claims(
            claim("racks", "hardware.racks", "11", digits="exact"),
            claim("nodes", "hardware.nodes_per_rack", "16", digits="exact"),
            claim("per-node", "hardware.gpus_per_node", "4", digits="exact"),
            claim("gpus", GPUS, "792", digits="exact", source="article"),
        )
    )
    assert finding.title == "GPUs: 792 against 704"
    assert "11, 16, 4 → 704" in finding.derived[0].arithmetic


def test_two_step_counts_say_what_each_implies(audit_claims: AuditClaims) -> None:
    finding = only(
        audit_claims(
            claim("batch", "training.batch_size", "11264", digits="exact"),
            claim("length", "shape.sequence_length", "4096", digits="exact"),
            claim("ratio", "training.tokens_per_active_parameter", "791", digits="exact"),
            claim("one", STEPS, "390139", digits="exact"),
            claim("other", STEPS, "390251", digits="exact", source="config"),
        )
    )
    assert finding.title == "optimizer steps: 390,139 against 390,251"
    assert finding.severity == "error"
    implied = " ".join(finding.implied)
    assert "22,755,976,297" in implied
    assert "22,762,509,018" in implied


def test_a_learning_rate_that_follows_from_the_other_step_count_is_a_note(audit_claims: AuditClaims) -> None:
    audit = audit_claims(
        claim("batch", "training.batch_size", "11264", digits="exact"),
        claim("length", "shape.sequence_length", "4096", digits="exact"),
        claim("width", "shape.hidden_dim", "6144", digits="exact"),
        claim("one", STEPS, "390139", digits="exact"),
        claim("other", STEPS, "390251", digits="exact", source="config"),
        claim("rate", "optimizer.muonh_learning_rate", "0.003291"),
    )
    steps, rate = audit.findings
    assert (steps.quantity.name, steps.severity) == (STEPS, "error")
    assert (rate.quantity.name, rate.severity) == ("optimizer.muonh_learning_rate", "note")
    assert "follows from one" in rate.text


def test_a_count_by_another_convention_is_a_note(audit_claims: AuditClaims) -> None:
    finding = only(
        audit_claims(
            claim("all", "parameters.total", "535477106688", digits="exact", convention="all stored arrays"),
            claim("matrices", "parameters.total", "535305388032", digits="exact", convention="matrices only"),
            claim("text", "parameters.total", "535.3B"),
        )
    )
    assert finding.severity == "note"
    assert finding.title == "total parameters: 535.3B against 535,477,106,688"
    assert "matrices only" in finding.text


def test_a_log_step_is_told_from_a_count_of_steps(audit_claims: AuditClaims) -> None:
    count = claim("a", STEPS, "11420", digits="exact", source="config")
    finding = only(audit_claims(count, claim("b", STEPS, "11419", digits="exact")))
    assert finding.severity == "note"
    assert "zero-based log step" in finding.text


DEGREES = [(None, "error"), ("partial", "warning"), ("full", "explained")]


@pytest.mark.parametrize(("degree", "severity"), DEGREES)
def test_what_the_record_explains_is_less_grave(audit_claims: AuditClaims, degree: str | None, severity: str) -> None:
    explanation = {"quantity": GPUS, "degree": degree, "text": "Two racks were spare.", "source": "issue"}
    audit = audit_claims(
        claim("a", GPUS, "704", digits="exact"),
        claim("b", GPUS, "792", digits="exact"),
        explanations=(explanation,) if degree else (),
    )
    assert only(audit).severity == severity
    assert ("Two racks were spare." in only(audit).text) == bool(degree)


def test_an_explanation_of_another_scope_explains_nothing(audit_claims: AuditClaims) -> None:
    explanation = {"quantity": GPUS, "scope": {"rung": "x"}, "degree": "full", "text": "…", "source": "issue"}
    audit = audit_claims(
        claim("a", GPUS, "704", digits="exact"), claim("b", GPUS, "792", digits="exact"), explanations=(explanation,)
    )
    assert only(audit).severity == "error"


def test_reconstructed_digits_never_make_an_error(audit_claims: AuditClaims) -> None:
    audit = audit_claims(claim("a", TOKENS, "18.0T"), claim("b", TOKENS, "18.75T", digits="reconstructed"))
    assert only(audit).severity == "warning"


def test_a_quantity_that_moves_no_headline_is_a_warning(audit_claims: AuditClaims) -> None:
    audit = audit_claims(claim("a", "optimizer.beta1", "0.90"), claim("b", "optimizer.beta1", "0.95"))
    assert only(audit).severity == "warning"


def test_numbers_of_different_scopes_are_strangers(audit_claims: AuditClaims) -> None:
    assert not audit_claims(
        claim("a", GPUS, "704", digits="exact"), claim("b", GPUS, "64", digits="exact", scope={"rung": "small"})
    ).findings


def test_one_rung_has_nothing_of_another(audit_claims: AuditClaims) -> None:
    """A batch size of the run says nothing of a rung's tokens; what is missing is said."""
    audit = audit_claims(
        claim("batch", "training.batch_size", "1024", digits="exact"),
        claim("length", "shape.sequence_length", "4096", digits="exact"),
        claim("tokens", TOKENS, "48B", scope={"rung": "small"}),
    )
    assert not audit.findings
    reasons = {one.subject: one.reason for one in audit.unverifiable}
    assert reasons["tokens"].startswith(
        "tokens = steps × tokens per step: for this scope the record gives no training.steps"
    )


def test_a_moment_of_a_run_has_the_runs_numbers(audit_claims: AuditClaims) -> None:
    audit = audit_claims(
        claim("steps", STEPS, "1000", digits="exact"),
        claim("progress", "progress.fraction", "60.0%", scope={"step": "500"}),
    )
    assert "60.0% against 0.5 to 0.501" in only(audit).title


def test_the_best_source_is_the_reference_whatever_the_order(audit_claims: AuditClaims) -> None:
    claims: list[dict[str, Any]] = [
        claim("article", TOKENS, "18.75T", source="article"),
        claim("config", TOKENS, "18.0T", source="config"),
        claim("issue", TOKENS, "18T"),
    ]
    titles = {only(audit_claims(*order)).title for order in (claims, claims[::-1], [claims[2], claims[0], claims[1]])}
    assert titles == {"training tokens: 18.75T against 18.0T"}


def test_names_are_equal_or_not(audit_claims: AuditClaims) -> None:
    audit = audit_claims(
        claim("a", "optimizer.schedule", name="linear", source="config"),
        claim("b", "optimizer.schedule", name="cosine", quote="under cosine decay"),
        claim("c", "optimizer.schedule", name="linear"),
    )
    assert only(audit).title == "learning rate schedule: “under cosine decay” against “linear”"


def test_findings_come_by_what_they_would_change(audit_claims: AuditClaims) -> None:
    audit = audit_claims(
        claim("a", "hardware.racks", "11", digits="exact"),
        claim("b", "hardware.racks", "99", digits="exact"),
        claim("c", TOKENS, "18.0T"),
        claim("d", TOKENS, "18.1T", digits="reconstructed"),
        claim("e", GPUS, "704", digits="exact"),
        claim("f", GPUS, "792", digits="exact"),
    )
    assert [one.quantity.name for one in audit.findings] == [GPUS, TOKENS, "hardware.racks"]
    assert [one.severity for one in audit.findings] == ["error", "warning", "warning"]


def test_a_claim_that_stands_alone_is_listed_with_its_reason(audit_claims: AuditClaims) -> None:
    (row,) = audit_claims(claim("lonely", "optimizer.weight_decay", "0.1")).unverifiable
    assert (row.subject, row.reason) == ("lonely", "no second source states it, and no relation speaks of it.")


def test_a_chain_that_does_not_add_up_is_found(audit_claims: AuditClaims) -> None:
    chain = {"chain": "one"}
    good = (
        claim("raw", "data.raw_tokens", "25.6T", scope=chain),
        claim("removed", "data.removed_tokens", "2.494T", scope=chain),
    )
    assert not audit_claims(*good, claim("kept", "data.kept_tokens", "23.106T", scope=chain)).findings
    assert audit_claims(*good, claim("kept", "data.kept_tokens", "23.306T", scope=chain)).findings


def test_phases_that_do_not_sum_to_the_horizon_are_found(audit_claims: AuditClaims) -> None:
    phases = [
        claim(f"phase-{number}", "training.phase_tokens", text, scope={"phase": str(number)})
        for number, text in enumerate(("15.0T", "3.75T"))
    ]
    assert not audit_claims(*phases, claim("whole", TOKENS, "18.75T")).findings
    assert only(audit_claims(*phases, claim("whole", TOKENS, "18.0T"))).derived[0].inputs == ("phase-0", "phase-1")


def test_shares_of_phases_that_do_not_sum_to_1_are_found(audit_claims: AuditClaims) -> None:
    def shares(first: str, second: str) -> Audit:
        return audit_claims(
            claim("a", "training.phase_fraction", first, scope={"phase": "0"}),
            claim("b", "training.phase_fraction", second, scope={"phase": "1"}),
        )

    assert not shares("80%", "20%").findings
    assert len(shares("80%", "25%").findings) == 2
