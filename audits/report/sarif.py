"""The report's document → SARIF 2.1.0, for code scanners' viewers and for CI.

A rule is a kind of finding. A result points at its suspects where they stand in the record's files, relative to RECORD,
the record's folder. What the record explains, and what is only noted, has the level note.
Source: OASIS, Static Analysis Results Interchange Format 2.1.0, errata 01.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from audits.report.document import Json
from repro import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
CLAIMS = "claims.json"
LEVELS = {"error": "error", "warning": "warning", "explained": "note", "note": "note"}
RULES = {  # kind of finding: what it is, in a sentence
    "contradiction": "Two published figures cannot both be right, or one contradicts what follows from others.",
    "definition": "The same words stand for two things.",
    "drift": "It was so and changed, or it was planned and came otherwise.",
    "access": "An outsider cannot have it.",
    "missing": "Nobody says.",
    "behaviour": "The configuration says one thing, what runs does another.",
    "comparability": "Two figures that are set side by side differ in more than they say.",
    "provenance": "It cannot be traced to where it is said to be from.",
}
STATES = {"new": "new", "changed": "updated", "unchanged": "unchanged"}


def as_sarif(document: Json, claims: bytes | None) -> Json:
    """One run with a result a finding. `claims` are the bytes of claims.json, whose lines results point at."""
    lines = _lines_of_claims(claims or b"")
    kinds = list(RULES)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "marin-repro audit",
                        "semanticVersion": __version__,
                        "rules": [
                            {"id": kind, "shortDescription": {"text": RULES[kind]}, "properties": {"tags": ["audit"]}}
                            for kind in kinds
                        ],
                    }
                },
                "originalUriBaseIds": {"RECORD": {"description": {"text": "the folder of the audited record"}}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, kinds, lines) for finding in document["findings"]],
                "properties": {"record": document["record"], "snapshot": document["generated_from"]["snapshot"]},
            }
        ],
    }


def _result(finding: Json, kinds: list[str], lines: Mapping[str, int]) -> Json:
    result = {
        "ruleId": finding["kind"],
        "ruleIndex": kinds.index(finding["kind"]),
        "level": LEVELS[finding["severity"]],
        "message": {"text": f"{finding['title']}. {finding['explanation']} {finding['advice']}".strip()},
        "locations": _locations(finding, lines),
        "partialFingerprints": {"findingId/v1": finding["id"]},
        "properties": {key: finding[key] for key in ("severity", "verdict", "quantity", "scope", "group")},
    }
    if finding["suppressed"] is not None:
        result["suppressions"] = [{"kind": "external", "justification": finding["suppressed"]["reason"]}]
    if finding["status"] is not None:
        result["baselineState"] = STATES[finding["status"]]
    return result


def _locations(finding: Json, lines: Mapping[str, int]) -> list[Json]:
    """Each suspect's place: the line of a claim, else the file of the record that its id names."""
    places: dict[tuple[str, int], str] = {}
    for suspect in finding["suspects"]:
        name = suspect.partition(":")[0]
        if suspect in lines:
            places.setdefault((CLAIMS, lines[suspect]), suspect)
        elif name.endswith((".csv", ".json")):
            places.setdefault((name, 0), suspect)
        elif name in ("artifact", "training_data", "forecast"):
            places.setdefault(("record.toml", 0), suspect)
    return [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": file, "uriBaseId": "RECORD"},
                **({"region": {"startLine": line}} if line else {}),
            },
            "message": {"text": suspect},
        }
        for (file, line), suspect in (places or {("record.toml", 0): finding["quantity"]}).items()
    ]


def _lines_of_claims(data: bytes) -> dict[str, int]:
    """The line, from 1, on which each claim's id stands in claims.json."""
    text = data.decode(errors="replace")
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        place = line.find('"id"')
        while place >= 0:
            rest = line[place + 4 :].lstrip().removeprefix(":").lstrip()
            try:
                value: Any = json.JSONDecoder().raw_decode(rest)[0]
            except ValueError:
                value = None
            if isinstance(value, str):
                found[value] = number  # a source may have a claim's id; claims stand below the sources
            place = line.find('"id"', place + 4)
    return found
