"""Real training at smoke: each rung ends between the entropy of its data and that of letters alone, larger rungs lower.

Margins are far inside of what several seeds gave (repro/ladder/smoke_reference.json). The smallest rung always;
all five where `-m slow` is asked for, which takes 12 minutes of processor time.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from repro import runs
from repro.cli.train import train_rung
from repro.ladder.acceptance import final_loss, judge, reference_of
from repro.ladder.recipe import resolve_recipe
from repro.ladder.rungs import RUNGS
from repro.record.facts import load_record

MARGIN = 0.2  # nats a token, from either entropy
STEP_DOWN = 0.05  # nats a token, from a rung to the next


def trained(rungs: tuple[str, ...], folder: Path) -> list[Path]:
    record = load_record()
    for rung in rungs:
        train_rung(resolve_recipe(rung, "smoke"), record, folder / rung, quiet=True)
    return [folder / rung for rung in rungs]


def check(folders: list[Path]) -> None:
    losses = []
    for folder in folders:
        entropy, loss = runs.read_manifest(folder).identity["entropy"], final_loss(folder)
        assert loss is not None
        assert entropy["rate"] + MARGIN < loss < entropy["unigram"] - MARGIN
        losses.append(loss)
        verdict = judge(folder, reference_of("smoke"))
        assert verdict.verdict == "reproduced", verdict
    assert all(larger < smaller - STEP_DOWN for smaller, larger in pairwise(losses)), losses


def test_the_smallest_rung_learns(tmp_path: Path) -> None:
    (folder,) = trained(("d768",), tmp_path)
    check([folder])
    session = runs.read_manifest(folder).execution["sessions"][0]
    assert 0.04 < session["expected_drop_fraction"] < 0.07


@pytest.mark.slow
def test_all_rungs_learn(tmp_path: Path) -> None:
    check(trained(tuple(RUNGS), tmp_path))
