"""Causal attention of one block: grouped queries, two kinds of layer, and what the run added around it.

Local layers see a sliding window, turn half of each head by position and use the first `local_kv_heads` of the stored
KV heads; long layers see the whole document, know no positions and use the first `global_kv_heads`. Which kind a layer
is, is data: one compiled body serves the scan over layers. Around the attention: convolution and norm on the keys, norm
and a multiplier on the queries, the removal of each position's own value (XSA), and a gate on each head.

Every query sees one run of keys, from `lower[t]` to t: window and document are the same bound. So the fast path walks
blocks of queries and, for each, only the blocks of keys from its lowest bound on: a window costs window × sequence, a
packed row costs its documents. It keeps no score: backward computes them again (Dao et al., arXiv:2205.14135). The
norms bound every score by qk_mult · sqrt(H), 14.7 for the run, so that the exponentials need no running maximum.

Source: experiments/grug/moe_hero_ep/model.py of marin-community/marin and the job summary in issue 8435.

Letters: B batch, S sequence, D hidden, N query heads, M stored KV heads, H head width, G query heads a KV head,
b positions of a block, n blocks.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import lcm, sqrt
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_model import layers
from marin_model.config import ModelConfig

XSA_EPSILON = 1e-6
BLOCKS = (16, 128)  # smallest and largest block; a score tile of the largest, 8 sequences of 4 heads, is 2 MB
LARGEST_SCORE = 80.0  # exp stays finite in float32, and so does the sum of a row

Attend = Callable[[Array, Array, Array, Array, int], Array]  # (q, k, v, lower, window) -> [B, S, N, H]


def attention(
    a: Float[Array, "B S D"],
    weights: Mapping[str, Array],
    docs: layers.Documents,
    is_long: Bool[Array, ""],
    *,
    config: ModelConfig,
    attend: Attend | None = None,
) -> Float[Array, "B S D"]:
    """One layer's attention on its normed and gated input. `weights`: the layer's arrays by name, compute dtype.

    `attend` is the path; None: `attend_fused` for bfloat16 on a GPU, `attend_blocks` elsewhere. ValueError where scores
    could overflow.
    """
    c = config
    if c.qk_mult * sqrt(c.head_dim) > LARGEST_SCORE:
        raise ValueError(
            f"attention: scores may reach qk_mult ({c.qk_mult}) · sqrt(head_dim {c.head_dim}), above {LARGEST_SCORE}, "
            f"where float32 exponentials overflow."
        )
    batch, seq = a.shape[:2]
    q = layers.dense(a, weights["attn.w_q"]).reshape(batch, seq, c.num_heads, c.head_dim)
    k, v = layers.dense(a, weights["attn.w_k"]), layers.dense(a, weights["attn.w_v"])
    if "k" in c.sconv_sites and c.sconv:
        k = layers.short_conv(k, weights["attn.sconv_k.weight"], docs.start)
    k, v = (x.reshape(batch, seq, c.num_kv_heads, c.head_dim) for x in (k, v))
    turn = layers.rotation(seq, c.head_dim, c.rope.theta)
    turn = layers.Rotation(jnp.where(is_long, 1.0, turn.cos), jnp.where(is_long, 0.0, turn.sin))
    q = layers.rotate(layers.unit_norm(q), turn) * c.qk_mult
    k = layers.rotate(layers.unit_norm(k), turn)
    k, v = (_used_heads(x, is_long, local=c.local_kv_heads, long=c.global_kv_heads) for x in (k, v))
    lower = lowest_keys(docs, jnp.where(is_long, seq, c.sliding_window))
    out = (attend or _path(a.dtype))(q, k, v, lower, c.sliding_window)
    out = exclude_self(out, v)
    out = out * (2 * jax.nn.sigmoid(layers.dense(a, weights["attn.attn_gate"])))[..., None]
    return layers.dense(out.reshape(batch, seq, -1), weights["attn.w_o"])


def _used_heads(x: Float[Array, "B S M H"], is_long: Bool[Array, ""], *, local: int, long: int) -> Array:
    """The KV heads this kind of layer reads, repeated to a number both kinds share, a divisor of the query heads.

    In long layers the stored heads beyond the first `long` are computed, never read, and get no gradient.
    """
    slots = lcm(local, long)
    near = jnp.repeat(x[:, :, :local], slots // local, axis=2)
    if local == long:
        return near
    return jnp.where(is_long, jnp.repeat(x[:, :, :long], slots // long, axis=2), near)


def lowest_keys(docs: layers.Documents, window: Int[Array, ""] | int) -> Int[Array, "B S"]:
    """First key each query sees: its document's start, or `window` keys back, itself counted. At padding S, so none."""
    seq = docs.start.shape[1]
    position = jnp.arange(seq, dtype=jnp.int32)[None]
    return jnp.where(docs.valid, jnp.maximum(docs.start, position - window + 1), seq)


