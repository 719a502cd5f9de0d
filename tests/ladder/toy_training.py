"""A toy run for the tests of training: a scale of seconds, data from nowhere, and a process that dies on demand.

python toy_training.py OUT [--resume] [--die-before-step N] [--die-while-saving N] [--stop-after-step N] [--steps N]
    [--scale FILE] [--rung RUNG] [--save-every SECONDS]
    [--mesh RxDxE] [--coordinator HOST:PORT --processes N --process I]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marin_model.training import Batch
from repro.errors import MarinReproError
from repro.ladder import train as training
from repro.ladder import world as world_of_run
from repro.ladder.checkpoint import Checkpoints
from repro.ladder.departures import Departure
from repro.ladder.meshes import parse_mesh
from repro.ladder.recipe import Recipe, resolve_recipe
from repro.ladder.world import connected, join_arguments, make_world

SCALE = Path(__file__).with_name("toy.toml")


def toy_recipe(scale: Path = SCALE, rung: str = "d768") -> Recipe:
    return resolve_recipe(rung, str(scale))


class ToyData:
    """Sequences that count upwards from a random start by a random stride, in documents of random length."""

    identity: Mapping[str, Any] = {"source": "toy"}
    departures = (Departure("corpus", "store_81e7e39a", "toy"),)

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def batch(self, step: int, first: int = 0, count: int | None = None) -> Batch:
        rows = slice(first, None if count is None else first + count)
        return Batch(*(field[rows] for field in self._rows(np.random.default_rng((1, step)), self.recipe.batch_size)))

    def held_out(self, tokens: int | None) -> Batch:
        return self._rows(np.random.default_rng(2), (tokens or 256) // self.recipe.seq_len)

    def _rows(self, draw: np.random.Generator, rows: int) -> Batch:
        length, vocabulary = self.recipe.seq_len, self.recipe.model.vocab_size
        start, stride = draw.integers(vocabulary, size=(rows, 1)), draw.integers(1, 4, size=(rows, 1))
        tokens = ((start + stride * np.arange(length)) % vocabulary).astype(np.int32)
        segments = np.broadcast_to(np.arange(length) >= draw.integers(1, length, size=(rows, 1)), tokens.shape)
        weight = np.ones(tokens.shape, np.float32)
        weight[:, -1] = 0
        return Batch(tokens, weight, segments.astype(np.int32))


class DyingData(ToyData):
    """Data whose process is killed, or asked to stop, when it is asked for a certain step."""

    def __init__(self, recipe: Recipe, die: int | None, stop: int | None) -> None:
        super().__init__(recipe)
        self.die, self.stop = die, stop

    def batch(self, step: int, first: int = 0, count: int | None = None) -> Batch:
        # The batch of the first step is asked for twice: once to compile.
        if step == self.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self.stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().batch(step, first, count)


def die_while_saving(steps_completed: int) -> None:
    """Kill the process when a save of that step has begun and is not finished."""
    save = Checkpoints.save

    def dying(self: Checkpoints, saved: Any) -> None:
        save(self, saved)
        if int(saved.state.step) == steps_completed:
            assert any("tmp" in path.name for path in self.folder.iterdir()), "the save was over too soon"
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.save = dying  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--die-before-step", type=int)
    parser.add_argument("--die-while-saving", type=int)
    parser.add_argument("--stop-after-step", type=int)
    parser.add_argument("--scale", type=Path, default=SCALE)
    parser.add_argument("--rung", default="d768")
    parser.add_argument("--save-every", type=float, default=training.SAVE_EVERY)
    parser.add_argument("--mesh")
    parser.add_argument("--coordinator")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--process", type=int)
    given = parser.parse_args()
    if given.die_while_saving is not None:
        die_while_saving(given.die_while_saving)
    world_of_run.HEARTBEAT = 10  # so that a dead process is noticed soon
    training.code_digest = lambda: "toy"  # so that editing the source during a test run is no other run
    recipe = toy_recipe(given.scale, given.rung)
    data = DyingData(recipe, given.die_before_step, given.stop_after_step)
    try:
        with connected(join_arguments(given.coordinator, given.processes, given.process)):
            world = make_world(recipe, parse_mesh(given.mesh) if given.mesh else None)
            how: dict[str, Any] = {"resume": given.resume, "steps": given.steps, "save_every": given.save_every}
            training.train(recipe, data, given.out, world=world, **how)
    except KeyboardInterrupt:
        return 130
    except MarinReproError as error:
        print(f"marin-repro: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
