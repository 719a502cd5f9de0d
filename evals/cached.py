"""The model's pass over rows in two parts: their beginnings at once, then token by token from what was kept.

Kept of a token: in every layer its key, turned and normed, and its value. Kept of a row beside these: the inputs of the
short convolutions at its last `sconv_kernel − 1` tokens. Then one more token costs one token, and comes out as a pass
over the whole row would make it (`tests/evals/test_cached.py` holds both equal).

Layers are scanned, as in `marin_model.model`.

Letters: R rows, P tokens kept, n tokens of a beginning, D hidden, N heads, M heads of kept keys and values, H head
width, C channels of a convolution, J its taps.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from evals import forward
from evals.forward import Weights
from marin_model import attention, layers, model
from marin_model.config import ModelConfig


class Kept(NamedTuple):
    """What rows leave behind, a leading layer axis on all but `length`. In the compute dtype."""

    k: Float[Array, "layers R P M H"]
    v: Float[Array, "layers R P M H"]
    convolved: dict[str, Float[Array, "layers R J C"]]  # by site: inputs at the last taps − 1 tokens, zero before them
    length: Int[Array, " R"]  # int32 tokens of each row; what lies beyond is never read


@partial(jax.jit, static_argnames=("config", "mesh"))
def begin(
    params: Weights, tokens: Int[Array, "R n"], counts: Int[Array, " R"], *, config: ModelConfig, mesh: Mesh | None
) -> tuple[Float[Array, "R n D"], Kept]:
    """Rows from their start: hidden states after the final norm, and what is kept. `params` in the compute dtype."""
    position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    docs = layers.Documents(jnp.zeros_like(position), position < counts[:, None])

    def of_layer(x: Array, layer: tuple[Weights, Array]) -> tuple[Array, tuple[Array, Array, dict[str, Array]]]:
        weights, is_long = layer
        last: dict[str, Array] = {}

        def conv(site: str, x: Array, taps: Array) -> Array:
            reach = taps.shape[0] - 1
            place = counts[:, None] + jnp.arange(reach, dtype=jnp.int32)
            last[site] = jnp.take_along_axis(jnp.pad(x, ((0, 0), (reach, 0), (0, 0))), place[..., None], axis=1)
            return layers.short_conv(x, taps, docs.start)

        def attend(q: Array, k: Array, v: Array) -> Array:
            lower = attention.lowest_keys(docs, jnp.where(is_long, x.shape[1], config.sliding_window))
            return attention.attend_blocks(q, k, v, lower, config.sliding_window)

        x, k, v = forward.block(
            x,
            weights,
            is_long,
            valid=docs.valid,
            position=position,
            conv=conv,
            attend=attend,
            config=config,
            mesh=mesh,
        )
        return x, (k, v, last)

    x = model.embed(params, tokens, config=config)
    x, (k, v, last) = jax.lax.scan(of_layer, x, (model.stacked(params), model.long_layers(config)))
    return model.final_norm(params, x, docs.valid, config=config), Kept(k, v, last, counts)


def advance(
    params: Weights, kept: Kept, tokens: Int[Array, " R"], *, config: ModelConfig, mesh: Mesh | None
) -> tuple[Float[Array, "R D"], Kept]:
    """One more token of each kept row; `kept` must have room for it."""
    valid, position = jnp.ones((len(tokens), 1), bool), kept.length[:, None]

    def of_layer(
        x: Array, layer: tuple[Weights, Array, Array, Array, dict[str, Array]]
    ) -> tuple[Array, tuple[Array, Array, dict[str, Array]]]:
        weights, is_long, kept_k, kept_v, before = layer
        last: dict[str, Array] = {}

        def conv(site: str, x: Array, taps: Array) -> Array:
            whole = jnp.concatenate([before[site], x], axis=1)
            last[site] = whole[:, 1:]
            return layers.short_conv(whole, taps, jnp.zeros(whole.shape[:2], jnp.int32))[:, -1:]

        lowest = jnp.where(is_long, 0, kept.length - config.sliding_window + 1)
        place = jnp.arange(kept_k.shape[1], dtype=jnp.int32)
        seen = (place >= lowest[:, None]) & (place < kept.length[:, None])
        x, k, v = forward.block(
            x,
            weights,
            is_long,
            valid=valid,
            position=position,
            conv=conv,
            attend=lambda q, k, v: _attend_kept(q, k, v, kept_k, kept_v, seen),
            config=config,
            mesh=mesh,
        )
        return x, (k[:, 0], v[:, 0], last)

    x = model.embed(params, tokens[:, None], config=config)
    scanned = (model.stacked(params), model.long_layers(config), kept.k, kept.v, kept.convolved)
    x, (k, v, last) = jax.lax.scan(of_layer, x, scanned)
    rows = jnp.arange(len(tokens))
    k, v = (old.at[:, rows, kept.length].set(new, mode="drop") for old, new in ((kept.k, k), (kept.v, v)))
    return model.final_norm(params, x, valid, config=config)[:, 0], Kept(k, v, last, kept.length + 1)


def with_room(kept: Kept, rows: Int[Array, " R"], tokens: int) -> Kept:
    """These of the kept rows, some perhaps several times, with room for so many tokens in all."""
    more = max(0, tokens - kept.k.shape[2])

    def grown(x: Array) -> Array:
        return jnp.pad(x[:, rows], ((0, 0), (0, 0), (0, more), (0, 0), (0, 0)))

    convolved = {site: x[:, rows] for site, x in kept.convolved.items()}
    return Kept(grown(kept.k), grown(kept.v), convolved, kept.length[rows])


def _attend_kept(
    q: Float[Array, "R 1 N H"],
    k: Float[Array, "R 1 M H"],
    v: Float[Array, "R 1 M H"],
    kept_k: Float[Array, "R P M H"],
    kept_v: Float[Array, "R P M H"],
    seen: Bool[Array, "R P"],
) -> Float[Array, "R 1 N H"]:
    """Softmax attention of one token over what it sees of its row and over itself; scores and sums in float32.

    The norms bound every score (`marin_model.attention`), so that the exponentials need no running maximum.
    """
    rows, _, heads, width = q.shape
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    grouped = q.reshape(rows, k.shape[2], -1, width)
    p_kept = jnp.exp(product("rmgh,rpmh->rmgp", grouped, kept_k) / sqrt(width))
    p_kept = jnp.where(seen[:, None, None], p_kept, 0.0)
    p_own = jnp.exp(product("rmgh,rmh->rmg", grouped, k[:, 0]) / sqrt(width))
    out = product("rmgp,rpmh->rmgh", p_kept.astype(v.dtype), kept_v)
    out = out + p_own.astype(v.dtype)[..., None] * v[:, 0, :, None]
    out = out / (jnp.sum(p_kept, axis=-1) + p_own)[..., None]
    return out.reshape(rows, 1, heads, width).astype(q.dtype)
