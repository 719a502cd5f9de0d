"""A run directory as training leaves it, of a model that was drawn and never trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from marin_model.flops import parameter_shapes
from marin_model.training import TrainState
from repro import runs
from repro.ladder.checkpoint import Saved, open_checkpoints
from repro.ladder.recipe import Recipe, resolve_recipe

SCALE = Path(__file__).with_name("toy.toml")
BYTES = "bytes (258 ids, BOS 256, EOS 257)"


def toy_recipe() -> Recipe:
    return resolve_recipe("d1024", str(SCALE))


def toy_identity(**changed: Any) -> dict[str, Any]:
    """What a manifest says of the run."""
    recipe = toy_recipe()
    settings = {**asdict(recipe), "scale": "toy"}
    del settings["departures"]  # beside the recipe, not in it
    return {
        "rung": recipe.rung,
        "scale": "toy",
        "recipe": settings,
        "departures": [departure._asdict() for departure in recipe.departures],
        "data": {"tokenizer": BYTES},
        "seed": 0,
        **changed,
    }


def write_run(
    folder: Path, steps: tuple[int, ...] = (3,), identity: Mapping[str, Any] | None = None, context: int = 16
) -> Path:
    """A run with checkpoints after so many updates; each has weights, saved and pending router bias of its own."""
    recipe = toy_recipe()
    said = identity or toy_identity()
    if context != recipe.model.max_seq_len:
        said["recipe"]["model"]["max_seq_len"] = context
    runs.write_manifest(folder, runs.Manifest(identity=said))
    with open_checkpoints(folder, keep=len(steps)) as checkpoints:
        for step in steps:
            checkpoints.save(_state(recipe, step))
            checkpoints.wait()
    return folder


def _state(recipe: Recipe, step: int) -> Saved:
    draw = np.random.default_rng(step)
    params: dict[str, Any] = {}
    for name, shape in parameter_shapes(recipe.model).items():
        noise = draw.normal(size=shape).astype(np.float32)
        params[name] = 1 + 0.1 * noise if name.endswith("norm.weight") else 0.3 * noise
    pending: Any = draw.normal(size=(recipe.model.num_layers, recipe.model.num_experts)).astype(np.float32)
    moments: Any = {name: np.zeros_like(array) for name, array in params.items()}
    return Saved(TrainState(params, moments, pending, np.int32(step)), {"output_proj": np.float32(1)})  # type: ignore[arg-type]
