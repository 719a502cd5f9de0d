"""When a rung counts as reproduced: intervals, both directions, and where no verdict may be given."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repro.ladder.acceptance import Reference, judge, judge_published, predictive_interval, reference_of
from repro.ladder.recipe import resolve_recipe
from tests.ladder.written_runs import law, write_run

RECIPE = resolve_recipe("d768", "smoke")
END = law(RECIPE.flops_without_lm_head)
SEEDS = (END - 0.01, END, END + 0.01)
REFERENCE = Reference(scale="smoke", store="aa", losses={"d768": SEEDS}, tolerance=0.005, made="here")


def test_the_interval_is_students_for_one_more_run() -> None:
    low, high = predictive_interval(SEEDS, 0.005)
    half = 4.302652729911275 * 0.01 * math.sqrt(1 + 1 / 3) + 0.005  # t, 97.5 %, 2 degrees: from tables
    assert (low, high) == pytest.approx((END - half, END + half), abs=1e-11)
    with pytest.raises(ValueError, match="at least two"):
        predictive_interval(SEEDS[:1], 0.0)


def test_it_holds_one_more_run_19_times_of_20() -> None:
    draw = np.random.default_rng(5).standard_normal((4000, 5))
    inside = [low <= row[4] <= high for row in draw for low, high in [predictive_interval(list(row[:4]), 0.0)]]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.012)  # three standard errors


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "reproduced"), (0.2, "worse"), (-0.2, "better")])
def test_a_rerun_is_judged_in_both_directions(shift: float, verdict: str, tmp_path: Path) -> None:
    found = judge(write_run(tmp_path, RECIPE, lambda flops: law(flops) + shift), REFERENCE)
    assert found.verdict == verdict
    assert found.measured == pytest.approx(END + shift)
    assert found.low is not None
    assert found.high is not None
    assert found.low < END < found.high


def test_without_what_makes_it_comparable_there_is_no_verdict(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", RECIPE)
    other_text = write_run(tmp_path / "text", RECIPE, data={"store": "bb"})
    broken_off = write_run(tmp_path / "short", RECIPE)
    (broken_off / "evals" / f"heldout-{RECIPE.steps:08d}.json").unlink()
    for folder, reference, words in (
        (run, None, "no reference was measured at scale smoke"),
        (run, replace(REFERENCE, scale="mini"), "no reference was measured at scale smoke"),
        (run, replace(REFERENCE, losses={"d768": (1.0,)}), "too few runs of d768"),
        (other_text, REFERENCE, "its corpus is another one"),
        (broken_off, REFERENCE, "has not reached its end"),
    ):
        found = judge(folder, reference)
        assert (found.verdict, found.low, found.high) == ("not comparable", None, None)
        assert words in found.why


def test_a_published_loss_is_of_another_corpus_and_says_so(tmp_path: Path) -> None:
    departures = [{"what": "corpus", "published": "a", "here": "b"}, {"what": "batch size", "published": 1, "here": 2}]
    found = judge_published(write_run(tmp_path, RECIPE, departures=departures), {"d768": 3.0154}, "Paloma")
    assert found.verdict == "not comparable"
    assert found.why == "other corpus than published (3.0154)."


def test_scales_without_a_reference_have_none() -> None:
    assert reference_of("full") is None
    assert reference_of("my-own.toml") is None
