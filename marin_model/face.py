"""What evaluation, parity checks and readers call: a model and a batch in, hidden states, logits or a loss out.

Thin: input is checked on the host, the rest is `marin_model.model`, compiled once for a configuration and shape.
Everything is differentiable in the model's arrays, through `nnx.grad` or `jax.grad` alike. Defaults are float32 and
dropless; a transport with drops, a mesh and bfloat16 can be asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin_model import checks
from marin_model import model as mathematics
from marin_model.arrays import Model, to_named_arrays
from marin_model.config import ModelConfig
from marin_model.transport import Transport


@partial(
    jax.tree_util.register_dataclass, data_fields=("scores", "selected", "weights", "counts", "qb_beta"), meta_fields=()
)
@dataclass(frozen=True)
class Routing:
    """Routing of all layers, a leading layer axis on every array; `routing[i]` is layer i's. T = B·S, row after row."""

    scores: Float[Array, "layers T E"]  # float32, unbiased
    selected: Int[Array, "layers T K"]  # int32, by descending biased score; -1 at padding
    weights: Float[Array, "layers T K"]  # float32; zero at padding
    counts: Int[Array, "layers E"]  # int32, assignments a layer's expert was chosen for
    qb_beta: Float[Array, "layers E"]  # float32, the quantiles that make the next step's router bias

    def __getitem__(self, layer: int) -> "Routing":
        return Routing(*(getattr(self, field.name)[layer] for field in fields(self)))

    def __len__(self) -> int:
        return self.counts.shape[0]

    def __iter__(self) -> "Iterator[Routing]":
        return (self[layer] for layer in range(len(self)))


@partial(jax.tree_util.register_dataclass, data_fields=("hidden", "routing"), meta_fields=())
@dataclass(frozen=True)
class Forward:
    """What a model makes of a batch."""

    hidden: Float[Array, "B S D"]  # after the final norm, in the compute dtype; zero at padding
    routing: Routing


def forward(
    model: Model,
    tokens: Int[Array, "B S"],
    segment_ids: Int[Array, "B S"] | None = None,
    *,
    transport: Transport | None = None,
    mesh: jax.sharding.Mesh | None = None,
    compute_dtype: Any = jnp.float32,
) -> Forward:
    """Hidden states and routing. Segment ids are contiguous runs, negative at padding; None: one document a row.

    ValueError for ids outside the vocabulary, segments that are no runs, and batches that do not divide the mesh.
    """
    checks.check_batch(model.config, tokens, segment_ids)
    checks.check_divides(tokens.shape[0], mesh)
    return _forward(
        to_named_arrays(model),
        tokens,
        segment_ids,
        model.config,
        transport or Transport.dropless(),
        mesh,
        compute_dtype,
    )


def logits(model: Model, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """Logits of hidden states, float32. All of them at once: for a loss, `next_token_loss` never holds them."""
    head = to_named_arrays(model)["output_proj"].astype(hidden.dtype)
    return jnp.einsum("...d,dv->...v", hidden, head, preferred_element_type=jnp.float32)


def next_token_loss(
    model: Model,
    tokens: Int[Array, "B S"],
    loss_weight: Float[Array, "B S"],
    segment_ids: Int[Array, "B S"] | None = None,
    z_loss: float = 1e-4,
    *,
    transport: Transport | None = None,
    mesh: jax.sharding.Mesh | None = None,
    compute_dtype: Any = jnp.float32,
) -> Float[Array, ""]:
    """Weighted mean of cross-entropy + z_loss · log-sum-exp², position t scored on token t + 1. Errors as `forward`."""
    checks.check_batch(model.config, tokens, segment_ids, loss_weight)
    checks.check_divides(tokens.shape[0], mesh)
    return _loss(
        to_named_arrays(model), tokens, loss_weight, segment_ids, z_loss,
        model.config, transport or Transport.dropless(), mesh, compute_dtype,
    )  # fmt: skip


@partial(jax.jit, static_argnums=(3, 4, 5, 6))
def _forward(
    arrays: dict[str, Array],
    tokens: Array,
    segment_ids: Array | None,
    config: ModelConfig,
    transport: Transport,
    mesh: jax.sharding.Mesh | None,
    dtype: Any,
) -> Forward:
    seen = mathematics.transformer(
        mathematics.cast(arrays, dtype),
        tokens,
        segment_ids,
        config=config,
        transport=transport,
        mesh=mesh,
        keep_routes=True,
    )
    assert seen.routed is not None
    routed = seen.routed
    return Forward(
        seen.hidden,
        Routing(routed.scores, routed.selected, routed.weights, seen.stats.counts, seen.stats.qb_beta),
    )


@partial(jax.jit, static_argnums=(5, 6, 7, 8))
def _loss(
    arrays: dict[str, Array],
    tokens: Array,
    loss_weight: Array,
    segment_ids: Array | None,
    z_loss: float,
    config: ModelConfig,
    transport: Transport,
    mesh: jax.sharding.Mesh | None,
    dtype: Any,
) -> Array:
    total, _ = mathematics.training_loss(
        arrays, tokens, loss_weight, segment_ids,
        config=config, z_loss=z_loss, transport=transport, mesh=mesh, compute_dtype=dtype,
    )  # fmt: skip
    return total
