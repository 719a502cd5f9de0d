"""The tiny model that goldens 01, 02, 04_model and 06 were computed with, and one compiled look at all it computes.

Its random arrays are drawn, as the original drew them; what was changed by hand afterwards is stored.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from marin_model import layers, loss, model, router
from marin_model.config import ModelConfig
from marin_model.experts import ExpertStats
from marin_model.initial import init_arrays
from marin_model.transport import Transport

GOLDENS = Path(__file__).parent.parent / "goldens"
ABOUT = json.loads((GOLDENS / "01_tiny_model.json").read_text())
CONFIG = ModelConfig.from_dict(ABOUT["config"])
DROPLESS = Transport.dropless()


@cache
def drawn() -> dict[str, Array]:
    """The model as drawn from key 0."""
    return init_arrays(CONFIG, jax.random.PRNGKey(0))


@cache
def params() -> dict[str, Array]:
    """The golden's model: router times four; gains, taps, head gates and biases as stored."""
    changed = {name: jnp.asarray(value) for name, value in np.load(GOLDENS / "01_tiny_params.npz").items()}
    return {**drawn(), "blocks.mlp.router": 4 * drawn()["blocks.mlp.router"], **changed}


class Batch(NamedTuple):
    """What a case feeds the model."""

    tokens: Array
    loss_weight: Array
    segment_ids: Array | None


def golden(name: str) -> tuple[dict[str, np.ndarray], Batch]:
    """A golden file's arrays, and its batch."""
    arrays = dict(np.load(GOLDENS / f"{name}.npz"))
    segment_ids = jnp.asarray(arrays["segment_ids"], jnp.int32) if "segment_ids" in arrays else None
    return arrays, Batch(jnp.asarray(arrays["tokens"], jnp.int32), jnp.asarray(arrays["loss_weight"]), segment_ids)


class Seen(NamedTuple):
    """All that a forward pass computes."""

    layer_out: Array  # [layers, B, S, D] residual stream after each block
    hidden: Array  # [B, S, D]
    routed: router.Routed  # of every layer
    stats: ExpertStats
    betas: dict[str, Array]  # [layers, E] by estimator
    token_loss: loss.TokenLoss  # [B·S]
    loss: loss.Loss


@jax.jit
def see(params: dict[str, Array], batch: Batch) -> Seen:
    """The forward pass, one layer's results beside the other's."""
    docs = layers.documents(batch.segment_ids, batch.tokens.shape)

    def step(x: Array, layer: Any) -> tuple[Array, Any]:
        x, routed, stats = model.block(x, *layer, docs=docs, config=CONFIG, transport=DROPLESS)
        valid, k = docs.valid.reshape(-1), CONFIG.num_experts_per_token
        betas = {
            "topk": router.qb_betas_topk(routed.margins, valid, k=k, shards=1),
            "hist": router.qb_betas_hist(routed.margins, valid, k=k, bins=CONFIG.qb_hist_bins),
        }
        return x, (x, routed, stats, betas)

    start = model.embed(params, batch.tokens, config=CONFIG)
    x, (after, routed, stats, betas) = jax.lax.scan(step, start, (model.stacked(params), model.long_layers(CONFIG)))
    hidden = model.final_norm(params, x, docs.valid, config=CONFIG)
    head = params["output_proj"]
    labels = jnp.roll(batch.tokens, -1, axis=1).reshape(-1)
    return Seen(
        after,
        hidden,
        routed,
        stats,
        betas,
        loss.token_loss(hidden.reshape(-1, CONFIG.hidden_dim), head, labels),
        loss.weighted_loss(hidden, head, batch.tokens, batch.loss_weight, z_loss=1e-4),
    )
