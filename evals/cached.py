"""The model's forward pass in pieces: what a piece leaves behind is kept, and the next one goes on from it.

Kept of a token: in every layer its key, turned and normed, and its value. Kept of a row beside these: the inputs of the
short convolutions at its last `sconv_kernel − 1` tokens. Then a piece of n tokens computes what a pass over the whole
row would compute for them (`tests/evals/test_cached.py` holds both equal), at the cost of n tokens.

A kept row may be gone on from in several ways at once, its *branches*: answers to one question, say. Branches see the
row and themselves, not each other; the row's keys and values are not copied for them.

Routing is dropless, so that rows do not change each other. Layers are scanned, as in `marin_model.model`.

Letters: R rows, G branches of each, P tokens kept, n tokens of a piece, D hidden, N heads, M heads of kept keys and
values, H head width, C channels of a convolution, J its taps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import lcm, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Float, Int

from marin_model import attention, experts, layers, model, sharding
from marin_model.config import ModelConfig
from marin_model.transport import Transport

Weights = Mapping[str, Array]
Conv = Callable[[str, Array, str], Array]  # (site, input, name of its taps) -> output


class Kept(NamedTuple):
    """What rows leave behind, a leading layer axis on all but `length`. In the compute dtype."""

    k: Float[Array, "layers R P M H"]
    v: Float[Array, "layers R P M H"]
    convolved: dict[str, Float[Array, "layers R J C"]]  # by site: inputs at the last taps − 1 tokens, zero before them
    length: Int[Array, " R"]  # int32 tokens of each row; what lies beyond is never read


class Piece(NamedTuple):
    """Tokens that are computed now: those of R rows from their start, or of G branches of each of R kept rows."""

    valid: Bool[Array, "B n"]  # B = R·G; false at padding, which comes last
    position: Int[Array, "B n"]  # int32, in the row
    counts: Int[Array, " B"]  # int32, valid tokens


@partial(jax.jit, static_argnames=("config", "mesh"))
def begin(
    params: Weights, tokens: Int[Array, "R n"], counts: Int[Array, " R"], *, config: ModelConfig, mesh: Mesh | None
) -> tuple[Float[Array, "R n D"], Kept]:
    """Rows from their start: hidden states after the final norm, and what is kept. `params` in the compute dtype."""
    position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    piece = Piece(position < counts[:, None], position, counts)
    hidden, k, v, convolved = _through_layers(params, tokens, piece, None, 1, config, mesh)
    return hidden, Kept(k, v, convolved, counts)


@partial(jax.jit, static_argnames=("config", "mesh"))
def go_on(
    params: Weights,
    kept: Kept,
    tokens: Int[Array, "R G n"],
    counts: Int[Array, "R G"],
    *,
    config: ModelConfig,
    mesh: Mesh | None,
) -> Float[Array, "R G n D"]:
    """Branches of kept rows: their hidden states after the final norm. Nothing is kept of them."""
    hidden, *_ = _go_on(params, kept, tokens, counts, config, mesh)
    return hidden.reshape(*tokens.shape, -1)


def advance(
    params: Weights, kept: Kept, tokens: Int[Array, " R"], *, config: ModelConfig, mesh: Mesh | None
) -> tuple[Float[Array, "R D"], Kept]:
    """One more token of each kept row; `kept` must have room for it."""
    counts = jnp.ones((tokens.shape[0], 1), jnp.int32)
    hidden, k, v, convolved = _go_on(params, kept, tokens[:, None, None], counts, config, mesh)
    rows = jnp.arange(tokens.shape[0])
    k, v = (old.at[:, rows, kept.length].set(new[:, :, 0], mode="drop") for old, new in ((kept.k, k), (kept.v, v)))
    return hidden[:, 0], Kept(k, v, convolved, kept.length + 1)


def with_room(kept: Kept, rows: Int[Array, " R"], tokens: int) -> Kept:
    """These of the kept rows, some perhaps several times, with room for so many tokens in all."""
    more = max(0, tokens - kept.k.shape[2])

    def grown(x: Array) -> Array:
        return jnp.pad(x[:, rows], ((0, 0), (0, 0), (0, more), (0, 0), (0, 0)))

    convolved = {site: x[:, rows] for site, x in kept.convolved.items()}
    return Kept(grown(kept.k), grown(kept.v), convolved, kept.length[rows])


def _go_on(
    params: Weights, kept: Kept, tokens: Array, counts: Array, config: ModelConfig, mesh: Mesh | None
) -> tuple[Array, Array, Array, dict[str, Array]]:
    rows, branches, n = tokens.shape
    step = jnp.arange(n, dtype=jnp.int32)
    valid = step < counts.reshape(-1, 1)
    position = jnp.repeat(kept.length, branches)[:, None] + step
    piece = Piece(valid, position, counts.reshape(-1))
    return _through_layers(params, tokens.reshape(rows * branches, n), piece, kept, branches, config, mesh)


def _through_layers(
    params: Weights,
    tokens: Array,
    piece: Piece,
    kept: Kept | None,
    branches: int,
    config: ModelConfig,
    mesh: Mesh | None,
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Hidden states [B, n, D], keys and values [layers, B, n, M, H], inputs of convolutions [layers, B, J − 1, C]."""

    def of_layer(x: Array, layer: tuple[Weights, Array, Kept | None]) -> tuple[Array, tuple[Array, Array, dict]]:
        x, k, v, convolved = _block(x, *layer, piece, branches, config, mesh)
        return x, (k, v, convolved)

    x = model.embed(params, tokens, config=config)
    before = (
        None
        if kept is None
        else kept._replace(length=jnp.broadcast_to(kept.length, (config.num_layers, len(kept.length))))
    )
    x, (k, v, convolved) = jax.lax.scan(of_layer, x, (model.stacked(params), model.long_layers(config), before))
    return model.final_norm(params, x, piece.valid, config=config), k, v, convolved


