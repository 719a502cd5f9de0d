"""What the docs show is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from audits.check import audit_record
from audits.claims import read_ledger
from repro.record.facts import load_record
from repro.record.places import parse_places

ROOT = Path(__file__).parent.parent


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / name).read_text(), flags=re.DOTALL)


def test_the_example_of_another_run_is_audited_as_its_page_says(tmp_path: Path) -> None:
    (tmp_path / "record.toml").write_text(blocks("another-run.md", "toml")[0])
    (tmp_path / "claims.json").write_text(blocks("another-run.md", "json")[0])
    record = load_record(tmp_path)
    assert record.claims is not None
    audit = audit_record(record, read_ledger(record.claims))
    (finding,) = audit.findings
    assert finding.title == "training tokens: 2.5T against 2,097,152,000,000"
    assert [row.subject for row in audit.unverifiable] == ["record", "steps", "batch", "length"]


def test_the_derive_toml_of_the_page_is_one() -> None:
    places = parse_places(blocks("another-run.md", "toml")[1].encode())
    assert [one.expression for one in places.fact] == ["CONFIG.seed"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "AGENTS.md", "docs/another-run.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"\]\(((?!http)[^)#]+)\)", text)
    named += [
        name for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text) if not name.startswith(("origin/", "runs/"))
    ]
    missing = [name for name in named if not any((base / name).exists() for base in (ROOT, (ROOT / page).parent))]
    assert not missing


def test_the_readme_names_every_command() -> None:
    from repro.cli.main import app

    readme = (ROOT / "README.md").read_text()
    for command in app.registered_commands:
        assert f"| `marin-repro {command.name}" in readme
