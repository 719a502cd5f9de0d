"""The report for machines: its schema, SARIF, JUnit, RO-Crate; what two audits differ in; replies and suppressions."""

from __future__ import annotations

import json
import shutil
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from audits.annotations import Annotations, read_annotations
from audits.check import Audit
from audits.report.baseline import compare_with, read_baseline
from audits.report.crate import write_crate
from audits.report.document import document
from audits.report.junit import as_junit
from audits.report.render import as_html, as_markdown
from audits.report.sarif import as_sarif
from repro.cli.audit import audit_of
from repro.errors import RecordError, UsageError
from repro.files import canonical_json
from repro.record.facts import Record, load_record
from repro.record.lock import check_lock, read_lock, write_lock
from tests.audits.conftest import AuditClaims, claim

Json = dict[str, Any]
SARIF = json.loads((Path(__file__).parents[1] / "data" / "sarif-schema-2.1.0.json").read_text())
SCHEMA = json.loads(resources.files("audits.report").joinpath("report.schema.json").read_bytes())
TODAY = date(2026, 10, 8)


@pytest.fixture(scope="module")
def record() -> Record:
    return load_record()


@pytest.fixture(scope="module")
def report(record: Record) -> Json:
    return document(audit_of(record))


def as_read_back(report: Json) -> Json:
    content: Json = json.loads(canonical_json(report))
    return content


GPUS = (claim("a", "hardware.gpus", "704", digits="exact"), claim("b", "hardware.gpus", "792", digits="exact"))


@pytest.fixture
def small(audit_claims: AuditClaims) -> Audit:
    return audit_claims(*GPUS)


# Schema


def test_the_report_of_the_built_in_record_keeps_its_schema(report: Json) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(as_read_back(report))


@pytest.mark.parametrize("broken", ["severity", "verdict", "id", "suspects"])
def test_the_schema_refuses_a_finding_that_lacks_a_field(report: Json, broken: str) -> None:
    whole = as_read_back(report)
    del whole["findings"][0][broken]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(whole)


def test_a_compared_and_annotated_report_keeps_the_schema(small: Audit, tmp_path: Path) -> None:
    (tmp_path / "annotations.toml").write_text(ANNOTATED)
    annotated = document(small, None, read_annotations(tmp_path), TODAY)
    jsonschema.Draft202012Validator(SCHEMA).validate(as_read_back(compare_with(annotated, document(small))))


# SARIF


def test_sarif_is_valid_by_the_official_schema(report: Json, record: Record) -> None:
    jsonschema.Draft4Validator(SARIF).validate(as_sarif(report, record.claims))


def test_sarif_points_at_the_lines_of_the_claims(report: Json, record: Record) -> None:
    assert record.claims is not None
    lines = record.claims.decode().splitlines()
    results = as_sarif(report, record.claims)["runs"][0]["results"]
    assert len(results) == len(report["findings"])
    pointed = 0
    for result in results:
        assert result["locations"]
        for location in result["locations"]:
            place = location["physicalLocation"]
            assert (record.folder / place["artifactLocation"]["uri"]).is_file()
            if place["artifactLocation"]["uri"] == "claims.json":
                line = lines[place["region"]["startLine"] - 1]
                assert json.dumps(location["message"]["text"], ensure_ascii=False) in line
                pointed += 1
    assert pointed > 150


def test_sarif_carries_baseline_and_suppression(small: Audit, tmp_path: Path) -> None:
    (tmp_path / "annotations.toml").write_text(ANNOTATED)
    annotated = compare_with(document(small, None, read_annotations(tmp_path), TODAY), document(small))
    sarif = as_sarif(annotated, None)
    jsonschema.Draft4Validator(SARIF).validate(sarif)
    (result,) = sarif["runs"][0]["results"]
    assert result["baselineState"] == "unchanged"
    assert result["suppressions"] == [{"kind": "external", "justification": "Told in the next report."}]


# JUnit


