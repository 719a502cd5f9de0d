"""The one document that every form of the report shows: an audit as plain JSON values, equal for equal records.

It holds no time, no duration and no path, so that two audits of one record are equal to the byte.
"""

from __future__ import annotations

from typing import Any

from audits.check import Audit
from audits.claims import SOURCE_KINDS, Claim, Source
from audits.findings import SEVERITIES, Finding, Value
from audits.intervals import Interval
from audits.quantities import Quantity
from audits.relations import Derived

Json = dict[str, Any]


def document(audit: Audit, rerun: Json | None = None) -> Json:
    """The contract's audit object; under `claims` every claim with its interval and source, `rerun` as it was made."""
    record = audit.record
    return {
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
        },
        "findings": [_finding(finding, audit) for finding in audit.findings],
        "summary": {
            severity: sum(finding.severity == severity for finding in audit.findings) for severity in SEVERITIES
        },
        "unverifiable": [
            {"subject": one.subject, "quantity": one.quantity, "reason": one.reason} for one in audit.unverifiable
        ],
        "rerun": rerun,
        "claims": [_claim(claim, audit) for claim in audit.ledger.claims],
    }


def link(address: str) -> str:
    """The address, where it is one that a browser may be sent to; else empty."""
    whole = address.isprintable() and not any(letter.isspace() or letter in '<>"' for letter in address)
    return address if whole and address.startswith(("https://", "http://")) else ""


def _finding(finding: Finding, audit: Audit) -> Json:
    explanation = finding.explanation
    return {
        "id": finding.id,
        "severity": finding.severity,
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
    }


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
