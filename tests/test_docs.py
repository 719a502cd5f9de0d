"""What the docs show is what the program does."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from repro.cli.main import exit_code
from repro.record.places import parse_places

ROOT = Path(__file__).parent.parent


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / name).read_text(), flags=re.DOTALL)


def run_line(line: str) -> int:
    """Run one command of a page, in the current folder."""
    program, *arguments = shlex.split(line)
    if program == "marin-repro":
        return exit_code([*arguments, "--quiet"])
    assert (program, arguments[0]) == ("python", "-m")
    return int(importlib.import_module(arguments[1]).main(arguments[2:]))


@pytest.fixture
def pond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the page's first record in it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pond"
    folder.mkdir()
    (folder / "record.toml").write_text(blocks("audit-another-run.md", "toml")[0])
    (folder / "claims.json").write_text(blocks("audit-another-run.md", "json")[0])
    return folder


def test_the_page_on_another_run_leads_from_an_empty_folder_to_a_report(pond: Path) -> None:
    first, then, _ = blocks("audit-another-run.md", "console")
    for line in first.splitlines():
        assert run_line(line) == 0
    report = json.loads(Path("pond-audit/report.json").read_bytes())
    assert [one["title"] for one in report["findings"]] == ["training tokens: 2.5T against 2,097,152,000,000"]
    assert [row["subject"] for row in report["unverifiable"]] == ["record", "steps", "batch", "length"]
    (pond / "annotations.toml").write_text(blocks("audit-another-run.md", "toml")[1])
    for line in then.splitlines():
        assert run_line(line) == 0
    assert Path("pond-audit/crate/ro-crate-metadata.json").is_file()
    later = json.loads(Path("pond-later/report.json").read_bytes())
    assert later["baseline"]["unchanged"] == ["training.tokens"]
    assert later["summary"]["error"] == 0
    assert later["findings"][0]["replies"][0]["text"].startswith("2.5T was the plan")
    assert later["annotations"] == {"suppressed": 1, "expired": [], "astray": []}


def test_the_worked_example_finds_what_its_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = blocks("audit-another-run.md", "console")[2].splitlines()
    monkeypatch.chdir(ROOT)
    out = tmp_path / "out"
    assert run_line(line.replace("--out pythia-audit", f"--out {out}")) == 0
    report = json.loads((out / "report.json").read_bytes())
    page = (ROOT / "docs" / "audit-another-run.md").read_text()
    assert [f"| {one['severity']} | {one['title']} |" for one in report["findings"]] == re.findall(
        r"^\| (?:error|warning|explained|note) \|.*$", page, flags=re.MULTILINE
    )
    assert f"holds {report['generated_from']['claims']} claims" in page
    assert all(claim["source"]["address"] and claim["quote"] for claim in report["claims"])


def test_the_derive_toml_of_the_page_is_one() -> None:
    places = parse_places(blocks("audit-another-run.md", "toml")[2].encode())
    assert [one.expression for one in places.fact] == ["CONFIG.seed"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "AGENTS.md", "docs/audit-another-run.md"])
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
