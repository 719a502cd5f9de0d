"""Which experts a token goes to, with which weights, and the quantile balancing that keeps the experts evenly loaded.

Scores choose, sigmoids weigh: the K highest *biased* scores choose the experts, the sigmoids of their *unbiased*
scores, scaled to a fixed sum, combine what comes back. The bias is no parameter that learns. Every step measures, for
each expert, the level β that a fraction K/E of the tokens' margins exceeds; the next step's bias is minus that level.
There is no auxiliary loss.

Quantiles are over all valid tokens of the global batch. The histogram estimator finds its bin by bisection instead of
counting into [E, bins]: the same integers, about log2(bins) passes over the margins, and nothing to scatter.

Source: experiments/grug/moe_hero_ep/model.py of marin-community/marin; estimator and bins from the W&B configuration of
hero-12d8b6f0-dee637.

Letters: T tokens, D hidden, E experts, K chosen a token.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin_model import layers, sharding
from marin_model.config import ModelConfig

COMBINE_EPSILON = 1e-9  # in the sum that normalises the combine weights
SMALLEST_RANGE = 1e-6  # of the histogram, where all margins are equal


class Routed(NamedTuple):
    """Where the tokens of one layer go."""

    scores: Float[Array, "T E"]  # float32, unbiased; with bfloat16 compute they hold bfloat16 values
    selected: Int[Array, "T K"]  # int32, by descending biased score; -1 at padding
    weights: Float[Array, "T K"]  # float32, positive, sum `routing_renorm_sum`; zero at padding
    margins: Float[Array, "T E"]  # float32: unbiased score minus the (K+1)-th highest biased score of the token


def route(
    u: Float[Array, "T D"],
    router: Float[Array, "D E"],
    bias: Float[Array, " E"],
    valid: Bool[Array, " T"],
    *,
    config: ModelConfig,
    mesh: jax.sharding.Mesh | None = None,
) -> Routed:
    """Choose experts by biased score, ties to the lower id, and weigh them by unbiased score.

    The scores' matrix product has the compute dtype's output, as the run's had (issue 8435, study of 2026-09-22); all
    that follows is float32. Gradients reach the router through the weights alone.
    """
    scores = _as_rounded(layers.dense(u, router))
    biased = jax.lax.stop_gradient(scores + _as_rounded(bias)[None])
    selected, threshold = _choose(biased, config.num_experts_per_token, mesh)
    chosen = jax.nn.sigmoid(jnp.take_along_axis(scores, selected, axis=1, mode="promise_in_bounds"))  # [T, K]
    weights = chosen * (config.routing_renorm_sum / (jnp.sum(chosen, axis=1, keepdims=True) + COMBINE_EPSILON))
    return Routed(
        scores=scores,
        selected=jnp.where(valid[:, None], selected, -1),
        weights=jnp.where(valid[:, None], weights, 0.0),
        margins=jax.lax.stop_gradient(scores) - threshold,
    )


def _as_rounded(x: Array) -> Array:
    """x in float32, rounded to its own dtype, even where XLA has more digits at hand and would keep them (bfloat16).

    Which experts are chosen depends on that rounding: it makes ties.
    """
    digits = jnp.finfo(x.dtype)
    return jax.lax.reduce_precision(x.astype(jnp.float32), exponent_bits=digits.nexp, mantissa_bits=digits.nmant)


def _choose(
    biased: Float[Array, "T E"], k: int, mesh: jax.sharding.Mesh | None
) -> tuple[Int[Array, "T K"], Float[Array, "T 1"]]:
    """Ids of the k highest, and the value of the one that just missed.

    On a mesh each device looks at its own tokens: XLA's partitioner would first gather the scores of all of them.
    The barrier keeps XLA's CPU backend on its top-k routine: slicing the result of `top_k` under jit turns it into a
    full sort (343 against 14.5 ms on [8192, 384]).
    """

    def highest(biased: Array) -> tuple[Array, Array]:
        return jax.lax.top_k(biased, k + 1)

    if mesh is not None:
        highest = jax.shard_map(
            highest, mesh=mesh, in_specs=sharding.TOKENS, out_specs=sharding.TOKENS, check_vma=False
        )
    values, ids = jax.lax.optimization_barrier(highest(biased))
    return ids[:, :k].astype(jnp.int32), values[:, k:]


def qb_betas(margins: Float[Array, "T E"], valid: Bool[Array, " T"], *, config: ModelConfig, shards: int = 1) -> Array:
    """The level that a fraction K/E of each expert's margins exceeds, by the configured estimator. [E] float32.

    `shards`: token shards of the top-k estimator, which averages their quantiles; the histogram's is global.
    """
    if config.qb_estimator == "topk":
        return qb_betas_topk(margins, valid, k=config.num_experts_per_token, shards=shards)
    return qb_betas_hist(margins, valid, k=config.num_experts_per_token, bins=config.qb_hist_bins)


def qb_betas_hist(margins: Float[Array, "T E"], valid: Bool[Array, " T"], *, k: int, bins: int) -> Float[Array, " E"]:
    """Upper quantiles read off a histogram over one grid for all experts, from the lowest to the highest margin.

    With C[b] the margins in bins b and above and r = T_valid · K / E the rank wanted, the crossing bin b* is the last
    with C[b] >= r, and β = lo + width · (b* + (C[b*] − r) / count[b*]): straight through the bin. No valid token: 0.
    """
    experts = margins.shape[1]
    tokens = jnp.sum(valid, dtype=jnp.int32)
    lo = jnp.min(margins, where=valid[:, None], initial=jnp.inf)
    hi = jnp.max(margins, where=valid[:, None], initial=-jnp.inf)
    lo, hi = jnp.where(tokens > 0, lo, 0.0), jnp.where(tokens > 0, hi, 0.0)
    width = (jnp.maximum(hi, lo + SMALLEST_RANGE) - lo) / bins
    bin_of = jnp.clip(((margins - lo) / width).astype(jnp.int32), 0, bins - 1)
    bin_of = jnp.where(valid[:, None], bin_of, -1)  # [T, E]
    rank = tokens.astype(jnp.float32) * (k / experts)

    def at_or_above(b: Int[Array, " E"]) -> Float[Array, " E"]:
        return jnp.sum(bin_of >= b[None], axis=0, dtype=jnp.int32).astype(jnp.float32)

    def bisect(i: Array, b: Int[Array, " E"]) -> Int[Array, " E"]:
        ahead = b + jax.lax.shift_left(jnp.int32(1), bits - 1 - i)
        return jnp.where((ahead < bins) & (at_or_above(ahead) >= rank), ahead, b)

    bits = jnp.int32(bins.bit_length())
    crossing = jax.lax.fori_loop(0, bits, bisect, jnp.zeros(experts, jnp.int32))
    above = at_or_above(crossing)
    inside = above - at_or_above(crossing + 1)
    betas = lo + crossing.astype(jnp.float32) * width + width * (above - rank) / jnp.maximum(inside, 1.0)
    return jnp.where(tokens > 0, betas, 0.0)


def qb_betas_topk(margins: Float[Array, "T E"], valid: Bool[Array, " T"], *, k: int, shards: int) -> Float[Array, " E"]:
    """Each shard's floor(T_valid · K / E)-th highest margin, averaged over shards by their valid tokens.

    The default of upstream's configuration; no rung of the ladder used it.
    """
    experts = margins.shape[1]
    rows = jnp.where(valid[:, None], margins, -jnp.inf).reshape(shards, -1, experts)
    tokens = jnp.sum(valid.reshape(shards, -1), axis=1, dtype=jnp.int32)  # [shards]
    rank = jnp.clip(tokens * k // experts, 1, max(1, rows.shape[1] * k // experts))
    descending = -jnp.sort(-rows, axis=1)
    local = jnp.take_along_axis(descending, (rank - 1)[:, None, None], axis=1)[:, 0]  # [shards, E]
    local = jnp.where(tokens[:, None] > 0, local, 0.0)
    weight = tokens.astype(jnp.float32) / jnp.maximum(jnp.sum(tokens), 1).astype(jnp.float32)
    return jnp.sum(local * weight[:, None], axis=0)


def router_bias(betas: Float[Array, "layers E"]) -> Float[Array, "layers E"]:
    """The next step's bias from this step's quantiles: minus them, shifted to mean zero in each layer.

    It replaces the bias as a whole: no rate, no average over steps, no clipping.
    """
    return jnp.mean(betas, axis=-1, keepdims=True) - betas
