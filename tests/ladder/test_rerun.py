"""The forecast on one's own runs: a ladder that follows a law gives it back, and runs that do not belong are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from repro import runs
from repro.cli.main import app
from repro.errors import FitError, RecordError, UsageError
from repro.ladder.recipe import resolve_recipe
from repro.ladder.rerun import study_runs
from repro.ladder.rungs import RUNGS
from tests.ladder.written_runs import ALPHA, A, E, law, write_run


@pytest.fixture
def ladder(tmp_path: Path) -> list[Path]:
    """All five rungs at smoke, on one law."""
    return [write_run(tmp_path / rung, resolve_recipe(rung, "smoke")) for rung in RUNGS]


def test_a_ladder_on_a_law_gives_it_back_and_meets_its_target(ladder: list[Path]) -> None:
    found = study_runs([ladder[-1], *ladder[:-1]])  # in any order
    fit = found.study.fit
    assert fit.forecast.fitted_on == ("d768", "d1024", "d1536", "d2048")
    assert fit.forecast.asymptote == E  # the known entropy
    for point in fit.points:
        assert point.alpha == pytest.approx(ALPHA, rel=1e-9)
        assert point.coefficient == pytest.approx(A, rel=1e-7)
    assert len(found.comparisons) == 10
    assert all(abs(one.residual) < 1e-9 for one in found.comparisons)
    assert found.study.free_asymptote.asymptote == pytest.approx(E, abs=0.02)


def test_a_target_that_misses_the_law_shows_by_how_much(ladder: list[Path], tmp_path: Path) -> None:
    above = write_run(tmp_path / "other", resolve_recipe("d6144", "smoke"), lambda flops: law(flops) + 0.05)
    found = study_runs([*ladder[:-1], above])
    assert all(one.residual == pytest.approx(0.05, abs=1e-9) for one in found.comparisons)


def test_a_target_that_was_not_run_is_forecast_all_the_same(ladder: list[Path]) -> None:
    found = study_runs(ladder[:-1])
    assert found.comparisons == ()
    hero = resolve_recipe("d6144", "smoke")
    assert found.study.fit.final.target_flops == hero.flops_without_lm_head
    assert found.study.fit.final.prediction == pytest.approx(law(hero.flops_without_lm_head), abs=1e-9)


def test_the_asymptote_can_be_chosen(ladder: list[Path]) -> None:
    assert study_runs(ladder, asymptote=0.5).study.fit.forecast.asymptote == 0.5
    with pytest.raises(FitError, match=r"is not above the asymptote 3\.0+, so no law can reach it") as caught:
        study_runs(ladder, asymptote=3.0)
    assert "d768" in str(caught.value)


def test_an_unfinished_rung_is_named(ladder: list[Path]) -> None:
    last = resolve_recipe("d1024", "smoke").steps
    (ladder[1] / runs.EVALS / f"heldout-{last:08d}.json").unlink()
    with pytest.raises(FitError, match=r"d1024 after 60 of 60 steps: not evaluated yet\. Finish the run with --resume"):
        study_runs(ladder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": "mini"}, "scale is smoke in one and mini in the other"),
        ({"data": {"store": "bb", "tokenizer": "bytes"}}, "data is"),
        ({"entropy": None}, "entropy is"),
        ({"rung": "d768"}, "are both runs of d768"),
    ],
)
def test_runs_of_different_ladders_are_not_fitted_together(
    change: dict[str, Any], words: str, ladder: list[Path], tmp_path: Path
) -> None:
    ladder[1] = write_run(tmp_path / "odd", resolve_recipe("d1024", "smoke"), **change)
    with pytest.raises(UsageError) as caught:
        study_runs(ladder)
    assert words in str(caught.value)


def test_runs_of_different_code_are_fitted_and_said_to_be(ladder: list[Path], tmp_path: Path) -> None:
    assert study_runs(ladder).study.notes == ()
    ladder[1] = write_run(tmp_path / "later", resolve_recipe("d1024", "smoke"), code="dd")
    (note,) = study_runs(ladder).study.notes
    assert "different versions of the code" in note


def test_too_few_rungs_are_refused(ladder: list[Path]) -> None:
    with pytest.raises(FitError, match="2 rungs below d6144"):
        study_runs([ladder[0], ladder[1], ladder[4]])


def test_a_folder_that_is_no_run_is_named(ladder: list[Path], tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not a run"):
        study_runs([*ladder, tmp_path])
    odd = write_run(tmp_path / "odd", resolve_recipe("d1024", "smoke"))
    identity = {**runs.read_manifest(odd).identity, "recipe": {}}
    runs.write_manifest(odd, runs.Manifest(identity=identity))
    with pytest.raises(RecordError, match="is no run that train wrote"):
        study_runs([odd])


def test_the_command_prints_the_contracts_object_and_the_residuals(ladder: list[Path], tmp_path: Path) -> None:
    arguments = ["fit", "--runs", *map(str, ladder)]
    result = CliRunner().invoke(app, [*arguments, "--json", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.exception
    made = json.loads(result.stdout)
    contract = ["asymptote", "procedure", "points", "final", "sensitivity", "bootstrap"]
    assert list(made) == [*contract, "rerun"]
    assert made["rerun"]["entropy"]["rate_in_interval"] is True
    assert made["rerun"]["published"]["alpha"] == pytest.approx(0.089976, abs=1e-6)
    assert (tmp_path / "out" / "fit.json").read_text() == result.stdout
    assert "held-out loss, dropless" in (tmp_path / "out" / "rerun.svg").read_text()
    table = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"}).stdout
    words = [" ".join(line.split()) for line in table.splitlines()]
    assert "alpha, published law 0.1200 0.0900" in words
    assert any(line.startswith("100% ") and line.endswith("0.0000") for line in words)


@pytest.mark.parametrize("arguments", [["--asymptote", "1.0"], ["some/folder"]])
def test_what_goes_with_runs_only_is_refused_without(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["fit", *arguments])
    assert isinstance(result.exception, UsageError)
    assert "--runs" in str(result.exception)
