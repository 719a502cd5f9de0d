"""The whole model, from tokens to loss, as pure functions of a flat dict of arrays; read from top to bottom.

    x = gated_norm(embedding)
    every layer:  x = x + conv(attention(gated_norm(x)))
                  x = x + conv(mixture(gated_norm(x)))
    hidden = gated_norm(x);  logits = hidden · output_proj

Weights are float32 masters by flat name (`marin_model.flops.parameter_shapes`) and are cast to the compute dtype, all
of them, before anything is computed. Layers are scanned: one compiled body, the kind of a layer is data. The router
biases go through that scan as inputs, and the quantiles that make the next step's come out of it.

Source: experiments/grug/moe_hero_ep/model.py of marin-community/marin.

Letters: B batch, S sequence, T = B·S tokens, D hidden, E experts, K chosen a token, V vocabulary.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from marin_model import attention, checks, experts, layers, loss, sharding
from marin_model.config import ModelConfig
from marin_model.router import Routed
from marin_model.transport import Transport

BLOCKS = "blocks."  # flat names of the stacked layers begin with it
# Primitives whose results are saved for the backward pass, beside what `layers.keep` marks.
DEAR = ("dot_general", "ragged_dot_general", "sort", "top_k", "all_to_all", "all_gather", "reduce_scatter")

Params = Mapping[str, Array]


class Computed(NamedTuple):
    """What the layers make of a batch."""

    hidden: Float[Array, "B S D"]  # compute dtype, zero at padding
    stats: experts.ExpertStats  # a leading layer axis on every array
    routed: Routed | None  # likewise; None where it was not asked for


class Measured(NamedTuple):
    """What a training step wants to know beside its loss. Means are over the weights of the batch."""

    cross_entropy: Float[Array, ""]
    z_loss: Float[Array, ""]
    counts: Int[Array, "layers E"]
    sender_dropped: Int[Array, " layers"]
    receiver_dropped: Int[Array, " layers"]
    qb_betas: Float[Array, "layers E"]  # float32, `router.router_bias` makes the next step's bias of them


def training_loss(
    params: Params,
    tokens: Int[Array, "B S"],
    loss_weight: Float[Array, "B S"],
    segment_ids: Int[Array, "B S"] | None,
    *,
    config: ModelConfig,
    z_loss: float,
    transport: Transport,
    mesh: jax.sharding.Mesh | None = None,
    compute_dtype: Any = jnp.float32,
    remat: bool = False,
) -> tuple[Float[Array, ""], Measured]:
    """Loss of a batch, z-loss included, and what was measured on the way. To be differentiated in `params`."""
    params = cast(params, compute_dtype)
    seen = transformer(params, tokens, segment_ids, config=config, transport=transport, mesh=mesh, remat=remat)
    of = loss.weighted_loss(seen.hidden, params["output_proj"], tokens, loss_weight, z_loss=z_loss)
    s = seen.stats
    return of.loss, Measured(of.cross_entropy, of.z_loss, s.counts, s.sender_dropped, s.receiver_dropped, s.qb_beta)


def cast(params: Params, dtype: Any) -> dict[str, Array]:
    """The compute copy: every array in the compute dtype, norm gains, convolution taps and router bias too."""
    return {name: p.astype(dtype) for name, p in params.items()}


def transformer(
    params: Params,
    tokens: Int[Array, "B S"],
    segment_ids: Int[Array, "B S"] | None,
    *,
    config: ModelConfig,
    transport: Transport,
    mesh: jax.sharding.Mesh | None = None,
    remat: bool = False,
    keep_routes: bool = False,
) -> Computed:
    """Tokens to hidden states. `params` in the compute dtype.

    `remat`: save only each layer's input for the backward pass and compute the rest again. Otherwise what is dear is
    saved, and what is a pass over an array (norms, gates, convolutions) is computed again: it costs less than memory.
    """
    checks.check_divides(tokens.shape[0], mesh)
    docs = layers.documents(segment_ids, tokens.shape)
    of_layer = partial(block, docs=docs, config=config, transport=transport, mesh=mesh)

    def step(x: Array, layer: tuple[Params, Array]) -> tuple[Array, tuple[experts.ExpertStats, Routed | None]]:
        x, routed, stats = of_layer(x, *layer)
        return x, (stats, routed if keep_routes else None)

    step = jax.checkpoint(step, prevent_cse=False, policy=None if remat else _dear)
    x = embed(params, tokens, config=config)
    x, (stats, routed) = jax.lax.scan(step, x, (stacked(params), long_layers(config)))
    return Computed(final_norm(params, x, docs.valid, config=config), stats, routed)


def embed(params: Params, tokens: Int[Array, "B S"], *, config: ModelConfig) -> Float[Array, "B S D"]:
    """The residual stream's start: a token's row, normed and gated."""
    return _gated_norm(params["token_embed"][tokens], params, "embed_norm", "embed_gated_norm", config)


def block(
    x: Float[Array, "B S D"],
    weights: Params,
    is_long: Bool[Array, ""],
    *,
    docs: layers.Documents,
    config: ModelConfig,
    transport: Transport,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[Float[Array, "B S D"], Routed, experts.ExpertStats]:
    """One layer. `weights`: its arrays, names without `blocks.`."""
    x, weights = _over_tokens(x, mesh), _with_whole_taps(weights, mesh)
    a = _gated_norm(x, weights, "rms_attn", "attn_gated_norm", config)
    branch = attention.attention(a, weights, docs, is_long, config=config)
    x = x + _branch_conv(branch, weights, "attn", docs, config)
    u = _gated_norm(x, weights, "rms_mlp", "mlp_gated_norm", config)
    branch, routed, stats = experts.mixture(
        u.reshape(-1, u.shape[-1]), weights, docs.valid.reshape(-1), config=config, transport=transport, mesh=mesh
    )
    x = x + _branch_conv(branch.reshape(x.shape), weights, "mlp", docs, config)
    return x, routed, stats


def final_norm(
    params: Params, x: Float[Array, "B S D"], valid: Bool[Array, "B S"], *, config: ModelConfig
) -> Float[Array, "B S D"]:
    """Hidden states that the LM head reads, zero at padding."""
    hidden = _gated_norm(x, params, "final_norm", "final_gated_norm", config)
    return jnp.where(valid[..., None], hidden, jnp.zeros((), x.dtype))


def stacked(params: Params) -> dict[str, Array]:
    """The arrays of all layers, names without `blocks.`; the leading axis is the layer."""
    return {name.removeprefix(BLOCKS): p for name, p in params.items() if name.startswith(BLOCKS)}


def long_layers(config: ModelConfig) -> Bool[Array, " layers"]:
    """Which layers are full-causal."""
    return jnp.asarray(np.isin(np.arange(config.num_layers), config.long_layers))


def _dear(primitive: Any, *_: Any, **parameters: Any) -> bool:
    return primitive.name in DEAR or parameters.get("name") == layers.KEPT


def _gated_norm(x: Array, weights: Params, norm: str, gate: str, config: ModelConfig) -> Array:
    names = (f"{norm}.weight", f"{gate}.w_down", f"{gate}.w_up")
    return layers.gated_norm(x, *(weights[name] for name in names), epsilon=config.layer_norm_eps)


def _branch_conv(branch: Array, weights: Params, site: str, docs: layers.Documents, config: ModelConfig) -> Array:
    if not config.sconv or site not in config.sconv_sites:
        return branch
    return layers.short_conv(branch, weights[f"sconv_{site}.weight"], docs.start)


def _with_whole_taps(weights: Params, mesh: jax.sharding.Mesh | None) -> Params:
    """Every device has all taps of the convolutions; XLA would gather them one by one."""
    if mesh is None:
        return weights
    everywhere = jax.sharding.NamedSharding(mesh, sharding.REPLICATED)
    return {n: jax.lax.with_sharding_constraint(w, everywhere) if "sconv" in n else w for n, w in weights.items()}


def _over_tokens(x: Array, mesh: jax.sharding.Mesh | None) -> Array:
    """Hold the residual stream to whole sequences a device; XLA could choose otherwise."""
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, sharding.TOKENS))
