"""The chapter on a rerun, in the document and in both pages; `reproduce` with a scale, its training stood in for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repro import runs
from repro.cli import train as cli_train
from repro.cli.main import app
from repro.ladder.recipe import Recipe, resolve_recipe
from repro.ladder.rungs import RUNGS
from tests.ladder.written_runs import E, law, write_run


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ladder")
    hostile = [{"what": "corpus", "published": "<script>alert(1)</script>", "here": "| a | b |"}]
    return [write_run(folder / rung, resolve_recipe(rung, "smoke"), metrics=True, departures=hostile) for rung in RUNGS]


def test_the_audit_takes_runs_and_shows_them(ladder: list[Path], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", "--out", str(tmp_path), "--runs", *map(str, ladder)])
    assert result.exit_code == 0, result.exception
    rerun = json.loads((tmp_path / "report.json").read_text())["rerun"]
    assert [one["rung"] for one in rerun["runs"]] == list(RUNGS)
    assert len(rerun["curves"]) == 10
    assert set(rerun["curves"][-1]["losses"]) == set(RUNGS)
    last = rerun["forecast"]["target"][-1]
    assert last["measured"] == pytest.approx(law(resolve_recipe("d6144", "smoke").flops_without_lm_head))
    assert abs(last["residual"]) < 1e-6
    assert rerun["forecast"]["entropy"]["rate"] == E
    assert {one["verdict"] for one in rerun["verdicts"]} == {"not comparable"}
    assert [len(one["rungs"]) for one in rerun["dynamics"]] == [5] * 4
    for name in ("report.html", "report.md"):
        page = (tmp_path / name).read_text()
        assert "The rerun, at scale smoke" in page
        assert "<script>alert" not in page
        assert "peak of the gradient norm" in page
    assert page.count("\n| 100% |") == 1  # a table of Markdown, whole
    assert (tmp_path / "report.html").read_text().count('id="rerun-title"') == 1


def test_without_runs_there_is_no_such_chapter(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["audit", "--quiet", "--out", str(tmp_path)]).exit_code == 0
    assert json.loads((tmp_path / "report.json").read_text())["rerun"] is None
    assert "The rerun" not in (tmp_path / "report.html").read_text()


def test_two_rungs_have_a_chapter_without_a_forecast(ladder: list[Path], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", "--out", str(tmp_path), "--runs", *map(str, ladder[:2])])
    assert result.exit_code == 0, result.exception
    rerun = json.loads((tmp_path / "report.json").read_text())["rerun"]
    assert "a law needs at least" in rerun["forecast"]
    assert rerun["forecast"] in (tmp_path / "report.html").read_text()


def test_a_folder_without_its_option_is_asked_about(tmp_path: Path) -> None:
    from repro.errors import UsageError

    result = CliRunner().invoke(app, ["audit", "--json", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert "go after --runs" in str(result.exception)


def test_reproduce_trains_each_rung_once_and_puts_all_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, bool]] = []

    def stand_in(recipe: Recipe, record: Any, out: Path, *, resume: bool, quiet: bool) -> None:
        trained.append((recipe.rung, resume))
        write_run(out, recipe, metrics=True)

    monkeypatch.setattr(cli_train, "train_rung", stand_in)
    out = tmp_path / "all"
    arguments = ["reproduce", "--scale", "smoke", "--out", str(out)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.exception
    assert trained == [(rung, False) for rung in RUNGS]
    links = [part.split('"')[0] for part in (out / "index.html").read_text().split('href="')[1:]]
    assert {"refit/fit.json", "refit/rerun.svg", "audit/report.html", "plan/d768-rerun.json"} <= set(links)
    assert all((out / link).is_file() for link in links)
    assert json.loads((out / "audit" / "report.json").read_text())["rerun"]["scale"] == "smoke"

    second = CliRunner().invoke(app, arguments)
    assert second.stderr.count("unchanged, nothing to do") == 5
    assert len(trained) == 5

    last = resolve_recipe("d1024", "smoke").steps
    (out / "runs" / "d1024" / runs.EVALS / f"heldout-{last:08d}.json").unlink()  # broken off
    third = CliRunner().invoke(app, arguments)
    assert third.exit_code == 0, third.exception
    assert trained[5:] == [("d1024", True)]
    assert third.stderr.count("finished before") == 4
    assert third.stderr.count("unchanged, nothing to do") == 4  # the same losses came out
    without = CliRunner().invoke(app, ["reproduce", "--out", str(out)])
    assert without.exit_code == 0, without.exception
    assert json.loads((out / "audit" / "report.json").read_text())["rerun"] is None
