"""The report's three forms: whole, traced, escaped, and the same numbers in each."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import pytest

from audits.check import Audit, audit_record
from audits.claims import read_ledger
from audits.report.document import document, link
from audits.report.render import Figure, as_html, as_markdown
from repro.files import canonical_json
from repro.record.facts import load_record
from tests.audits.conftest import AuditClaims, claim

HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'


@pytest.fixture(scope="module")
def built_in() -> Audit:
    record = load_record()
    assert record.claims is not None
    return audit_record(record, read_ledger(record.claims))


class Page(HTMLParser):
    """Tags, links and ids of a page."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_json_has_the_contracts_keys(built_in: Audit) -> None:
    report = json.loads(canonical_json(document(built_in)))
    assert {"run", "record", "generated_from", "findings", "summary", "unverifiable"} <= report.keys()
    keys = ("id", "severity", "quantity", "title", "claims", "values", "relative_difference")
    for finding in report["findings"]:
        assert {*keys, "relation", "explanation", "advice"} <= finding.keys()
    assert sum(report["summary"].values()) == len(report["findings"])
    assert list(report["summary"]) == ["error", "warning", "explained", "note"]


def test_ids_of_findings_are_unique(built_in: Audit) -> None:
    ids = [finding.id for finding in built_in.findings]
    assert len(ids) == len(set(ids))


def test_every_side_of_a_finding_has_a_source_or_its_arithmetic(built_in: Audit) -> None:
    for finding in document(built_in)["findings"]:
        assert len(finding["values"]) > 1
        for value in finding["values"]:
            assert value["claims"] or value["derived"]
            for one in value["claims"]:
                assert one["source"]["citation"]
                assert one["source"]["address"] or "https" not in one["source"]["address"]


def test_html_stands_alone_and_is_well_formed(built_in: Audit) -> None:
    text = as_html(document(built_in), (Figure("<svg viewBox='0 0 1 1'></svg>", "a caption"),))
    page = Page(text)
    assert not page.open
    assert not {"script", "link", "iframe", "img", "object"} & set(page.tags)
    assert all(link.startswith(("https://", "http://", "#")) for link in page.links)
    assert "url(" not in text
    assert "@import" not in text
    assert "<svg" in text


def test_each_finding_stands_in_each_form(built_in: Audit) -> None:
    report = document(built_in)
    page, text = html.unescape(as_html(report)), as_markdown(report)
    plain = re.sub(r"\\(.)", r"\1", text)
    for finding in report["findings"]:
        assert finding["title"] in page
        assert finding["title"] in plain


def test_what_a_record_says_never_becomes_markup(audit_claims: AuditClaims) -> None:
    audit = audit_claims(
        claim(HOSTILE, "optimizer.schedule", name=HOSTILE, quote=HOSTILE, place=HOSTILE, note=HOSTILE),
        claim("b", "optimizer.schedule", name="linear", date={"text": HOSTILE}),
    )
    page = as_html(document(audit))
    assert "<script" not in page
    assert "<img" not in page
    assert html.escape("<script>alert(1)</script>") in page
    text = as_markdown(document(audit))
    assert "<script" not in text.replace("\\<", "")


@pytest.mark.parametrize("address", ["javascript:alert(1)", "data:text/html,x", "", " https://a.test", "ftp://a.test"])
def test_only_web_addresses_become_links(address: str) -> None:
    assert link(address) == ""


def test_a_source_without_an_address_says_so(audit_claims: AuditClaims) -> None:
    audit = audit_claims(
        claim("a", "training.tokens", "18.75T", source="article"), claim("b", "training.tokens", "18.0T")
    )
    assert "an article" in as_html(document(audit))
    assert "no public address known" in as_html(document(audit))
    assert "no public address known" in as_markdown(document(audit))