def exclude_self(out: Float[Array, "B S N H"], v: Float[Array, "B S M H"]) -> Float[Array, "B S N H"]:
    """Take from each head's output its component along the position's own value (XSA).

    A token that sees only itself is left with nothing. Reductions are float32, the rest is in the compute dtype.
    """
    batch, seq, heads, width = out.shape
    own = v[:, :, :, None]  # [B, S, M, 1, H]
    grouped = out.reshape(batch, seq, v.shape[2], -1, width)  # [B, S, M, G, H]
    along = jnp.sum(grouped.astype(jnp.float32) * own.astype(jnp.float32), axis=-1, keepdims=True)
    square = jnp.sum(jnp.square(own.astype(jnp.float32)), axis=-1, keepdims=True)
    share = along.astype(out.dtype) / (square.astype(out.dtype) + XSA_EPSILON)
    return (grouped - share * own).reshape(batch, seq, heads, width)


def attend_dense(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S M H"],
    v: Float[Array, "B S M H"],
    lower: Int[Array, "B S"],
    window: int,
) -> Float[Array, "B S N H"]:
    """Softmax attention over all pairs, the slow twin: query t sees keys lower[t] … t. Zero where it sees none."""
    del window
    batch, seq, heads, width = q.shape
    grouped = q.reshape(batch, seq, k.shape[2], -1, width)
    scores = jnp.einsum("bqmgh,bkmh->bmgqk", grouped, k, preferred_element_type=jnp.float32) / sqrt(width)
    seen = _visible(lower, jnp.arange(seq, dtype=jnp.int32), jnp.arange(seq, dtype=jnp.int32))  # [B, S, S]
    scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True, initial=-1e30)
    p = jnp.exp(scores - top)
    p = p / jnp.maximum(jnp.sum(p, axis=-1, keepdims=True), 1e-30)
    out = jnp.einsum("bmgqk,bkmh->bqmgh", p.astype(v.dtype), v)
    return out.reshape(batch, seq, heads, width)