def test_junit_counts_its_cases(report: Json) -> None:
    suite = ElementTree.fromstring(as_junit(report))
    cases = suite.findall("testcase")
    for attribute, tag in (("failures", "failure"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
    assert int(suite.attrib["tests"]) == len(cases) == len(report["findings"]) + len(report["unverifiable"])
    assert int(suite.attrib["failures"]) == report["summary"]["error"] + report["summary"]["warning"] > 0


# RO-Crate


def test_the_crate_holds_report_and_record_and_says_how_one_came_of_the_other(
    report: Json, record: Record, tmp_path: Path
) -> None:
    texts = {"report.json": canonical_json(report), "report.md": as_markdown(report)}
    metadata = write_crate(tmp_path / "crate", report, texts, record)
    entities = {one["@id"]: one for one in json.loads(metadata.read_text())["@graph"]}
    for part in entities["./"]["hasPart"]:
        assert (metadata.parent / part["@id"]).is_file()
    action = entities["#audit"]
    assert {one["@id"] for one in action["result"]} == set(texts)
    assert {one["@id"] for one in action["object"]} >= {"record/claims.json", "record/record.lock.json"}
    assert entities["record/claims.json"]["sha256"] == report["generated_from"]["files"]["claims.json"]
    again = load_record(metadata.parent / "record")
    assert again.lock is not None
    assert canonical_json(document(audit_of(again))) == texts["report.json"]


def test_two_crates_of_one_audit_are_equal_and_the_later_replaces_the_earlier(
    small: Audit, record: Record, tmp_path: Path
) -> None:
    report = document(small)
    first = write_crate(tmp_path / "crate", report, {"report.json": canonical_json(report)}, record).read_bytes()
    (tmp_path / "crate" / "left-over").write_text("x")
    assert (
        write_crate(tmp_path / "crate", report, {"report.json": canonical_json(report)}, record).read_bytes() == first
    )
    assert not (tmp_path / "crate" / "left-over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["crate"]


# Baseline


def test_a_baseline_tells_new_changed_and_fixed(audit_claims: AuditClaims) -> None:
    steps = (claim("c", "training.steps", "100", digits="exact"), claim("d", "training.steps", "200", digits="exact"))
    racks = (claim("e", "hardware.racks", "1", digits="exact"), claim("f", "hardware.racks", "2", digits="exact"))
    other = claim("b", "hardware.gpus", "700", digits="exact")
    before = document(audit_claims(*GPUS, *steps))
    after = compare_with(document(audit_claims(GPUS[0], other, *racks)), before)
    assert after["baseline"]["new"] == ["hardware.racks"]
    assert after["baseline"]["changed"] == ["hardware.gpus"]
    assert [one["id"] for one in after["baseline"]["fixed"]] == ["training.steps"]
    assert {one["id"]: one["status"] for one in after["findings"]} == {
        "hardware.gpus": "changed",
        "hardware.racks": "new",
    }


def test_an_audit_against_itself_is_unchanged(report: Json) -> None:
    baseline = compare_with(report, as_read_back(report))["baseline"]
    assert not baseline["new"]
    assert not baseline["changed"]
    assert not baseline["fixed"]
    assert len(baseline["unchanged"]) == len(report["findings"])


@pytest.mark.parametrize("text", ["[]", "{}", '{"findings": [{}], "record": "x"}', '{"findings": 3}'])
def test_a_baseline_that_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="no report of an audit"):
        read_baseline(path)


# Annotations

ANNOTATED = """
[[reply]]
finding = "hardware.gpus"
by = "the run's <b>maintainers</b>"
date = 2026-10-08
text = "Eight GPUs of each rack were spares."
address = "https://example.org/comment"

[[suppression]]
finding = "hardware.gpus"
reason = "Told in the next report."
expires = 2026-12-01
"""


def test_a_suppressed_finding_is_shown_and_not_counted(small: Audit, tmp_path: Path) -> None:
    (tmp_path / "annotations.toml").write_text(ANNOTATED)
    report = document(small, None, read_annotations(tmp_path), TODAY)
    (finding,) = report["findings"]
    assert finding["severity"] == "error"
    assert report["summary"] == {"error": 0, "warning": 0, "explained": 0, "note": 0}
    assert report["annotations"] == {"suppressed": 1, "expired": [], "astray": []}
    for page in (as_html(report), as_markdown(report)):
        assert "Told in the next report." in page
        assert "Eight GPUs of each rack were spares." in page
        assert "<b>maintainers</b>" not in page


def test_a_suppression_that_has_expired_counts_no_more_and_is_reported(small: Audit, tmp_path: Path) -> None:
    (tmp_path / "annotations.toml").write_text(ANNOTATED)
    report = document(small, None, read_annotations(tmp_path), date(2026, 12, 1))
    assert report["summary"]["error"] == 1
    assert report["annotations"]["expired"][0]["finding"] == "hardware.gpus"
    assert "expired on 2026-12-01" in as_html(report)
    assert "expired on 2026-12-01" in as_markdown(report)


def test_an_annotation_of_no_finding_is_reported(small: Audit, tmp_path: Path) -> None:
    (tmp_path / "annotations.toml").write_text(ANNOTATED.replace("hardware.gpus", "hardware.gpu"))
    report = document(small, None, read_annotations(tmp_path), TODAY)
    assert report["annotations"]["astray"] == ["hardware.gpu"]


def test_a_folder_without_annotations_has_none(tmp_path: Path) -> None:
    assert read_annotations(tmp_path) == Annotations()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("reason", "reasons", r"\[\[suppression\]\] number 1"),
        ("2026-12-01", '"soon"', r"\[\[suppression\]\] number 1, expires"),
        ("by = ", "by ", "not TOML"),
        ("Told in the next report.", "", "reason"),
        ("Told in the next report.", "a\\u202eb", "a reader can see"),
    ],
)
def test_a_malformed_annotation_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    (tmp_path / "annotations.toml").write_text(ANNOTATED.replace(old, new))
    with pytest.raises(RecordError, match=words):
        read_annotations(tmp_path)


