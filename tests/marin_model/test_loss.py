"""The streamed loss against the one that holds all logits, and proof that it does not hold them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_model import loss
from tests.marin_model.programs import largest_array

TOKENS, WIDTH = 24, 8


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def inputs(vocabulary: int, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(vocabulary)
    hidden, head = rng.standard_normal((TOKENS, WIDTH)), rng.standard_normal((WIDTH, vocabulary))
    labels = rng.integers(0, vocabulary, TOKENS)
    return jnp.asarray(hidden, dtype), jnp.asarray(head, dtype), jnp.asarray(labels, jnp.int32)


def whole(hidden: jax.Array, head: jax.Array, labels: jax.Array) -> loss.TokenLoss:
    """The same with [T, V] logits."""
    logits = (hidden @ head).astype(jnp.float32)
    lse = jax.nn.logsumexp(logits, axis=1)
    return loss.TokenLoss(lse - jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0], lse)


def pulled(function: Any, hidden: jax.Array, head: jax.Array, labels: jax.Array) -> Any:
    out, pull = jax.vjp(lambda h, w: function(h, w, labels), hidden, head)
    return out, pull(loss.TokenLoss(jnp.linspace(0.0, 1.0, TOKENS), jnp.linspace(0.5, -0.5, TOKENS)))


@pytest.mark.parametrize("vocabulary", [40, 256, 300])  # less than a block, two whole ones, and with a rest
def test_streaming_changes_neither_losses_nor_gradients(vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "LARGEST_BLOCK", 128)
    given = inputs(vocabulary)
    found, expected = (jax.tree.leaves(jax.jit(partial(pulled, f))(*given)) for f in (loss.token_loss, whole))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_logits_far_from_zero_do_not_overflow() -> None:
    hidden, head, labels = inputs(40)
    found = jax.jit(loss.token_loss)(100 * hidden, head, labels)
    assert np.isfinite(found.log_sum_exp).all()
    np.testing.assert_allclose(
        found.cross_entropy, whole(100 * hidden, head, labels).cross_entropy, rtol=1e-5, atol=1e-3
    )


def test_no_array_of_tokens_times_vocabulary_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "LARGEST_BLOCK", 128)
    given = inputs(1000)

    streamed, held = (largest_array(partial(pulled, function), *given) for function in (loss.token_loss, whole))
    assert streamed < TOKENS * 1000 <= held


def test_the_loss_is_a_mean_over_all_weights_with_the_z_loss_in_it() -> None:
    hidden, head, _ = inputs(40)
    tokens = jnp.asarray(np.arange(TOKENS).reshape(2, -1), jnp.int32)
    weight = jnp.asarray(np.random.default_rng(1).random((2, TOKENS // 2)), jnp.float32).at[:, -1].set(0.0)
    found = jax.jit(partial(loss.weighted_loss, z_loss=1e-2))(hidden.reshape(2, -1, WIDTH), head, tokens, weight)
    each = whole(hidden, head, jnp.roll(tokens, -1, axis=1).reshape(-1))  # the last label counts nothing
    share = np.asarray(weight).reshape(-1) / np.asarray(weight).sum()
    np.testing.assert_allclose(found.cross_entropy, np.sum(share * each.cross_entropy), rtol=1e-6)
    np.testing.assert_allclose(found.z_loss, 1e-2 * np.sum(share * np.square(each.log_sum_exp)), rtol=1e-6)
    np.testing.assert_allclose(found.loss, found.cross_entropy + found.z_loss, rtol=1e-6)


def test_no_weight_is_no_loss_and_no_gradient() -> None:
    hidden, head, _ = inputs(40)
    tokens = jnp.zeros((2, TOKENS // 2), jnp.int32)

    def total(hidden: jax.Array) -> jax.Array:
        return loss.weighted_loss(hidden, head, tokens, jnp.zeros(tokens.shape), z_loss=1e-4).loss

    value, gradient = jax.jit(jax.value_and_grad(total))(hidden.reshape(2, -1, WIDTH))
    assert float(value) == 0
    assert not np.asarray(gradient).any()


def test_bfloat16_operands_give_float32_losses() -> None:
    hidden, head, labels = inputs(40, jnp.bfloat16)
    found, (d_hidden, d_head) = jax.jit(partial(pulled, loss.token_loss))(hidden, head, labels)
    assert found.cross_entropy.dtype == jnp.float32
    assert d_hidden.dtype == d_head.dtype == jnp.bfloat16
    exact = whole(hidden.astype(jnp.float32), head.astype(jnp.float32), labels)
    np.testing.assert_allclose(found.cross_entropy, exact.cross_entropy, atol=1e-5)
