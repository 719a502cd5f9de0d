"""A model's loss on held-out sequences, as it was trained and with every assignment computed.

As trained, tokens go through the pooled-wave transport with its capacities, so some assignments are dropped; dropless,
all are computed. The router bias is the one that the last update was made with, as in the published evaluations. A
shard evaluates one sequence at a time, as the run's GPUs did, so drops depend on the sequences of one's group alone.

Source: levanter's tagged evaluator with its settings in the W&B config of hero-12d8b6f0-dee637 (64 sequences a rack).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marin_model.model import training_loss
from marin_model.training import Batch
from marin_model.transport import Transport
from repro.ladder.recipe import Recipe
from repro.ladder.step import pooled_wave
from repro.ladder.world import ALONE, World

Evaluate = Callable[[dict[str, jax.Array]], dict[str, Any]]


class Sums(NamedTuple):
    """Of one batch."""

    loss: jax.Array  # [] weighted sum of cross-entropies, nats
    dropped: jax.Array  # [] int32 assignments


def make_evaluation(recipe: Recipe, held_out: Batch, world: World = ALONE) -> Evaluate:
    """Parameters -> losses in nats a token over the held-out sequences [n, S], both ways, ready to be written.

    Each row of devices of a mesh evaluates a group of sequences of its own.
    """
    group = recipe.gpus // recipe.racks
    batches = [world.spread(batch) for batch in _batches(held_out, world.groups * group)]
    weight = float(np.sum(held_out.loss_weight))
    chosen = held_out.tokens.size * recipe.model.num_experts_per_token * recipe.model.num_layers
    ways = {"as_trained": pooled_wave(recipe, groups=world.groups), "dropless": Transport.dropless()}
    sums_of = {name: _compile(recipe, transport, world) for name, transport in ways.items()}

    def evaluate(params: dict[str, jax.Array]) -> dict[str, Any]:
        result: dict[str, Any] = {"scored_tokens": int(np.count_nonzero(held_out.loss_weight))}
        for name, sums in sums_of.items():
            done = jax.device_get([sums(params, batch) for batch in batches])
            loss = float(np.sum([np.float64(one.loss) for one in done]) / weight)
            result[name] = {"loss": loss, "drop_fraction": float(sum(int(one.dropped) for one in done) / chosen)}
        return result

    return evaluate


def _compile(recipe: Recipe, transport: Transport, world: World) -> Callable[[dict[str, jax.Array], Batch], Sums]:
    def sums(params: dict[str, jax.Array], batch: Batch) -> Sums:
        loss, seen = training_loss(
            params,
            batch.tokens,
            batch.loss_weight,
            batch.segment_ids,
            config=recipe.model,
            z_loss=0.0,
            transport=transport,
            mesh=world.mesh,
            compute_dtype=jnp.dtype(recipe.compute_dtype),
        )
        return Sums(loss * jnp.sum(batch.loss_weight), jnp.sum(seen.sender_dropped + seen.receiver_dropped))

    return jax.jit(sums, out_shardings=world.whole())


def _batches(held_out: Batch, size: int) -> list[Batch]:
    """Batches of `size` sequences; the last is filled up with padding, which has no weight and takes no capacity."""
    count = len(held_out.tokens)
    missing = -count % size

    def cut(array: np.ndarray, fill: int) -> list[np.ndarray]:
        padded = np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])
        return np.split(padded, len(padded) // size)

    parts: Any = zip(
        cut(np.asarray(held_out.tokens), 0),
        cut(np.asarray(held_out.loss_weight), 0),
        cut(np.asarray(held_out.segment_ids), -1),
        strict=True,
    )
    return [Batch(*part) for part in parts]
