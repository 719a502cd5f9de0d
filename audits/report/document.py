"""The one document that every form of the report shows: an audit as plain JSON values, equal for equal records.

It holds no time, no duration and no path, so that two audits of one record are equal to the byte.
"""

from __future__ import annotations

from datetime import date
from typing import Any

from audits.annotations import Annotations
from audits.check import Audit
from audits.claims import SOURCE_KINDS, Claim, Source
from audits.findings import SEVERITIES, Finding, Value, groups
from audits.intervals import Interval
from audits.quantities import Quantity
from audits.relations import Derived

Json = dict[str, Any]
VERSION = 2  # of the document; report.schema.json beside this file is its schema


def document(
    audit: Audit, rerun: Json | None = None, annotations: Annotations | None = None, today: date | None = None
) -> Json:
    """The contract's audit object; under `claims` every claim with its interval and source, `rerun` as it was made.

    `today` is the day on which suppressions are judged; without annotations nothing depends on it.
    """
    record = audit.record
    notes, day = annotations or Annotations(), today or record.run.snapshot
    findings = [_finding(finding, audit, notes, day) for finding in audit.findings]
    for finding, group in zip(findings, groups(audit.findings), strict=True):
        finding["group"] = group
    counted = [one for one in findings if one["suppressed"] is None]
    return {
        "version": VERSION,
        "run": record.run.title,
        "record": record.run.name,
        "generated_from": {
            "issue": link(record.run.issue),
            "commit": record.run.commit,
            "snapshot": record.run.snapshot.isoformat(),
            "files": {name: locked.sha256 for name, locked in sorted((record.lock or {}).items())},
            "claims": len(audit.ledger.claims),
            "relations_checked": audit.relations_checked,
            "scopes_checked": audit.scopes_checked,
            "checks": audit.checks,
        },
        "coverage": _coverage(audit),
        "findings": findings,
        "summary": {severity: sum(one["severity"] == severity for one in counted) for severity in SEVERITIES},
        "annotations": {
            "suppressed": len(findings) - len(counted),
            "expired": [
                {"finding": one.finding, "reason": one.reason, "expires": one.expires.isoformat()}
                for one in notes.expired(day)
            ],
            "astray": list(notes.astray([one["id"] for one in findings])),
        },
        "baseline": None,
        "unverifiable": [
            {"subject": one.subject, "quantity": one.quantity, "reason": one.reason} for one in audit.unverifiable
        ],
        "lineage": [
            {
                "run": one.run_id,
                "from_step": one.start_step,
                "until_step": one.end_step_exclusive,
                "state": one.state,
                "why_started": one.why_started,
                "why_ended": one.why_ended,
            }
            for one in record.hero_lineage
        ],
        "artifacts": [
            {
                "id": one.id,
                "role": one.role,
                "kind": one.kind,
                "address": link(one.url),
                "pin": one.pin,
                "expectation": one.expectation,
                "note": one.note,
            }
            for one in record.artifacts
        ],
        "rerun": rerun,
        "claims": [_claim(claim, audit) for claim in audit.ledger.claims],
    }


def link(address: str) -> str:
    """The address, where it is one that a browser may be sent to; else empty."""
    whole = address.isprintable() and not any(letter.isspace() or letter in '<>"' for letter in address)
    return address if whole and address.startswith(("https://", "http://")) else ""


def _coverage(audit: Audit) -> Json:
    """How much of the record was held against anything, and the list of what was not."""
    coverage = audit.coverage
    return {
        "claims": coverage.claims,
        "numbers": coverage.numbers,
        "names": coverage.names,
        "table_figures": coverage.table_figures,
        "compared": len(coverage.compared),
        "related": len(coverage.related),
        "looked_at": len(coverage.looked_at),
        "share": coverage.share,
        "unchecked": list(coverage.unchecked),
    }


def _finding(finding: Finding, audit: Audit, annotations: Annotations, today: date) -> Json:
    explanation = finding.explanation
    suppression = annotations.suppression_of(finding.id, today)
    return {
        "id": finding.id,
        "severity": finding.severity,
        "verdict": finding.verdict,
        "kind": finding.kind,
        "quantity": finding.quantity.name,
        "scope": dict(finding.scope),
        "title": finding.title,
        "claims": [claim.id for value in finding.values for claim in value.published],
        "values": [_value(value, finding, audit) for value in finding.values],
        "relative_difference": finding.difference,
        "relation": next((one.relation for one in finding.derived), None),
        "explanation": finding.text,
        "explained_by": _source(audit.ledger.sources[explanation.source]) if explanation else None,
        "advice": finding.advice,
        "suspects": list(finding.suspects),
        "replies": [_reply(one.by, one.date, one.text, one.address) for one in annotations.replies_to(finding.id)],
        "suppressed": {"reason": suppression.reason, "expires": suppression.expires.isoformat()}
        if suppression
        else None,
        "status": None,
    }


def _reply(by: str, day: date, text: str, address: str) -> Json:
    return {"by": by, "date": day.isoformat(), "text": text, "address": link(address)}


def _value(value: Value, finding: Finding, audit: Audit) -> Json:
    derived = [one for one in value.statements if isinstance(one, Derived)]
    return {
        "printed": value.best.printed,
        "unit": _unit(finding.quantity),
        "reference": value.reference,
        "note": value.why,
        **_ends(value.best.value),
        "claims": [_claim(claim, audit) for claim in value.published],
        "derived": [
            {
                "value": one.printed,
                "convention": one.convention,
                "arithmetic": one.arithmetic,
                "relation": one.relation,
                "source": one.source,
                "inputs": list(one.inputs),
            }
            for one in derived
        ],
    }


def _claim(claim: Claim, audit: Audit) -> Json:
    quantity = audit.ledger.quantities[claim.quantity]
    return {
        "id": claim.id,
        "quantity": claim.quantity,
        "label": quantity.label,
        "scope": dict(claim.scope),
        "convention": claim.convention,
        "printed": claim.printed,
        "unit": _unit(quantity),
        "digits": claim.digits,
        **_ends(claim.value),
        "quote": claim.quote,
        "place": claim.place,
        "date": claim.date.text,
        "note": claim.note,
        "source": _source(claim.source),
    }


def _unit(quantity: Quantity) -> str:
    """The unit as a reader is shown it; ratios, counts and names have none."""
    return "" if quantity.unit in ("ratio", "count", "name") else quantity.unit


def _source(source: Source) -> Json:
    rank = SOURCE_KINDS[source.kind]
    return {"kind": source.kind, "rank": rank, "citation": source.citation, "address": link(source.address)}


def _ends(value: Interval | str) -> Json:
    """What the digits allow, as numbers of JSON: an integer where it is one, else float64."""
    if isinstance(value, str):
        return {"low": None, "high": None}
    return {
        name: end.numerator if end.denominator == 1 else float(end)
        for name, end in (("low", value.low), ("high", value.high))
    }