def test_no_lock_covers_annotations(tmp_path: Path) -> None:
    (tmp_path / "record.toml").write_text('[run]\nname = "a"\ntitle = "A"\nsnapshot = 2026-01-01\n')
    write_lock(tmp_path)
    (tmp_path / "annotations.toml").write_text(ANNOTATED)
    lock = read_lock(tmp_path)
    assert lock is not None
    assert set(check_lock(tmp_path, lock)) == {"record.toml"}


# Ids, groups, verdicts


def test_every_finding_has_an_id_of_its_own_and_a_group_that_is_there(report: Json) -> None:
    ids = [one["id"] for one in report["findings"]]
    assert len(ids) == len(set(ids))
    assert {one["group"] for one in report["findings"]} <= set(ids)


def test_what_follows_from_a_claim_is_grouped_with_the_finding_about_it(report: Json) -> None:
    groups = {one["id"]: one["group"] for one in report["findings"]}
    assert groups["optimizer.muonh_learning_rate"] == "training.steps"
    assert groups["training.flops#definition"] == "training.flops"


def test_verdicts_go_with_severities(report: Json) -> None:
    for one in report["findings"]:
        if one["severity"] == "error":
            assert one["verdict"] in ("inconsistent", "inconclusive"), one["id"]
        if one["severity"] == "explained":
            assert one["verdict"] == "explained", one["id"]
        if one["kind"] == "access" and one["severity"] == "note":
            assert one["verdict"] == "unverifiable", one["id"]


def test_coverage_adds_up(report: Json) -> None:
    coverage = report["coverage"]
    assert coverage["numbers"] + coverage["names"] == coverage["claims"] == len(report["claims"])
    assert coverage["share"] == pytest.approx(1 - len(coverage["unchecked"]) / coverage["claims"])
    assert coverage["share"] > 0.8


# What a reader of the page finds beside the findings


def test_the_page_sets_values_side_by_side_and_tells_lineage_availability_and_how_to_repeat_it(report: Json) -> None:
    page = as_html(report)
    assert len(report["lineage"]) > 5
    assert all(one["run"] in page for one in report["lineage"])
    assert {one["expectation"] for one in report["artifacts"]} == {"available", "forbidden", "gated"}
    assert "marin-repro audit --record marin-535b --out audit" in page
    steps = page[page.index('<h2 id="quantities">') :]
    steps = steps[steps.index("<li><b>optimizer steps</b>:") :].split("</li>")[0]
    assert "390,139 steps" in steps
    assert "390,251 steps" in steps
    assert "Finding" in steps


def test_the_crate_holds_the_annotations_that_its_report_heeds(record: Record, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(record.folder, tmp_path / "record"))
    (folder / "annotations.toml").write_text(ANNOTATED)
    annotated = load_record(folder)
    report = document(audit_of(annotated), None, read_annotations(folder), TODAY)
    metadata = write_crate(tmp_path / "crate", report, {"report.json": canonical_json(report)}, annotated)
    again = load_record(metadata.parent / "record")
    assert canonical_json(document(audit_of(again), None, read_annotations(again.folder), TODAY)) == canonical_json(
        report
    )
    assert report["annotations"]["suppressed"] == 1
