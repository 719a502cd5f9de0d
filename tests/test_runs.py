"""A run's directory: one writer, whole files, and nothing of a run mistaken for another's."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from repro.errors import OutputError, RecordError, UsageError
from repro.runs import (
    HELD_OUT,
    METRICS,
    Manifest,
    append_metrics,
    check_resumable,
    cut_evaluations,
    cut_metrics,
    has_evaluation,
    hold_run,
    read_evaluations,
    read_manifest,
    read_metrics,
    write_evaluation,
    write_manifest,
)

IDENTITY = {"rung": "d32", "recipe": {"steps": 10, "betas": [0.9, 0.95]}, "seed": 0}


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    manifest = Manifest(identity=IDENTITY, execution={"started": "2026-12-02T00:00:00Z"})
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not a run"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"version": 2, "identity": {}, "execution": {}}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RecordError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_a_resume_of_another_run_names_the_differing_field(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(identity=IDENTITY))
    check_resumable(tmp_path, {**IDENTITY, "recipe": {"steps": 10, "betas": (0.9, 0.95)}})
    with pytest.raises(UsageError, match=r"recipe\.steps is 10 there and would be 20 now"):
        check_resumable(tmp_path, {**IDENTITY, "recipe": {"steps": 20, "betas": [0.9, 0.95]}})


def test_execution_does_not_hinder_a_resume(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(identity=IDENTITY, execution={"host": "one"}))
    check_resumable(tmp_path, IDENTITY)


def test_metrics_come_back_and_are_cut_to_a_checkpoint(tmp_path: Path) -> None:
    for step in range(5):
        append_metrics(tmp_path, {"step": step, "loss": 1 / (step + 1)})
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 5, "lo')  # a crash in the middle of a line
    assert [row["step"] for row in read_metrics(tmp_path)] == [0, 1, 2, 3, 4]
    cut_metrics(tmp_path, 3)
    assert [row["loss"] for row in read_metrics(tmp_path)] == [1, 1 / 2, 1 / 3]
    append_metrics(tmp_path, {"step": 3, "loss": math.nan})
    assert read_metrics(tmp_path)[-1] == {"step": 3, "loss": "nan"}


def test_a_line_without_a_step_is_named(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step": 0}\n{"loss": 1}\n')
    with pytest.raises(RecordError, match="line 2"):
        read_metrics(tmp_path)


def test_evaluations_come_in_the_order_of_steps(tmp_path: Path) -> None:
    for step in (20, 5, 100):
        write_evaluation(tmp_path, "paloma", step, {"step": step})
    write_evaluation(tmp_path, "other", 1, {"step": 1})
    assert [one["step"] for one in read_evaluations(tmp_path, "paloma")] == [5, 20, 100]


def test_a_second_process_is_refused_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    held = f"from pathlib import Path\nfrom repro.runs import hold_run\nwith hold_run(Path({str(tmp_path)!r})):\n"
    with hold_run(tmp_path):
        second = subprocess.run([sys.executable, "-c", held + "    pass"], capture_output=True, text=True, check=False)
        assert "OutputError" in second.stderr
        assert "is being written by process" in second.stderr
    dead = subprocess.run([sys.executable, "-c", held + "    import os; os._exit(9)"], check=False)
    assert dead.returncode == 9
    with hold_run(tmp_path):
        pass


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"), hold_run(tmp_path / "file" / "run"):
        pass


def test_evaluations_after_a_checkpoint_are_cut(tmp_path: Path) -> None:
    for step in (5, 20, 100):
        write_evaluation(tmp_path, HELD_OUT, step, {"step": step})
    write_evaluation(tmp_path, "other", 100, {"step": 100})
    cut_evaluations(tmp_path, HELD_OUT, 20)
    assert [one["step"] for one in read_evaluations(tmp_path, HELD_OUT)] == [5, 20]
    assert has_evaluation(tmp_path, HELD_OUT, 20)
    assert not has_evaluation(tmp_path, HELD_OUT, 100)
    assert has_evaluation(tmp_path, "other", 100)
