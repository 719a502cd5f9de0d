"""A run's evaluations beside the record's: a difference where both are of one definition, else what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from audits.report.render import as_html, as_markdown
from evals.compare import compare_with_record, published_evaluations
from repro import runs
from repro.cli.audit import audit_and_rerun
from repro.record.facts import Record, load_record

NAME = "eval_dropless/paloma/macro_loss"


@pytest.fixture(scope="module")
def record() -> Record:
    return load_record()


def write_run(folder: Path, fraction: float, metrics: dict[str, Any]) -> Path:
    runs.write_manifest(folder, runs.Manifest(identity={"rung": "d1024", "scale": "full"}))
    result = {"fraction": fraction, "data": {"kind": "published"}, "router_bias": "saved", "metrics": metrics}
    runs.write_evaluation(folder, "paloma", 7, result)
    return folder


def last(record: Record, **changed: Any) -> tuple[float, dict[str, Any]]:
    """The record's last macro loss of a rung, 0.25 higher, with these fields of its identity changed."""
    published = published_evaluations(record, "d1024")[-1]
    metric = published.metrics[NAME]
    entry = metric._replace(value=metric.value + 0.25).as_json()
    entry["identity"] |= changed
    return published.fraction, {NAME: entry}


def test_without_a_field_that_differs_or_is_not_known_there_is_a_difference(tmp_path: Path, record: Record) -> None:
    (row,) = compare_with_record(write_run(tmp_path, *last(record)), record)["rows"]
    assert (row["metric"], row["verdict"], row["why"]) == (NAME, "same definition", "")
    assert row["difference"] == pytest.approx(0.25)
    assert row["ours"] - row["published"] == pytest.approx(0.25)


def test_another_definition_is_said_and_no_difference_given(tmp_path: Path, record: Record) -> None:
    run = write_run(tmp_path, *last(record, context=128, data="f" * 64))
    (row,) = compare_with_record(run, record)["rows"]
    assert (row["verdict"], row["difference"]) == ("definition differs", None)
    assert "context 4096 and 128" in row["why"]
    assert "ffffffffffff…" in row["why"]


def test_what_is_not_known_of_the_record_cannot_be_compared(tmp_path: Path, record: Record) -> None:
    (row,) = compare_with_record(write_run(tmp_path, *last(record, tokenizer="a" * 64)), record)["rows"]
    assert (row["verdict"], row["difference"]) == ("cannot tell", None)
    assert row["why"] == "tokenizer not known and aaaaaaaaaaaa…"


def test_an_evaluation_at_another_fraction_is_unmatched(tmp_path: Path, record: Record) -> None:
    _, metrics = last(record)
    found = compare_with_record(write_run(tmp_path, 0.0123, metrics), record)
    assert found["rows"] == []
    assert found["unmatched"][0]["why"] == "the record has no evaluation of this rung at this fraction"


def test_the_audits_chapter_on_a_run_shows_both(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    import audits.rerun

    empty = {key: [] for key in ("runs", "verdicts", "curves", "dynamics")}
    chapter = {**empty, "scale": "full", "reference": None, "forecast": "too few runs", "code": []}
    monkeypatch.setattr(audits.rerun, "study_rerun", lambda *_: "too few runs")
    monkeypatch.setattr(audits.rerun, "chapter", lambda *_: chapter)
    report, _ = audit_and_rerun(record, [write_run(tmp_path, *last(record, context=128))])
    (row,) = report["rerun"]["evaluations"]["rows"]
    assert row["verdict"] == "definition differs"
    for text in (as_html(report), as_markdown(report)):
        assert NAME in text.replace("\\_", "_")
        assert "context 4096 and 128" in text
