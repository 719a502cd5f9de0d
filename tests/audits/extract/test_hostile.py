"""Hostile texts: read in bounded time, reported, and never an exception."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audits.check import audit_record
from audits.claims import Date, read_ledger
from audits.extract.documents import Document, documents_of
from audits.extract.extraction import Extraction, coverage, extract, ledger
from audits.extract.registry import read_registry
from audits.extract.scopes import Subject
from repro.errors import RecordError
from repro.record.artifacts import RunFacts
from repro.record.facts import Record

REGISTRY = read_registry()
SUBJECT = Subject(rungs=("d1", "d2"), target="d2", names=frozenset({"9B-A1B"}))
SECONDS = 5  # of the processor, so that others on the machine do not count
FULL = 256 * 1024


def read(text: str, form: str = "markdown") -> Extraction:
    document = Document(
        id="a",
        kind="issue-comment",
        citation="a",
        date=Date(text="once"),
        form=form,
        text=text,  # type: ignore[arg-type]
    )
    return extract([document], REGISTRY, SUBJECT)


def as_claims(extraction: Extraction) -> int:
    """How many claims there are, in a form that the auditor reads."""
    return len(read_ledger(json.dumps(ledger(extraction, REGISTRY)).encode()).claims)


BOMBS: dict[str, Callable[[], str]] = {
    "claims": lambda: "48 layers and 32 heads, " * (FULL // 24),
    "one long number": lambda: "9" * FULL,
    "digits and commas": lambda: "1,234" * (FULL // 5),
    "exponents": lambda: "1e" * (FULL // 2),
    "signs": lambda: "-+−±" * (FULL // 4),
    "dots": lambda: "1." * (FULL // 2),
    "ranges": lambda: "1-" * (FULL // 2),
    "name parts": lambda: "a-" * (FULL // 2) + "1",
    "hex": lambda: "a1" * (FULL // 2),
    "brackets": lambda: "[" * FULL,
    "emphasis": lambda: "*a _b " * (FULL // 6),
    "quotations": lambda: ">" * FULL,
    "a table": lambda: "| rung | num_layers |\n|-|-|\n" + "| 48 | 99 |\n" * 6000,
    "a wide row": lambda: "| a | b |\n|-|-|\n" + "|1" * (FULL // 2 - 20),
    "parentheses": lambda: "(" * (FULL // 2) + "48 layers",
    "keys without numbers": lambda: "num_layers " * (FULL // 11),
    "names": lambda: "no weight decay linear decay " * (FULL // 29),
    "spaces": lambda: " " * FULL + "4",
    "cells of facts": lambda: "| num_layers | " + "48 · " * (FULL // 5 - 20) + "|\n",
    "ranges of layers": lambda: "4-8 layers " * (FULL // 11),
    "contrasts": lambda: "instead of 48 layers versus " * (FULL // 28),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_text_of_256_kib_takes_under_five_seconds(name: str) -> None:
    start = time.process_time()
    extraction = read(BOMBS[name]()[:FULL])
    as_claims(extraction)
    assert time.process_time() - start < SECONDS


def test_too_many_bars_are_not_read_and_say_so() -> None:
    assert [odd.kind for _, odd in read("| 48 layers |\n" * 11_000).oddities] == ["too long"]


def test_a_comment_over_256_kib_is_not_read_and_says_so() -> None:
    start = time.process_time()
    extraction = read("48 layers " * 500_000)
    assert time.process_time() - start < SECONDS
    assert not extraction.claims
    assert [odd.kind for _, odd in extraction.oddities] == ["too long"]


@pytest.mark.parametrize(
    ("text", "words"), [("48 layers " * 500_000, "too long"), ("48 layers and 1-" * 6000, "too many numbers")]
)
def test_a_text_that_was_not_wholly_read_is_a_finding_of_the_audit(text: str, words: str) -> None:
    claims = read_ledger(json.dumps(ledger(read(text), REGISTRY)).encode())
    record = Record(
        folder=Path("nowhere"), lock={}, run=RunFacts(name="a-run", title="A run", snapshot=date(2026, 1, 1))
    )
    (finding,) = (one for one in audit_record(record, claims).findings if one.quantity.name == "access.text")
    assert (finding.severity, finding.verdict) == ("note", "unverifiable")
    assert f"not wholly read: {words} (a)" in finding.title


def test_documents_beyond_eight_mebibytes_are_not_read_and_say_so() -> None:
    texts = ["x" * 2**20] * 8 + ["48 layers"]
    documents = [
        Document(id=str(number), kind="blog", citation="a", date=Date(text="once"), form="lines", text=text)
        for number, text in enumerate(texts)
    ]
    extraction = extract(documents, REGISTRY)
    assert not extraction.claims
    assert extraction.oddities[-1][0] == "8"


def test_a_page_of_five_megabytes_is_not_read_and_a_deep_one_is_no_trouble() -> None:
    assert [odd.kind for _, odd in read("<p>48 layers" * 500_000, "html").oddities] == ["too long"]
    start = time.process_time()
    as_claims(read("<div>" * 100_000 + "<p>48 layers", "html"))
    as_claims(read("<table><tr><td>" * 20_000 + "48 layers", "html"))
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("text", ["1-" * 9000, "48 layers " * 5000, "| a | b |\n|-|-|\n" + "| 1 | 2 |\n" * 5000])
def test_a_text_with_thousands_of_numbers_is_read_in_part_and_says_so(text: str) -> None:
    assert {odd.kind for _, odd in read(text).oddities} == {"too many numbers"}


def test_numbers_that_nobody_published_are_reported() -> None:
    text = "It has 10^308 layers, 1e999 heads, NaN experts, 1e-400 racks, -5 layers and trains on -2T tokens."
    extraction = read(text)
    assert not extraction.claims
    reasons = coverage(extraction)["unread_by_reason"]
    assert reasons["no number that somebody published"] == 3
    assert reasons["not a number"] == 1
    assert reasons["too large or too small for shape.layers"] == 1
    assert reasons["too large or too small for data.store_tokens, progress.tokens, training.tokens"] == 1


def test_an_override_of_the_direction_is_reported_and_not_read() -> None:
    extraction = read("It has \u202e84\u202c layers.\n\nIt has 36 layers.")
    assert [one.value for one in extraction.claims] == ["36"]
    assert [odd.kind for _, odd in extraction.oddities] == ["direction overridden"]


def test_fake_rows_are_reported() -> None:
    assert [odd.kind for _, odd in read("| num_layers | 48 |\n").oddities] == ["row of no table"]
    long = read("| a | b |\n|-|-|\n| num_layers | 48 | 36 |\n")
    assert [odd.kind for _, odd in long.oddities] == ["row longer than its table"]


def test_scripts_and_links_reach_no_claim_as_markup() -> None:
    text = '<script>alert(48)</script> <b onclick="x()">48 layers</b> [48 layers](javascript:alert(1))'
    content = json.dumps(ledger(read(text), REGISTRY))
    assert "<" not in content
    assert "onclick" not in content
    post = {
        "id": 1,
        "author": "\u202ex",
        "created_at": "",
        "updated_at": "",
        "url": "javascript:alert(1)",
        "body": "48 layers",
    }
    thread = {"repository": "a/b", "number": 1, "title": "t\x07", "comments": [post], **post}
    extraction = extract(documents_of("1.json", json.dumps(thread).encode()), REGISTRY)
    assert as_claims(extraction) == 2
    assert {one.address for one in extraction.documents} == {""}


LETTERS = st.sampled_from(
    [*"0123456789.,eE+-−–%~≈×/|`*_#>[](){}<>\n\\\"' :;=√^·—KMBT", "\u202e", "\x00", "\ud800", "é"]
)
VOCABULARY = (
    "layers heads num_layers top-k experts tokens per step params total active rung d1 d2 step predict instead of if "
    "warmup phase pretrain cooldown MFU tok/s | |-|-| ``` > <details> <td> </table> 48 384/8 18.0T 9B-A1B one rack "
    "linear decay no weight decay reference losses was at about"
)
WORDS = st.sampled_from(VOCABULARY.split())
TEXTS = st.lists(st.one_of(WORDS, LETTERS, st.text(max_size=8)), max_size=60).map(
    lambda parts: " ".join(parts)
) | st.lists(st.one_of(WORDS, LETTERS), max_size=60).map("".join)
FORMS = st.sampled_from(["markdown", "html", "lines", "python"])


def check(text: str, form: str) -> None:
    extraction = read(text, form)
    as_claims(extraction)
    said = coverage(extraction)
    json.dumps(said)
    assert said["read"] + len(said["ambiguous"]) + len(said["unread"]) == said["numbers"]
    for one in extraction.claims:
        assert 0 <= one.span.start <= one.span.end <= len(text) + 1


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=TEXTS, form=FORMS)
def test_no_text_makes_the_extractor_fail(text: str, form: str) -> None:
    check(text, form)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["num_layers", "config", "run", "id", "summary", "_step", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=JSON)
def test_no_settings_make_the_extractor_fail(content: object) -> None:
    extraction = extract(documents_of("a.json", json.dumps(content).encode()), REGISTRY)
    as_claims(extraction)
    json.dumps(coverage(extraction))


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=200), suffix=st.sampled_from([".json", ".md", ".html", ".py", ".cff", ".exe"]))
def test_bytes_are_read_or_refused(data: bytes, suffix: str) -> None:
    try:
        documents = documents_of(f"a{suffix}", data)
    except RecordError:
        return
    as_claims(extract(documents, REGISTRY))


@pytest.mark.fuzz
def test_no_text_makes_the_extractor_fail_in_two_minutes() -> None:
    ends = time.monotonic() + 120
    count = 0

    @settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(text=TEXTS, form=FORMS)
    def some(text: str, form: str) -> None:
        nonlocal count
        if time.monotonic() < ends:
            count += 1
            check(text, form)

    while time.monotonic() < ends:
        some()
    print(f"{count} texts")
    assert count > 1000
