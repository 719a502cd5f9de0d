"""An evaluation as a file of its run: made once, kept, and found again by its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evals.loading import LoadedRun
from repro import runs
from repro.files import canonical_json

Json = Mapping[str, Any]


class Evaluation(NamedTuple):
    """A result file, and whether it was there already, of the same inputs."""

    path: Path
    result: Json
    unchanged: bool


def find_or_make(
    run: LoadedRun,
    label: str,
    inputs: Json,
    make: Callable[[], Json],
    *,
    force: bool,
    is_whole: Callable[[Json], bool] = lambda result: True,
) -> Evaluation:
    """RUN/evals/LABEL-STEP.json where it is of these inputs and whole, unless `force`; else what `make` returns, kept.

    Of several processes the first looks and writes; what the others return has perhaps no result. Raises UsageError
    where they have different inputs.
    """
    run.world.check_alike("The inputs of the evaluation", canonical_json(dict(inputs)))
    path = runs.evaluation_path(run.folder, label, run.steps_completed)
    there = [] if force else [one for one in runs.read_evaluations(run.folder, label) if one.get("inputs") == inputs]
    found = next(filter(is_whole, there), None)
    if run.world.first_says(found is not None):
        return Evaluation(path, found or {}, True)
    result = {**make(), "inputs": inputs}
    run.world.first_does(lambda: runs.write_evaluation(run.folder, label, run.steps_completed, result))
    return Evaluation(path, result, False)
