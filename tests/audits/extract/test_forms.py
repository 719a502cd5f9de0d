"""The forms that claims are read from: Markdown, pages, W&B runs, threads as they are stored, code, cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audits.claims import Date, read_ledger
from audits.extract.__main__ import main
from audits.extract.documents import Document, documents_of
from audits.extract.extraction import Extraction, coverage, extract, ledger
from audits.extract.registry import read_registry
from audits.extract.scopes import Subject
from repro.errors import RecordError

REGISTRY = read_registry()


def read(text: str, form: str = "markdown", subject: Subject | None = None) -> Extraction:
    document = Document(
        id="a",
        kind="issue-comment",
        citation="a",
        date=Date(text="once"),
        form=form,
        text=text,  # type: ignore[arg-type]
    )
    return extract([document], REGISTRY, subject)


def stated(extraction: Extraction) -> dict[str, str]:
    return {one.quantity: one.value or one.name for one in extraction.claims}


def test_a_number_keeps_its_span_whatever_markup_is_inside() -> None:
    text = "Intro.\n\n> quoted\n\nIt has **3**6 layers\nand `num_heads` of 4**8**.\n"
    found = read(text).claims
    assert {one.quantity: text[one.span.start : one.span.end] for one in found} == {
        "shape.layers": "3**6",
        "shape.heads": "4**8",
    }
    assert [one.span.line for one in found] == [5, 6]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_span_counts_every_kind_of_line_end(end: str) -> None:
    text = f"Intro.{end}{end}It has{end}36 layers."
    span = read(text).claims[0].span
    assert (text[span.start : span.end], span.quote) == ("36", "It has 36 layers.")


def test_cells_keep_their_place_in_the_row() -> None:
    text = "| | |\n|---|---|\n| hidden_dim | 48 |\n| num_layers | **48** · num_heads 48 |\n"
    spans = {one.quantity: one.span for one in read(text).claims}
    assert [text[span.start :].split()[0] for span in spans.values()] == ["48", "48**", "48"]
    assert spans["shape.heads"].start == text.rindex("48")


def test_quotations_code_and_formulas_state_nothing() -> None:
    text = "> 48 layers\n\n```\n--num-layers 48\n```\n\n`beta2 = clip(0.999^(x/131072), 0.95, 0.9999)`\n"
    extraction = read(text)
    assert not extraction.claims
    reasons = coverage(extraction)["unread_by_reason"]
    assert reasons["in a quotation"] == 1
    assert reasons["in code"] == 1
    assert sum(reasons.values()) == coverage(extraction)["numbers"]


def test_pairs_facts_of_one_cell_and_tables_in_details_are_read() -> None:
    text = (
        "<details><summary>Numbers</summary>\n\n| | |\n|-|-|\n| num_experts / top-k | **96 / 6** |\n"
        "| num_kv_heads | 8 — **local 8 / global 4** |\n| active / total params | 3.1B / 38B |\n\n</details>\n"
    )
    assert stated(read(text)) == {
        "shape.experts": "96",
        "shape.experts_per_token": "6",
        "shape.kv_heads": "8",
        "shape.local_kv_heads": "8",
        "shape.global_kv_heads": "4",
        "parameters.active": "3.1B",
        "parameters.total": "38B",
    }


def test_html_tables_inside_of_markdown_and_pages_are_read() -> None:
    table = "<table><tr><th>key</th><th>value</th></tr><tr><td>num_layers</td><td>36</td></tr></table>"
    assert stated(read(table)) == {"shape.layers": "36"}
    page = f"<html><body><script>48 layers</script><h1>Run</h1>{table}<div><b>9.5M</b><div>tok/s</div></div></body>"
    assert stated(read(page, "html")) == {"shape.layers": "36", "throughput.tokens_per_second": "9.5M"}


def test_the_alias_with_the_most_words_wins_and_equals_are_ambiguous() -> None:
    assert stated(read("It takes 4,194,304 tokens per step.")) == {"training.tokens_per_step": "4,194,304"}
    extraction = read("We have 2T tokens.")
    assert not extraction.claims
    assert extraction.ambiguous[0].candidates == ("data.store_tokens", "progress.tokens", "training.tokens")


def test_two_rates_that_the_scope_does_not_tell_apart_are_ambiguous() -> None:
    extraction = read("8K context trains at 297.0k tokens/s, and 16K at 292.5k tokens/s.")
    assert not extraction.claims
    assert [one.candidates for one in extraction.ambiguous] == [("throughput.tokens_per_second",)] * 2


def test_what_speaks_of_something_else_has_another_scope() -> None:
    run = Subject(rungs=("s1", "s2"), target="s2", names=frozenset({"9B-A1B"}))
    scopes = {
        "The s1 rung crashed at 81%.": {"rung": "s1"},
        "Our last run was 48 layers deep.": {"run": "last run, as a calls it"},
        "The 7B-A2B had 48 layers.": {"run": "7B-A2B, as a calls it"},
        "On one rack it uses batch size 512 instead of 1024.": {"racks": "1"},
        "MFU 36.2% at step 60,000.": {"step": "60000"},
        "The s2 rung has 48 layers.": {},
    }
    for text, scope in scopes.items():
        assert dict(read(text, subject=run).claims[0].scope) == scope, text


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("We plan 48 layers.", "plan"),
        ("It has 48 layers.", "configuration"),
        ("We measured an MFU of 36% at step 50.", "observation"),
        ("We predict a dropless macro loss of 2.3.", "forecast"),
    ],
)
def test_a_claim_says_whether_it_plans_measures_or_foretells(text: str, status: str) -> None:
    assert read(text).claims[0].status == status


def test_a_forecast_of_a_loss_is_no_loss_and_what_would_be_is_nothing() -> None:
    assert stated(read("We predict a dropless macro loss of 2.3.")) == {"forecast.loss": "2.3"}
    assert not read("If we had 48 layers, it would fit.").claims


def test_a_stored_thread_is_a_document_a_post() -> None:
    post = {"author": "b", "author_id": 1, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-02T00:00:00Z"}
    thread = {
        "repository": "a/b",
        "number": 7,
        "title": "A run",
        "url": "https://github.com/a/b/issues/7",
        "body": "48 layers",
        **post,
    }
    thread["comments"] = [
        {"id": 5, "url": "https://github.com/a/b/issues/7#issuecomment-5", "body": "36 layers", **post}
    ]
    documents = documents_of("7.json", json.dumps(thread).encode())
    assert [(one.id, one.kind, one.date.last) for one in documents] == [
        ("issue-7", "issue-body", "2026-01-02T00:00:00Z"),
        ("issue-7-comment-5", "issue-comment", "2026-01-02T00:00:00Z"),
    ]
    content = ledger(extract(documents, REGISTRY), REGISTRY)
    assert [one.printed for one in read_ledger(json.dumps(content).encode()).claims] == ["48", "36"]


def test_a_stored_wandb_run_gives_settings_and_metrics_at_their_step() -> None:
    run = {"run": "a/b/one", "id": "one", "heartbeat_at": "2026-01-01", "history": {}}
    run |= {"config": {"model": {"num_layers": 36, "vocab_size": 1e999}, "trainer": {"num_train_steps": 500}}}
    run |= {"summary": {"_step": 99, "throughput/mfu": 0.361, "nested": {"num_layers": "NaN"}}}
    documents = documents_of("one.json", json.dumps(run).encode())
    extraction = extract(documents, REGISTRY, Subject(runs={"one": {}}))
    assert {one.quantity: (one.value, dict(one.scope)) for one in extraction.claims} == {
        "shape.layers": ("36", {}),
        "training.steps": ("500", {}),
        "throughput.mfu": ("0.361", {"step": "99"}),
    }
    assert coverage(extraction)["unread_by_reason"]["no number that somebody published"] == 2


def test_constants_of_code_are_read_without_running_it() -> None:
    code = 'TOKENS_PER_ACTIVE_PARAM = 640\nc = Config(num_layers=36, lr_schedule="cosine", x=1 / 0)\n'
    extraction = read(code, "python")
    assert stated(extraction) == {
        "training.tokens_per_active_parameter": "640",
        "shape.layers": "36",
        "optimizer.schedule": "cosine",
    }
    assert [code[one.span.start : one.span.end] for one in extraction.claims] == ["640", "36", '"cosine"']
    assert read("def broken(:", "python").oddities[0][1].kind == "not read"


def test_another_run_adds_aliases_and_quantities_without_code() -> None:
    own = b"""
        [[quantity]]
        name = "shape.layers"
        nouns = ["storeys"]
        [[quantity]]
        name = "data.languages"
        label = "languages"
        unit = "count"
        effect = 2
        nouns = ["languages"]
    """
    document = Document(
        id="a", kind="blog", citation="a", date=Date(text="once"), form="markdown", text="48 storeys, 12 languages"
    )
    registry = read_registry(own)
    content = ledger(extract([document], registry), registry)
    assert [(one.quantity, one.printed) for one in read_ledger(json.dumps(content).encode()).claims] == [
        ("shape.layers", "48"),
        ("data.languages", "12"),
    ]
    with pytest.raises(RecordError, match="did you mean 'shape"):
        read_registry(b'[[quantity]]\nname = "shape.layer"\n')
    with pytest.raises(RecordError, match="a phrase has one"):
        read_registry(b'[[quantity]]\nname = "shape.layers"\nphrases = ["no number"]\n')


def test_the_command_writes_claims_and_coverage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "card.md").write_text("It has 48 layers and 7 secrets.")
    out, said = tmp_path / "claims.json", tmp_path / "coverage.json"
    assert main([str(tmp_path / "card.md"), "--out", str(out), "--coverage", str(said)]) == 0
    assert "1 of 2 numbers read" in capsys.readouterr().err
    assert read_ledger(out.read_bytes()).claims[0].source.kind == "repository-document"
    assert json.loads(said.read_bytes())["unread"][0]["why"] == "no quantity is named beside it"
    assert main([str(tmp_path / "none.md"), "--out", str(out)]) == 2
