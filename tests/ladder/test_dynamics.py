"""What the record says of a run's course, in series made to show it or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from repro.errors import RecordError
from repro.ladder import dynamics
from repro.ladder.recipe import resolve_recipe
from tests.ladder.written_runs import bump, write_run

STEPS = 60
X = (np.arange(STEPS) + 0.5) / STEPS


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    peak, switch, drops, line = dynamics.observe(write_run(tmp_path, resolve_recipe("d768", "smoke"), metrics=True))
    assert (peak.verdict, peak.measured[:12]) == ("seen", "largest at 2")
    assert switch.verdict == "not seen"
    assert drops.measured.startswith("30.0% in the last half (median); not computed")
    assert line.verdict == "not seen"


@pytest.mark.parametrize(
    ("norms", "verdict", "words"),
    [
        (np.array([bump(x) for x in X]), "seen", "largest at 31%"),
        (1 + X, "not seen", "still rising at the end"),
        (2 - X, "not seen", "largest at 1%"),
        (np.array([bump(x - 0.4) for x in X]), "not seen", "largest at 71%"),
    ],
)
def test_the_peak_of_the_gradient_norm(norms: dynamics.Floats, verdict: str, words: str) -> None:
    norms = norms + 0.02 * np.random.default_rng(0).standard_normal(STEPS)
    norms[40] += 3  # one spike is not a peak
    found = dynamics.gradient_norm_peak(norms, steps=STEPS)
    assert found.verdict == verdict
    assert found.measured[:9] == words[:9]


@pytest.mark.parametrize(("rise", "verdict"), [(0.1, "seen"), (0.0, "not seen"), (-0.1, "not seen")])
def test_a_step_at_the_switch_stands_out_of_the_noise(rise: float, verdict: str) -> None:
    noise = 0.005 * np.random.default_rng(1).standard_normal(STEPS)
    found = dynamics.phase_switch(3 - X + rise * (np.arange(STEPS) >= 48) + noise, switch=48)
    assert found.verdict == verdict
    assert float(found.measured.split()[0]) == pytest.approx(rise, abs=0.03)


def test_noise_alone_seldom_looks_like_a_step() -> None:
    draw = np.random.default_rng(2)
    seen = [
        dynamics.phase_switch(3 - X + 0.05 * draw.standard_normal(STEPS), switch=48).verdict == "seen"
        for _ in range(1000)
    ]
    assert np.mean(seen) < 0.08  # one side of two standard errors of few points: Student's t of 4 degrees has 5.8 %


def test_a_switch_at_the_edge_cannot_be_compared() -> None:
    assert dynamics.phase_switch(3 - X, switch=58).verdict == "not comparable"
    assert dynamics.phase_switch(3 - X, switch=0).verdict == "not comparable"


@pytest.mark.parametrize(("end", "verdict"), [(1.0035, "seen"), (1.0, "not seen"), (1.01, "not seen")])
def test_the_miss_of_a_line(end: float, verdict: str) -> None:
    losses = [(0.59, 1.4), (0.7, 1.3), (0.8, 1.2), (1.0, end)]  # marks that a short run makes are rounded
    assert dynamics.line_error(losses).verdict == verdict
    assert dynamics.line_error(losses[:3]).verdict == "not comparable"


def test_drops_stand_beside_what_chance_makes() -> None:
    found = dynamics.drop_fraction(np.linspace(0.5, 0.3, 41), 0.058)
    assert found.verdict == "not comparable"
    assert found.measured.startswith("35.0% in the last half (median); 5.8%")


def test_a_run_without_metrics_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no metrics yet"):
        dynamics.observe(write_run(tmp_path, resolve_recipe("d768", "smoke")))
