"""Two audits of one record held against each other: what is new since the earlier report, changed, or fixed.

A finding is the same where its id is; it has changed where its severity, its verdict or its title has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.errors import UsageError
from repro.files import parse_json, read_bounded

Json = dict[str, Any]
TOLD = ("severity", "verdict", "title")  # what is kept of a finding that is gone, beside its id


def read_baseline(path: Path) -> Json:
    """An earlier report.json. UsageError where it is none."""
    try:
        content = parse_json(read_bounded(path), path.name)
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}. Name the report.json of an earlier audit.") from error
    findings = content.get("findings") if isinstance(content, dict) else None
    whole = isinstance(findings, list) and all(
        isinstance(one, dict) and isinstance(one.get("id"), str) for one in findings
    )
    if not whole or "record" not in content:
        raise UsageError(f"--baseline {path}: is no report of an audit. Name the report.json of an earlier one.")
    return content


def compare_with(report: Json, before: Mapping[str, Any]) -> Json:
    """The report with `baseline` filled in, and each finding's `status`: new, changed or unchanged."""
    earlier = {one["id"]: one for one in before["findings"]}
    findings = [{**one, "status": _status(one, earlier)} for one in report["findings"]]
    by_status: dict[str, list[str]] = {"new": [], "changed": [], "unchanged": []}
    for one in findings:
        by_status[one["status"]].append(one["id"])
    present = {one["id"] for one in findings}
    fixed = [
        {"id": id, **{key: str(one.get(key, "")) for key in TOLD}}
        for id, one in sorted(earlier.items())
        if id not in present
    ]
    baseline = {"record": str(before["record"]), **by_status, "fixed": fixed}
    return {**report, "findings": findings, "baseline": baseline}


def _status(finding: Json, earlier: Mapping[str, Json]) -> str:
    if finding["id"] not in earlier:
        return "new"
    return "unchanged" if all(earlier[finding["id"]].get(key) == finding[key] for key in TOLD) else "changed"