def _block(
    x: Float[Array, "B n D"],
    weights: Weights,
    is_long: Bool[Array, ""],
    kept: Kept | None,  # of this layer
    piece: Piece,
    branches: int,
    config: ModelConfig,
    mesh: Mesh | None,
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """One layer, as `marin_model.model.block`."""
    convolved: dict[str, Array] = {}

    def conv(site: str, x: Array, taps: str) -> Array:
        if not config.sconv or site not in config.sconv_sites:
            return x
        before = None if kept is None else jnp.repeat(kept.convolved[site], branches, axis=0)
        x, convolved[site] = _short_conv(x, weights[taps], before, piece.counts)
        return x

    x = _over_tokens(x, mesh)
    a = _gated_norm(x, weights, "rms_attn", "attn_gated_norm", config)
    q, k, v = _queries_keys_values(a, weights, is_long, piece, conv, config)
    if kept is None:
        docs = layers.Documents(jnp.zeros_like(piece.position), piece.valid)
        lower = attention.lowest_keys(docs, jnp.where(is_long, x.shape[1], config.sliding_window))
        out = attention.attend_blocks(q, k, v, lower, config.sliding_window)
    else:
        out = _attend_kept(q, k, v, kept, is_long, piece, branches, config)
    out = attention.exclude_self(out, v)
    out = out * (2 * jax.nn.sigmoid(layers.dense(a, weights["attn.attn_gate"])))[..., None]
    x = x + conv("attn", layers.dense(out.reshape(*out.shape[:2], -1), weights["attn.w_o"]), "sconv_attn.weight")
    u = _gated_norm(x, weights, "rms_mlp", "mlp_gated_norm", config)
    mixed, *_ = experts.mixture(
        u.reshape(-1, u.shape[-1]),
        weights,
        piece.valid.reshape(-1),
        config=config,
        transport=Transport.dropless(),
        mesh=mesh,
    )
    x = x + conv("mlp", mixed.reshape(x.shape), "sconv_mlp.weight")
    return x, k, v, convolved


def _queries_keys_values(
    a: Float[Array, "B n D"], weights: Weights, is_long: Array, piece: Piece, conv: Conv, config: ModelConfig
) -> tuple[Float[Array, "B n N H"], Float[Array, "B n M H"], Float[Array, "B n M H"]]:
    """As they meet in attention: convolved, normed, turned by position; of the heads that this kind of layer reads."""
    c = config
    batch, n = a.shape[:2]
    q = layers.dense(a, weights["attn.w_q"]).reshape(batch, n, c.num_heads, c.head_dim)
    k, v = layers.dense(a, weights["attn.w_k"]), layers.dense(a, weights["attn.w_v"])
    k = conv("k", k, "attn.sconv_k.weight")
    slots = lcm(c.local_kv_heads, c.global_kv_heads)
    slot = jnp.arange(slots, dtype=jnp.int32)
    read = jnp.where(is_long, slot // (slots // c.global_kv_heads), slot // (slots // c.local_kv_heads))
    k, v = (x.reshape(batch, n, c.num_kv_heads, c.head_dim)[:, :, read] for x in (k, v))
    turn = layers.rotation(c.max_seq_len, c.head_dim, c.rope.theta)
    cos, sin = (x[piece.position.reshape(-1)] for x in turn)  # [B·n, H/4]
    turn = layers.Rotation(jnp.where(is_long, 1.0, cos), jnp.where(is_long, 0.0, sin))

    def turned(x: Array) -> Array:
        return layers.rotate(layers.unit_norm(x).reshape(1, batch * n, *x.shape[2:]), turn).reshape(x.shape)

    return turned(q) * c.qk_mult, turned(k), v


def _attend_kept(
    q: Float[Array, "B n N H"],
    k: Float[Array, "B n M H"],
    v: Float[Array, "B n M H"],
    kept: Kept,
    is_long: Array,
    piece: Piece,
    branches: int,
    config: ModelConfig,
) -> Float[Array, "B n N H"]:
    """Softmax attention of branches over what is kept of their row and over themselves; scores and sums in float32.

    The norms bound every score (`marin_model.attention`), so that the exponentials need no running maximum.
    """
    batch, n, heads, width = q.shape
    rows, slots = batch // branches, k.shape[2]
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    lowest = jnp.where(is_long, 0, piece.position - config.sliding_window + 1)  # [B, n] first key of each query

    before = jnp.arange(kept.k.shape[1], dtype=jnp.int32)  # [P] positions of kept keys
    seen = (before >= lowest[..., None]) & (before < jnp.repeat(kept.length, branches)[:, None, None])  # [B, n, P]
    of_row = q.reshape(rows, branches * n, slots, heads // slots, width)
    scores = product("rqmgh,rpmh->rmgqp", of_row, kept.k) / sqrt(width)
    p_kept = jnp.where(seen.reshape(rows, 1, 1, branches * n, -1), jnp.exp(scores), 0.0)

    step = jnp.arange(n, dtype=jnp.int32)
    seen = (step <= step[:, None]) & (piece.position[:, None, :] >= lowest[..., None])  # [B, n, n]
    grouped = q.reshape(batch, n, slots, heads // slots, width)
    scores = product("bqmgh,bkmh->bmgqk", grouped, k) / sqrt(width)
    p_own = jnp.where(seen[:, None, None], jnp.exp(scores), 0.0)

    def of_queries(x: Array) -> Array:  # [R, M, g, G·n, …] → [B, M, g, n, …]
        x = x.reshape(rows, slots, heads // slots, branches, n, *x.shape[4:])
        return jnp.moveaxis(x, 3, 1).reshape(batch, slots, heads // slots, n, *x.shape[5:])

    total = of_queries(jnp.sum(p_kept, axis=-1)) + jnp.sum(p_own, axis=-1)
    out = of_queries(product("rmgqp,rpmh->rmgqh", p_kept.astype(v.dtype), kept.v))
    out = out + product("bmgqk,bkmh->bmgqh", p_own.astype(v.dtype), v)
    out = (out / total[..., None]).astype(q.dtype)  # a query sees itself at least
    return jnp.moveaxis(out, 3, 1).reshape(batch, n, heads, width)


def _short_conv(
    x: Float[Array, "B n C"], taps: Float[Array, "J C"], before: Array | None, counts: Int[Array, " B"]
) -> tuple[Float[Array, "B n C"], Float[Array, "B before C"]]:
    """The convolution of a piece after the J − 1 inputs before it, and the last J − 1 inputs after it."""
    reach = taps.shape[0] - 1
    if before is None:
        before = jnp.zeros((x.shape[0], reach, x.shape[2]), x.dtype)
    whole = jnp.concatenate([before, x], axis=1)
    out = layers.short_conv(whole, taps, jnp.zeros(whole.shape[:2], jnp.int32))[:, reach:]
    last = counts[:, None] + jnp.arange(reach, dtype=jnp.int32)
    return out, jnp.take_along_axis(whole, last[..., None], axis=1)


def _gated_norm(x: Array, weights: Weights, norm: str, gate: str, config: ModelConfig) -> Array:
    names = (f"{norm}.weight", f"{gate}.w_down", f"{gate}.w_up")
    return layers.gated_norm(x, *(weights[name] for name in names), epsilon=config.layer_norm_eps)


def _over_tokens(x: Array, mesh: Mesh | None) -> Array:
    return x if mesh is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, sharding.TOKENS))
