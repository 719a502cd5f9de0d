"""Routing by its rules: order, ties, weights, gradients, and quantiles that are quantiles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_model import router
from marin_model.config import ModelConfig

ABOUT = json.loads((Path(__file__).parent.parent / "goldens" / "01_tiny_model.json").read_text())
CONFIG = replace(ModelConfig.from_dict(ABOUT["config"]), num_experts=6, num_experts_per_token=2)


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def route(scores: np.ndarray, bias: np.ndarray | None = None, valid: np.ndarray | None = None) -> router.Routed:
    """Route tokens whose scores are given: the router is the identity."""
    experts = scores.shape[1]
    return ROUTE(
        jnp.asarray(scores, jnp.float32),
        np.eye(experts, dtype=np.float32),
        np.zeros(experts, np.float32) if bias is None else np.asarray(bias, np.float32),
        np.ones(scores.shape[0], bool) if valid is None else valid,
    )


ROUTE = jax.jit(partial(router.route, config=CONFIG))


def test_the_bias_chooses_and_the_score_weighs() -> None:
    scores, bias = np.array([[3.0, 2, 1, 0, -1, -2]]), np.array([0.0, 0, 0, 5, 5, 0])
    routed = route(scores, bias)
    np.testing.assert_array_equal(routed.selected, [[3, 4]])  # biased 5 and 4
    p = 1 / (1 + np.exp(-np.array([0.0, -1.0])))
    np.testing.assert_allclose(routed.weights, [2.5 * p / p.sum()], rtol=1e-6)
    np.testing.assert_allclose(routed.margins, scores - 3.0, rtol=1e-6)  # the third biased score is 3


def test_ties_go_to_the_lower_expert() -> None:
    routed = route(np.array([[1.0, 2, 2, 2, 1, 1], [0.0, 0, 0, 0, 0, 0]]))
    np.testing.assert_array_equal(routed.selected, [[1, 2], [0, 1]])


def test_padding_goes_nowhere() -> None:
    routed = route(np.eye(6)[:2], valid=np.array([True, False]))
    np.testing.assert_array_equal(routed.selected[1], [-1, -1])
    np.testing.assert_array_equal(routed.weights[1], [0, 0])


def test_only_chosen_scores_get_a_gradient_and_the_bias_none() -> None:
    scores = jnp.asarray(np.random.default_rng(0).standard_normal((5, 6)), jnp.float32)

    def first_weights(scores: jax.Array, bias: jax.Array) -> jax.Array:
        routed = router.route(scores, jnp.eye(6), bias, jnp.ones(5, bool), config=CONFIG)
        return jnp.sum(routed.weights[:, 0]) + jnp.sum(routed.margins)  # margins are constants

    d_scores, d_bias = jax.jit(jax.grad(first_weights, argnums=(0, 1)))(scores, jnp.zeros(6))
    assert not np.asarray(d_bias).any()
    chosen = np.zeros((5, 6), bool)
    np.put_along_axis(chosen, np.asarray(route(np.asarray(scores)).selected), True, axis=1)
    np.testing.assert_array_equal(np.asarray(d_scores) != 0, chosen)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), valid=st.integers(0, 40), bins=st.sampled_from([7, 1000]))
def test_the_histogram_is_the_one_counted_bin_by_bin(seed: int, valid: int, bins: int) -> None:
    """Against a plain count into [E, bins], as the original does it."""
    rng = np.random.default_rng(seed)
    margins = rng.standard_normal((40, 6)).astype(np.float32)
    mask = rng.permutation(40) < valid
    found = HIST[bins](jnp.asarray(margins), jnp.asarray(mask))
    if not valid:
        np.testing.assert_array_equal(found, 0)
        return
    seen = margins[mask]
    lo, hi = seen.min(), seen.max()
    width = (np.maximum(hi, lo + np.float32(1e-6)) - lo) / np.float32(bins)
    bin_of = np.clip(((margins - lo) / width).astype(int), 0, bins - 1)[mask]
    rank = valid * 2 / 6
    for expert in range(6):
        counts = np.bincount(bin_of[:, expert], minlength=bins)
        above = np.cumsum(counts[::-1])[::-1]
        crossing = np.clip(np.sum(above >= rank) - 1, 0, bins - 1)
        share = (above[crossing] - rank) / max(counts[crossing], 1)
        np.testing.assert_allclose(found[expert], lo + width * (crossing + share), atol=2e-5)


HIST = {bins: jax.jit(lambda m, v, bins=bins: router.qb_betas_hist(m, v, k=2, bins=bins)) for bins in (7, 1000)}


def test_a_quantile_is_exceeded_by_its_fraction() -> None:
    margins = jnp.asarray(np.random.default_rng(0).standard_normal((3000, 6)), jnp.float32)
    betas = jax.jit(partial(router.qb_betas_hist, k=2, bins=10_000))(margins, jnp.ones(3000, bool))
    np.testing.assert_allclose(np.mean(margins > betas[None], axis=0), 1 / 3, atol=1e-3)


def test_the_top_k_estimator_takes_a_tokens_own_margin() -> None:
    margins = jnp.asarray(np.random.default_rng(0).standard_normal((30, 6)), jnp.float32)
    betas = jax.jit(partial(router.qb_betas_topk, k=2, shards=1))(margins, jnp.ones(30, bool))
    np.testing.assert_array_equal(betas, np.sort(margins, axis=0)[-10])  # rank 30 · 2 / 6


def test_the_next_bias_is_minus_the_quantiles_with_mean_zero() -> None:
    betas = jnp.asarray([[1.0, 2.0, 6.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(router.router_bias(betas), [[2.0, 1.0, -3.0], [0.0, 0.0, 0.0]])


def test_scores_in_bfloat16_hold_bfloat16_values() -> None:
    rng = np.random.default_rng(0)
    u, w = (jnp.asarray(rng.standard_normal(s), jnp.bfloat16) for s in ((4, 6), (6, 6)))
    routed = ROUTE(u, w, jnp.zeros(6, jnp.bfloat16), jnp.ones(4, bool))
    assert routed.scores.dtype == routed.weights.dtype == jnp.float32
    np.testing.assert_array_equal(routed.scores, routed.scores.astype(jnp.bfloat16).astype(jnp.float32))
