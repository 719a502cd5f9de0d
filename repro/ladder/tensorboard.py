"""A run's metrics and evaluations as TensorBoard events, beside metrics.jsonl, which stays the record. No JAX.

Scalars carry the names of metrics.jsonl, groups joined by a slash (`grad_norms/router`); those of an evaluation begin
with `heldout/`. Steps are zero-based, as in the files themselves.
What an earlier session wrote beyond the step that a resume goes back to is hidden from TensorBoard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from repro.ladder.extras import require

EVENTS = "tensorboard"  # folder in the run's
WAYS = ("as_trained", "dropless")  # of an evaluation


class Tracker(NamedTuple):
    """What training calls with each row of metrics.jsonl, and with each evaluation."""

    on_step: Callable[[Mapping[str, Any]], None]
    on_evaluation: Callable[[Mapping[str, Any]], None]


@contextmanager
def open_tensorboard(run: Path) -> Iterator[Tracker]:
    """Write events into the run's folder `tensorboard`. Raises MissingExtraError without the extra [track]."""
    module = require("tensorboardX", "--tensorboard")
    writers: list[Any] = []

    def add(prefix: str, values: Mapping[str, Any], step: int) -> None:
        if not writers:  # only now is it known where the run begins or goes on
            suffix = f".from-step-{step}"  # two sessions of one second would share a name
            writers.append(module.SummaryWriter(str(run / EVENTS), purge_step=step, filename_suffix=suffix))
        for name, value in scalars(values):
            writers[0].add_scalar(prefix + name, value, step)

    try:
        yield Tracker(
            on_step=lambda row: add("", {name: row[name] for name in row if name != "step"}, row["step"]),
            on_evaluation=lambda result: add("heldout/", {way: result[way] for way in WAYS}, result["step"]),
        )
    finally:
        for writer in writers:
            writer.close()


def scalars(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number among values, with its path; None and text are left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in scalars(value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, float(value)