def attend_fused(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S M H"],
    v: Float[Array, "B S M H"],
    lower: Int[Array, "B S"],
    window: int,
    *,
    kernel: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B S N H"]:
    """`attend_dense` by one kernel that keeps no score: cuDNN's, for bfloat16 on a GPU.

    Bounds go in as a mask, since the kind of a layer is data and the kernel's own window is not: a window costs a
    sequence here. Never timed: no GPU was at hand. "xla" is for tests.
    """
    del window
    position = jnp.arange(q.shape[1], dtype=jnp.int32)
    seen = _visible(lower, position, position)  # [B, S, S]
    blind = ~jnp.any(seen, axis=-1)  # padding; softmax over nothing is not a number, so it sees itself, and is cut
    seen |= blind[..., None] & jnp.eye(q.shape[1], dtype=bool)[None]
    out = jax.nn.dot_product_attention(q, k, v, mask=seen[:, None], implementation=kernel)
    return jnp.where(blind[..., None, None], jnp.zeros((), out.dtype), out)


def _path(dtype: jnp.dtype) -> Attend:
    return attend_fused if jax.default_backend() == "gpu" and dtype == jnp.bfloat16 else attend_blocks


def attend_blocks(
    q: Float[Array, "B S N H"],
    k: Float[Array, "B S M H"],
    v: Float[Array, "B S M H"],
    lower: Int[Array, "B S"],
    window: int,
    until: Int[Array, "B S"] | None = None,
) -> Float[Array, "B S N H"]:
    """`attend_dense` in blocks of at most `window` positions, with float32 scores and sums.

    For queries and keys of bounded norm: |q · k| / sqrt(H) must stay below 80.

    `until`: the first query that no longer sees each key, where a row holds branches that must not see each other;
    None: all later ones do. Blocks of keys that none of a block of queries sees are passed over.
    """
    smallest, largest = BLOCKS
    block = min(max(window, smallest), largest, q.shape[1])
    return _attend_blocks(q, k, v, lower, until, block)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend_blocks(q: Array, k: Array, v: Array, lower: Array, until: Array | None, block: int) -> Array:
    return _blocks_forward(q, k, v, lower, until, block)[0]


def _blocks_forward(
    q: Array, k: Array, v: Array, lower: Array, until: Array | None, block: int
) -> tuple[Array, tuple[Array | None, ...]]:
    qs, ks, vs = _query_blocks(q, k.shape[2], block), _key_blocks(k, block), _key_blocks(v, block)
    lowers, first = _block_bounds(lower, block)
    untils = None if until is None else _blocks_of(until, block, 0)

    def of_queries(i: Array) -> tuple[Array, Array]:
        def add_keys(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            out, total = carry
            p = _exp_scores(qs[i], ks[j], lowers[i], None if untils is None else untils[j], i, j)
            out = out + jnp.einsum("bmgqk,bmkh->bmgqh", p.astype(v.dtype), vs[j], preferred_element_type=jnp.float32)
            return out, total + jnp.sum(p, axis=-1)

        def add_seen_keys(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            if untils is None:
                return add_keys(j, carry)
            return jax.lax.cond(jnp.max(untils[j]) > i * block, add_keys, lambda j, carry: carry, j, carry)

        start = jnp.zeros(qs.shape[1:], jnp.float32), jnp.zeros(qs.shape[1:-1], jnp.float32)
        out, total = jax.lax.fori_loop(first[i], i + 1, add_seen_keys, start)
        inverse = jnp.where(total > 0, 1 / jnp.where(total > 0, total, 1.0), 0.0)
        return (out * inverse[..., None]).astype(q.dtype), inverse

    outs, inverses = jax.lax.map(of_queries, jnp.arange(qs.shape[0], dtype=jnp.int32))
    outs, inverses = layers.keep(outs), layers.keep(inverses)
    return _from_query_blocks(outs, q.shape), (q, k, v, lower, until, outs, inverses)


def _blocks_backward(block: int, saved: tuple[Array, ...], d_out: Array) -> tuple[Array, Array, Array, None, None]:
    q, k, v, lower, until, outs, inverses = saved
    qs, ks, vs = _query_blocks(q, k.shape[2], block), _key_blocks(k, block), _key_blocks(v, block)
    lowers, first = _block_bounds(lower, block)
    untils = None if until is None else _blocks_of(until, block, 0)
    d_outs = _query_blocks(d_out, k.shape[2], block)
    # Rows divided by their sums once, instead of every tile of exponentials.
    d_rows = d_outs.astype(jnp.float32) * inverses[..., None]  # [n, B, M, G, b, H]
    shift = jnp.sum(d_rows * outs.astype(jnp.float32), axis=-1)  # [n, B, M, G, b]
    d_rows = d_rows.astype(q.dtype)
    tile = partial(jnp.einsum, preferred_element_type=jnp.float32)

    def of_queries(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], Array]:
        def add_keys(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            d_q, d_ks, d_vs = carry
            p = _exp_scores(qs[i], ks[j], lowers[i], None if untils is None else untils[j], i, j)
            d_scores = p * (tile("bmgqh,bmkh->bmgqk", d_rows[i], vs[j]) - shift[i][..., None])
            d_scores = d_scores.astype(q.dtype)
            d_q = d_q + tile("bmgqk,bmkh->bmgqh", d_scores, ks[j])
            d_ks = d_ks.at[j].add(tile("bmgqk,bmgqh->bmkh", d_scores, qs[i]))
            d_vs = d_vs.at[j].add(tile("bmgqk,bmgqh->bmkh", p.astype(q.dtype), d_rows[i]))
            return d_q, d_ks, d_vs

        d_q, *carry = jax.lax.fori_loop(first[i], i + 1, add_keys, (jnp.zeros(qs.shape[1:], jnp.float32), *carry))
        return (carry[0], carry[1]), d_q

    start = jnp.zeros(ks.shape, jnp.float32), jnp.zeros(vs.shape, jnp.float32)
    (d_ks, d_vs), d_qs = jax.lax.scan(of_queries, start, jnp.arange(qs.shape[0], dtype=jnp.int32))
    scale = 1 / sqrt(q.shape[-1])
    return (
        _from_query_blocks((d_qs * scale).astype(q.dtype), q.shape),
        _from_key_blocks((d_ks * scale).astype(k.dtype), k.shape),
        _from_key_blocks(d_vs.astype(v.dtype), v.shape),
        None,
        None,
    )


_attend_blocks.defvjp(_blocks_forward, _blocks_backward)


def _exp_scores(q: Array, k: Array, lower: Array, until: Array | None, i: Array, j: Array) -> Float[Array, "B M G b b"]:
    """Exponentials of the scores of query block i with key block j, zero where a query does not see a key."""
    block = lower.shape[1]
    scores = jnp.einsum("bmgqh,bmkh->bmgqk", q, k, preferred_element_type=jnp.float32) / sqrt(q.shape[-1])
    within = jnp.arange(block, dtype=jnp.int32)
    query = i * block + within
    seen = _visible(lower, query, j * block + within)
    if until is not None:
        seen &= query[None, :, None] < until[:, None]
    return jnp.where(seen[:, None, None], jnp.exp(scores), 0.0)


def _visible(lower: Int[Array, "B q"], query: Int[Array, " q"], key: Int[Array, " k"]) -> Bool[Array, "B q k"]:
    return (key[None, None] >= lower[..., None]) & (key[None] <= query[:, None])[None]


def _block_bounds(lower: Int[Array, "B S"], block: int) -> tuple[Int[Array, "n B b"], Int[Array, " n"]]:
    """Bounds by block, and the first block of keys that any query of a block sees; queries of the filling see none."""
    lowers = _blocks_of(lower, block, lower.shape[1] + -lower.shape[1] % block)
    return lowers, jnp.min(lowers, axis=(1, 2)) // block


def _blocks_of(bounds: Int[Array, "B S"], block: int, filling: int) -> Int[Array, "n B b"]:
    padded = jnp.pad(bounds, ((0, 0), (0, -bounds.shape[1] % block)), constant_values=filling)
    return jnp.moveaxis(padded.reshape(bounds.shape[0], -1, block), 1, 0)


def _query_blocks(x: Float[Array, "B S N H"], kv_heads: int, block: int) -> Float[Array, "n B M G b H"]:
    batch, seq, heads, width = x.shape
    x = jnp.pad(x, ((0, 0), (0, -seq % block), (0, 0), (0, 0)))
    return x.reshape(batch, -1, block, kv_heads, heads // kv_heads, width).transpose(1, 0, 3, 4, 2, 5)


def _from_query_blocks(x: Float[Array, "n B M G b H"], shape: tuple[int, ...]) -> Float[Array, "B S N H"]:
    batch, seq, heads, width = shape
    return x.transpose(1, 0, 4, 2, 3, 5).reshape(batch, -1, heads, width)[:, :seq]


def _key_blocks(x: Float[Array, "B S M H"], block: int) -> Float[Array, "n B M b H"]:
    return _query_blocks(x, x.shape[2], block)[:, :, :, 0]


def _from_key_blocks(x: Float[Array, "n B M b H"], shape: tuple[int, ...]) -> Float[Array, "B S M H"]:
    return _from_query_blocks(x[:, :, :, None], shape)
