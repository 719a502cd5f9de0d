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

Evaluate = Callable[[dict[str, jax.Array]], dict[str, Any]]


class Sums(NamedTuple):
    """Of one batch."""

    loss: jax.Array  # [] weighted sum of cross-entropies, nats
    dropped: jax.Array  # [] int32 assignments


def make_evaluation(recipe: Recipe, held_out: Batch) -> Evaluate:
    """Parameters -> losses in nats a token over the held-out sequences [n, S], both ways, ready to be written."""
    group = recipe.gpus // recipe.racks
    batches = _batches(held_out, group)
    weight = float(np.sum(held_out.loss_weight))
    chosen = held_out.tokens.size * recipe.model.num_experts_per_token * recipe.model.num_layers
    ways = {"as_trained": pooled_wave(recipe, groups=1), "dropless": Transport.dropless()}
    sums_of = {name: _compile(recipe, transport) for name, transport in ways.items()}

    def evaluate(params: dict[str, jax.Array]) -> dict[str, Any]:
        result: dict[str, Any] = {"scored_tokens": int(np.count_nonzero(held_out.loss_weight))}
        for name, sums in sums_of.items():
            done = jax.device_get([sums(params, batch) for batch in batches])
            loss = float(np.sum([np.float64(one.loss) for one in done]) / weight)
            result[name] = {"loss": loss, "drop_fraction": float(sum(int(one.dropped) for one in done) / chosen)}
        return result

    return evaluate


def pooled_wave(recipe: Recipe, *, groups: int) -> Transport:
    """The run's transport over the shards of a rack, virtual where there are fewer devices."""
    model = recipe.model
    return Transport.pooled_wave(
        recipe.gpus // recipe.racks,
        sender_factor=model.sender_capacity_factor,
        receiver_factor=model.capacity_factor,
        waves=model.num_expert_waves,
        groups=groups,
    )


def _compile(recipe: Recipe, transport: Transport) -> Callable[[dict[str, jax.Array], Batch], Sums]:
    def sums(params: dict[str, jax.Array], batch: Batch) -> Sums:
        loss, seen = training_loss(
            params,
            batch.tokens,
            batch.loss_weight,
            batch.segment_ids,
            config=recipe.model,
            z_loss=0.0,
            transport=transport,
            compute_dtype=jnp.dtype(recipe.compute_dtype),
        )
        return Sums(loss * jnp.sum(batch.loss_weight), jnp.sum(seen.sender_dropped + seen.receiver_dropped))

    return jax.jit(sums)


def _batches(held_out: Batch, size: int) -> list[Batch]:
    """Batches of `size` sequences; the last is filled up with padding, which has no weight and takes no capacity."""
    count = len(held_out.tokens)
    missing = -count % size

    def cut(array: np.ndarray, fill: int) -> list[np.ndarray]:
        padded = np.concatenate([array, np.full((missing, *array.shape[1:]), fill, array.dtype)])
        return np.split(padded, len(padded) // size)

    parts = zip(
        cut(np.asarray(held_out.tokens), 0),
        cut(np.asarray(held_out.loss_weight), 0),
        cut(np.asarray(held_out.segment_ids), -1),
        strict=True,
    )
    return [Batch(*(jnp.asarray(array) for array in part)) for part in parts]
