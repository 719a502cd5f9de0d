"""`marin-repro fit` as its user meets it: tables, one JSON object, files written whole, and clear refusals."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from repro.cli.study import draw, fit
from repro.errors import FitError, OutputError, RecordError
from repro.files import parse_json
from repro.ladder.sensitivity import study_record
from repro.record.facts import load_record

app = typer.Typer()
app.command("fit")(fit)


@app.callback()
def marin_repro() -> None:
    """A program of more than one command, so that `fit` is named as on the real command line."""


def run(*arguments: str, columns: int = 100) -> Result:
    return CliRunner().invoke(app, ["fit", *arguments], env={"COLUMNS": str(columns), "NO_COLOR": "1"})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A record of one's own, unlocked: the built-in one's forecast and grid."""
    source = load_record().folder
    folder = tmp_path / "record"
    folder.mkdir()
    text = (source / "record.toml").read_text()
    head, *entries = text.split("[[file]]")
    grid = next(entry for entry in entries if 'name = "ladder_grid.csv"' in entry)
    (folder / "record.toml").write_text(f"{head}[[file]]{grid}")
    shutil.copy(source / "ladder_grid.csv", folder)
    return folder


def test_json_is_exactly_the_studys_object_and_nothing_else() -> None:
    result = run("--json")
    assert result.exit_code == 0
    assert parse_json(result.stdout.encode(), "stdout") == study_record(load_record()).as_json()


def test_the_published_forecast_survives_json_in_every_digit() -> None:
    points = {point["fraction"]: point["prediction"] for point in json.loads(run("--json").stdout)["points"]}
    assert len(points) == 20
    for fraction, known in {0.05: 2.3920926134624465, 0.1: 2.326142719206298, 1.0: 2.0387845986743045}.items():
        assert math.isclose(points[fraction], known, rel_tol=1e-12)


@pytest.mark.parametrize("columns", [80, 160])
def test_the_tables_show_each_mark_and_each_choice(columns: int) -> None:
    result = run(columns=columns)
    assert "…" not in result.stdout
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    for row in (
        "5% 67.550 0.081296 2.392093 2.3570 to 2.4244",
        "100% 84.788 0.089976 2.038785 2.0084 to 2.0782",
        "as published 2.038785",
        "asymptote 1.3 2.008358 -0.030427",
        "without d2048 2.041491 +0.002706",
        "FLOPs with the LM head 2.015116 -0.023668",
    ):
        assert row in rows, row
    assert "weakly identified" in result.stdout


def test_notes_go_to_standard_error_and_quiet_leaves_them_out() -> None:
    loud, quiet = run(), run("--quiet")
    assert "steps 15,119 and 15,127 both lie at 100%; the later is used." in loud.stderr
    assert "The bootstrap assumes: " in loud.stderr
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout


def test_out_holds_the_result_and_the_figures(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "forecast"
    result = run("--out", str(folder), "--json")
    assert sorted(path.name for path in folder.iterdir()) == ["fit.json", "forecast.svg", "laws.svg"]
    assert (folder / "fit.json").read_text() == result.stdout
    for drawing in draw(load_record()):
        assert (folder / f"{drawing.name}.svg").read_text() == drawing.svg
        assert drawing.caption


def test_a_record_of_ones_own_is_fitted_as_well(own: Path) -> None:
    result = json.loads(run("--record", str(own), "--json").stdout)
    assert result["points"] == study_record(load_record()).as_json()["points"]


@pytest.mark.parametrize(
    ("found", "put", "kind", "words"),
    [
        ("d768,570,3.786311388015747", "d768,570,nan", RecordError, "ladder_grid.csv, line 2, loss: 'nan'"),
        ("d768,570,3.786311388015747", "d768,570,1.25", FitError, "d768, step 570: the loss 1.25 is not above"),
        ("d1024,1527,", "d1024,763,", FitError, "d1024, step 763: two losses"),
        ("d1536,755,3.1583311557769775\n", "", FitError, "d1536: no evaluation at 5%"),
        ("d2048", "d2047", FitError, "no evaluation of d2048"),
    ],
)
def test_bad_points_are_refused_by_rung_and_step_and_nothing_is_written(
    own: Path, tmp_path: Path, found: str, put: str, kind: type[Exception], words: str
) -> None:
    grid = own / "ladder_grid.csv"
    text = grid.read_text()
    assert found in text
    grid.write_text(text.replace(found, put))
    result = run("--record", str(own), "--out", str(tmp_path / "out"), "--json")
    assert type(result.exception) is kind
    assert words in str(result.exception), result.exception
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()


def test_a_missing_record_is_refused(tmp_path: Path) -> None:
    result = run("--record", str(tmp_path / "nowhere"))
    assert isinstance(result.exception, RecordError)
    assert "there is no such folder" in str(result.exception)


def test_an_unwritable_folder_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("mine")
    result = run("--out", str(blocked / "forecast"), "--json")
    assert isinstance(result.exception, OutputError)
    assert "Choose another folder with --out" in str(result.exception)
    assert result.stdout == ""
    assert blocked.read_text() == "mine"


def test_the_example_of_the_help_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run("--help").stdout
    assert "Repeat the published loss forecast" in text
    example = next(line for line in text.splitlines() if "Example:" in line)
    program, command, *arguments = shlex.split(example.split("Example:")[1].strip(" │"))
    assert (program, command) == ("marin-repro", "fit")
    monkeypatch.chdir(tmp_path)
    assert run(*arguments).exit_code == 0
    assert (tmp_path / "forecast" / "fit.json").is_file()


def loaded(arguments: str) -> set[str]:
    """Top-level modules of a fresh interpreter that has run the command with these arguments."""
    code = (
        "import sys, typer; from repro.cli.study import fit; app = typer.Typer(); app.command()(fit); "
        f"app({arguments}, standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stderr.splitlines()[-1].split()}


def test_fitting_loads_no_heavy_library() -> None:
    assert not loaded("['--json']") & {"jax", "scipy", "pandas", "matplotlib"}


def test_the_test_above_can_fail(tmp_path: Path) -> None:
    assert "matplotlib" in loaded(f"['--json', '--out', {str(tmp_path)!r}]")
