"""`marin-repro fit --points` as its user meets it: tables, one JSON object, the frozen forecast, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro.cli.main import exit_code
from repro.ladder.forecast import read_forecast

LINES = [f"1e{n},{1.5 + 95 * 10 ** (-0.09 * n) + (-1) ** n * 0.002:.6f}" for n in range(17, 24)]


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text("\n".join(["flops,loss", *LINES]))
    return path


def run(*arguments: object) -> int:
    return exit_code(["fit", *map(str, arguments)])


def test_tables_and_the_frozen_forecast(points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frozen = tmp_path / "forecast.json"
    law = ("--points", points, "--form", "power", "--asymptote", "1.5", "--at", "2.6e24")
    assert run(*law, "--freeze", frozen) == 0
    shown = capsys.readouterr()
    rows = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert rows[0] == "loss = E + A * flops^-alpha"
    assert "E 1.5 fixed" in rows
    forecast = read_forecast(frozen)
    alpha, loss = forecast.coefficients["alpha"], forecast.loss_at({"flops": 2.6e24})
    assert any(row.startswith(f"alpha {alpha!r} ") for row in rows)
    assert any(row.startswith(f"1.5, as asked {alpha:.6f} {loss:.6f} (") for row in rows)
    assert any(row.startswith("1.3 ") for row in rows)
    assert f"content sha256 {forecast.sha256}" in shown.err
    assert run(*law, "--freeze", frozen) == 2
    assert "is not written twice" in capsys.readouterr().err


def test_json_and_the_folder_hold_one_object(points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--points", points, "--form", "power", "--asymptote", "1.5", "--json", "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    found = json.loads(printed)
    assert found["asymptote"] == {"fixed": True, "value": 1.5}
    assert found["data"]["points"] == 7
    assert (tmp_path / "out" / "fit.json").read_text() == printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--form", "power"), "--form goes with --points"),
        (("--freeze", "x.json"), "--freeze goes with --points"),
        (("--seed", "1"), "--seed goes with --points"),
        (("--points", "POINTS"), "--points needs --form"),
        (("--points", "POINTS", "--form", "linear"), "no form 'linear'. The forms are power, chinchilla."),
        (("--points", "POINTS", "--form", "power", "--freeze", "x.json"), "say where, as --at flops=2.6e24"),
        (("--points", "POINTS", "--form", "power", "--at", "much"), "--at 'much' is no place of form power"),
        (("--points", "POINTS", "--form", "power", "--runs", "a"), "--points and --runs are two different fits"),
        (("--points", "POINTS", "--form", "chinchilla"), "Points of flops are fitted with --form power"),
        (("--asymptote", "1.5"), "--asymptote goes with --runs or --points"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    points: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(points if one == "POINTS" else one for one in arguments)) == 2
    assert words in capsys.readouterr().err
