"""One layer of the model with the way tokens reach back given: what passes over anything but whole rows are made of.

In `marin_model.model` a token stands where its row has it and reaches back along the row. Here it may follow tokens
that were computed before (`evals.cached`), or branch off from them (`evals.trees`): its position, its convolutions and
its attention come from outside, the rest is the model's. Routing is dropless, so that rows do not change each other.

Letters: B rows, n tokens, D hidden, N heads, M heads of stored keys and values, H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Float, Int

from marin_model import attention, experts, layers, sharding
from marin_model.config import ModelConfig
from marin_model.transport import Transport

Weights = Mapping[str, Array]
Conv = Callable[[str, Array, Array], Array]  # (site, input, taps) -> output
Attend = Callable[[Array, Array, Array], Array]  # (queries, keys, values) -> [B, n, N, H]


def block(
    x: Float[Array, "B n D"],
    weights: Weights,
    is_long: Bool[Array, ""],
    *,
    valid: Bool[Array, "B n"],
    position: Int[Array, "B n"],
    conv: Conv,
    attend: Attend,
    config: ModelConfig,
    mesh: Mesh | None,
) -> tuple[Float[Array, "B n D"], Float[Array, "B n M H"], Float[Array, "B n M H"]]:
    """As `marin_model.model.block`; beside the residual stream the keys and values, as they met in attention."""

    def convolved(site: str, x: Array, taps: str) -> Array:
        return conv(site, x, weights[taps]) if config.sconv and site in config.sconv_sites else x

    x = _over_tokens(x, mesh)
    a = _gated_norm(x, weights, "rms_attn", "attn_gated_norm", config)
    q, k, v = _queries_keys_values(a, weights, is_long, position, convolved, config)
    out = attention.exclude_self(attend(q, k, v), v)
    out = out * (2 * jax.nn.sigmoid(layers.dense(a, weights["attn.attn_gate"])))[..., None]
    x = x + convolved("attn", layers.dense(out.reshape(*out.shape[:2], -1), weights["attn.w_o"]), "sconv_attn.weight")
    u = _gated_norm(x, weights, "rms_mlp", "mlp_gated_norm", config)
    mixed, *_ = experts.mixture(
        u.reshape(-1, u.shape[-1]),
        weights,
        valid.reshape(-1),
        config=config,
        transport=Transport.dropless(),
        mesh=mesh,
    )
    return x + convolved("mlp", mixed.reshape(x.shape), "sconv_mlp.weight"), k, v


def _queries_keys_values(
    a: Float[Array, "B n D"],
    weights: Weights,
    is_long: Array,
    position: Array,
    convolved: Callable[[str, Array, str], Array],
    config: ModelConfig,
) -> tuple[Float[Array, "B n N H"], Float[Array, "B n M H"], Float[Array, "B n M H"]]:
    """As they meet in attention: convolved, normed, turned by position; of the heads that this kind of layer reads."""
    c = config
    batch, n = a.shape[:2]
    q = layers.dense(a, weights["attn.w_q"]).reshape(batch, n, c.num_heads, c.head_dim)
    k, v = layers.dense(a, weights["attn.w_k"]), layers.dense(a, weights["attn.w_v"])
    k = convolved("k", k, "attn.sconv_k.weight")
    slots = lcm(c.local_kv_heads, c.global_kv_heads)
    slot = jnp.arange(slots, dtype=jnp.int32)
    read = jnp.where(is_long, slot // (slots // c.global_kv_heads), slot // (slots // c.local_kv_heads))
    k, v = (x.reshape(batch, n, c.num_kv_heads, c.head_dim)[:, :, read] for x in (k, v))
    turn = layers.rotation(c.max_seq_len, c.head_dim, c.rope.theta)
    cos, sin = (x[position.reshape(-1)] for x in turn)  # [B·n, H/4]
    turn = layers.Rotation(jnp.where(is_long, 1.0, cos), jnp.where(is_long, 0.0, sin))

    def turned(x: Array) -> Array:
        return layers.rotate(layers.unit_norm(x).reshape(1, batch * n, *x.shape[2:]), turn).reshape(x.shape)

    return turned(q) * c.qk_mult, turned(k), v


def _gated_norm(x: Array, weights: Weights, norm: str, gate: str, config: ModelConfig) -> Array:
    names = (f"{norm}.weight", f"{gate}.w_down", f"{gate}.w_up")
    return layers.gated_norm(x, *(weights[name] for name in names), epsilon=config.layer_norm_eps)


def _over_tokens(x: Array, mesh: Mesh | None) -> Array:
    return x if mesh is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, sharding.TOKENS))
