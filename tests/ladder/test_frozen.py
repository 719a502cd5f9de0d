"""A frozen forecast held against points of one's own and against the record."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from repro.cli.main import exit_code
from repro.errors import UsageError
from repro.ladder.forecast import FrozenForecast, freeze, read_forecast
from repro.ladder.forms import FORMS
from repro.ladder.frozen import hold_points, hold_record
from repro.ladder.point_fit import fit_points
from repro.ladder.points import read_points
from repro.ladder.track import track_record
from repro.record.facts import load_record

RECORD = load_record()
TARGET = 2.6e24  # FLOPs


@pytest.fixture(scope="module")
def forecast(tmp_path_factory: pytest.TempPathFactory) -> FrozenForecast:
    """Of loss = 1.5 + 3000 C^-0.18 with a little noise, at one place."""
    folder = tmp_path_factory.mktemp("frozen")
    flops = [10 ** (18 + n / 2) for n in range(9)]
    noise = [0.001, -0.002, 0.0015, 0.0, -0.001, 0.002, -0.0005, 0.001, -0.001]
    lines = [f"{c},{1.5 + 3000 * c**-0.18 + e}" for c, e in zip(flops, noise, strict=True)]
    (folder / "points.csv").write_text("\n".join(["flops,loss", *lines]))
    form = FORMS["power"]
    points = read_points(folder / "points.csv", form.columns)
    fit = fit_points(points, form, asymptote=1.5, places=[{"flops": TARGET}], draws=50)
    return freeze(fit, folder / "forecast.json", now=datetime(2026, 12, 1, tzinfo=UTC))


def write(folder: Path, *rows: tuple[float, float]) -> Path:
    path = folder / "measured.csv"
    path.write_text("\n".join(["flops,loss", *(f"{c},{loss}" for c, loss in rows)]))
    return path


def test_ones_own_points(forecast: FrozenForecast, tmp_path: Path) -> None:
    measured = read_points(write(tmp_path, (TARGET, 1.6), (1e23, 1.7)), ("flops",))
    here, there = hold_points(forecast, measured).points
    law = forecast.coefficients
    assert here.predicted == pytest.approx(1.5 + law["A"] * TARGET ** -law["alpha"], rel=1e-12)
    assert here.residual == 1.6 - here.predicted
    low, high = here.interval_95 or (0, 0)
    assert low < here.predicted < high  # frozen with the forecast of this place
    assert there.interval_95 is None  # of this place nothing was said
    assert here.comparable
    assert here.source.endswith("line 2")


def test_of_the_record_only_an_end_not_yet_known_is_comparable(forecast: FrozenForecast) -> None:
    track = track_record(RECORD)
    held = hold_record(forecast, RECORD, track)
    last = held.points[-1]
    assert last.place["flops"] == 219_000 * track.recipe.flops_per_step_without_lm_head
    assert not any(point.comparable for point in held.points)
    assert last.why_not == (
        "56.1% of the run: a law of finished runs does not speak of it; "
        "known by 2026-10-07, before the forecast was frozen"
    )
    done = track.points[-1]._replace(step=390_250)
    ended = replace(RECORD.hero_evaluations[-1], step=390_250, evaluated_at="2026-12-05T00:00:00Z")
    record = replace(RECORD, hero_evaluations=(ended,))
    (end,) = hold_record(forecast, record, replace(track, points=(done,))).points
    assert end.comparable
    early = replace(forecast, frozen=datetime(2027, 1, 1, tzinfo=UTC))
    (end,) = hold_record(early, record, replace(track, points=(done,))).points
    assert end.why_not == "known by 2026-12-05, before the forecast was frozen"


def test_a_time_that_cannot_be_read_is_the_end_of_the_record(forecast: FrozenForecast) -> None:
    track = track_record(RECORD)
    last = track.points[-1]._replace(step=390_250)
    for told in (None, "some day"):
        record = replace(
            RECORD, hero_evaluations=(replace(RECORD.hero_evaluations[-1], step=390_250, evaluated_at=told),)
        )
        (end,) = hold_record(forecast, record, replace(track, points=(last,))).points
        assert end.why_not == f"known by {RECORD.run.snapshot}, before the forecast was frozen"


def test_a_form_that_the_record_cannot_serve_is_refused(forecast: FrozenForecast) -> None:
    other = replace(forecast, form=FORMS["chinchilla"])
    with pytest.raises(UsageError, match="needs params and tokens"):
        hold_record(other, RECORD, track_record(RECORD))


def test_the_command(forecast: FrozenForecast, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = write(tmp_path, (TARGET, 1.6))
    arguments = ["track", "--json", "--quiet", "--frozen", str(forecast.path), "--points", str(measured)]
    assert exit_code([*arguments, "--out", str(tmp_path / "out")]) == 0
    frozen = json.loads(capsys.readouterr().out)["frozen"]
    assert frozen["sha256"] == read_forecast(forecast.path).sha256
    assert frozen["points"][0]["measured"] == 1.6
    page = (tmp_path / "out" / "track.html").read_text()
    assert frozen["sha256"] in page
    changed = tmp_path / "changed.json"
    changed.write_text(forecast.path.read_text().replace("2026-12-01", "2026-11-01"))
    assert exit_code(["track", "--frozen", str(changed)]) == 2
    assert "was changed after it was frozen" in capsys.readouterr().err
