"""Run directories as training leaves them, without the training: losses by a law, metrics of any shape."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from repro import runs
from repro.files import canonical_json
from repro.ladder.recipe import Recipe

E, A, ALPHA = 0.9, 30.0, 0.12
ENTROPY = {"rate": E, "unigram": 2.8}

Law = Callable[[int], float]  # FLOPs without the LM head: loss


def law(flops: int) -> float:
    return E + A * flops**-ALPHA


def bump(x: float) -> float:
    """A gradient norm over progress x, largest at 0.3."""
    return 1 + math.exp(-(((x - 0.3) / 0.2) ** 2))


def write_run(folder: Path, recipe: Recipe, loss: Law = law, *, metrics: bool = False, **identity: Any) -> Path:
    """A run's directory; with metrics on request, a falling loss and a gradient norm like `bump`."""
    made = {
        "rung": recipe.rung,
        "scale": "smoke",
        "recipe": asdict(recipe),
        "data": {"store": "aa", "tokenizer": "bytes", "phases": list(recipe.mixture_phase_starts)},
        "entropy": ENTROPY,
        "code": "cc",
        "seed": 0,
        "departures": [one._asdict() for one in recipe.departures],
    }
    content = json.loads(canonical_json(made | identity))
    runs.write_manifest(folder, runs.Manifest(identity=content))
    for step in recipe.evaluation_steps:
        value = loss(step * recipe.flops_per_step_without_lm_head)
        result = {
            "steps_completed": step,
            "fraction": step / recipe.steps,
            "dropless": {"loss": value},
            "as_trained": {"loss": value + 0.1},
        }
        runs.write_evaluation(folder, runs.HELD_OUT, step, result)
    for step in range(recipe.steps if metrics else 0):
        x = (step + 0.5) / recipe.steps
        row = {"step": step, "ce": 3 - x, "grad_norm": bump(x)}
        runs.append_metrics(folder, {**row, "sender_drop_fraction": 0.1, "receiver_drop_fraction": 0.2})
    return folder
