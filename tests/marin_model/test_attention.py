"""Attention: the blocked path against the dense one, and what the mask must hide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_model import attention, layers
from tests.marin_model.programs import largest_array
from tests.marin_model.tiny import CONFIG

HEADS, KV_HEADS, WIDTH = 4, 2, 8


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def inputs(seq: int, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Queries and keys with the norms the model gives them, values, and an output's gradient."""
    rng = np.random.default_rng(seq)

    def normal(heads: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal((2, seq, heads, WIDTH)), dtype)

    return layers.unit_norm(normal(HEADS)) * 1.3, layers.unit_norm(normal(KV_HEADS)), normal(KV_HEADS), normal(HEADS)


def packed(seq: int) -> layers.Documents:
    """Two rows of documents, the first with padding at its end."""
    ids = np.stack([np.arange(seq) // (seq // 3 + 1), np.arange(seq) // (seq // 2 + 1) + 5])
    ids[0, -seq // 8 :] = -1
    return layers.documents(jnp.asarray(ids, jnp.int32), (2, seq))


@pytest.mark.parametrize(
    ("seq", "window", "documents"),
    [
        (64, 64, False),  # full-causal, in more blocks than one
        (50, 20, True),  # neither window nor sequence a multiple of the other, and documents within
        (7, 3, False),  # shorter than the smallest block
    ],
)
def test_blocks_and_gradients_equal_the_dense_path(seq: int, window: int, documents: bool) -> None:
    q, k, v, d_out = inputs(seq)
    docs = packed(seq) if documents else layers.documents(None, (2, seq))
    lower = attention.lowest_keys(docs, window)

    def both(path: attention.Attend) -> Any:
        out, pull = jax.vjp(lambda q, k, v: path(q, k, v, lower, min(window, 32)), q, k, v)
        return out, *pull(d_out)

    fast, slow = jax.jit(lambda: both(attention.attend_blocks))(), jax.jit(lambda: both(attention.attend_dense))()
    for found, expected in zip(fast, slow, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    assert not np.asarray(fast[0])[~np.asarray(docs.valid)].any()


@pytest.mark.parametrize("documents", [True, False])
def test_the_fused_path_and_its_gradients_equal_the_dense_one(documents: bool) -> None:
    q, k, v, d_out = inputs(40)
    docs = packed(40) if documents else layers.documents(None, (2, 40))
    lower = attention.lowest_keys(docs, 16)

    def both(path: attention.Attend) -> Any:
        out, pull = jax.vjp(lambda q, k, v: path(q, k, v, lower, 16), q, k, v)
        return out, *pull(d_out)

    fused = partial(attention.attend_fused, kernel="xla")
    for found, expected in zip(both(fused), both(attention.attend_dense), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    assert not np.asarray(both(fused)[0])[~np.asarray(docs.valid)].any()


def test_only_bfloat16_on_a_gpu_takes_the_fused_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention._path(jnp.dtype("bfloat16")) is attention.attend_blocks
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert attention._path(jnp.dtype("bfloat16")) is attention.attend_fused
    assert attention._path(jnp.dtype("float32")) is attention.attend_blocks


def test_blocks_in_bfloat16_come_near_float32() -> None:
    q, k, v, _ = inputs(48, jnp.bfloat16)
    lower = attention.lowest_keys(layers.documents(None, (2, 48)), 16)
    found = jax.jit(attention.attend_blocks, static_argnums=4)(q, k, v, lower, 16)
    assert found.dtype == jnp.bfloat16
    exact = jax.jit(attention.attend_dense, static_argnums=4)(*(x.astype(jnp.float32) for x in (q, k, v)), lower, 16)
    np.testing.assert_allclose(found.astype(jnp.float32), exact, atol=3e-2)  # eight bits of mantissa


@pytest.mark.parametrize("seq", [512, 1024])
def test_a_window_costs_window_times_sequence(seq: int) -> None:
    """Blocks of keys visited: two a block of queries, whatever the sequence; a long layer visits all before it."""
    block = 128
    near = attention._block_bounds(attention.lowest_keys(layers.documents(None, (1, seq)), 128), block)[1]
    visited = np.arange(seq // block) - np.asarray(near) + 1
    assert visited.max() == 2
    far = attention._block_bounds(attention.lowest_keys(layers.documents(None, (1, seq)), seq), block)[1]
    assert not np.asarray(far).any()


@pytest.mark.parametrize("window", [16, 512])
def test_no_array_of_sequence_squared_exists(window: int) -> None:
    seq = 512
    q, k, v, d_out = inputs(seq)
    lower = attention.lowest_keys(layers.documents(None, (2, seq)), window)

    def step(path: attention.Attend) -> int:
        def run(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            return jax.vjp(lambda q, k, v: path(q, k, v, lower, window), q, k, v)[1](d_out)

        return largest_array(run, q, k, v)

    assert step(attention.attend_blocks) < 2 * seq * seq <= step(attention.attend_dense)


@pytest.mark.parametrize("window", [16, 200])
def test_keys_of_ended_branches_are_not_seen(window: int) -> None:
    """Each row: a trunk of 20 places, then branches of 50 to 52 that see the trunk and themselves."""
    seq, trunk = 170, 20
    q, k, v, d_out = inputs(seq)
    until = np.full((2, seq), seq, np.int32)
    for row, length in ((0, 50), (1, 52)):
        place = np.arange(trunk, seq)
        until[row, trunk:] = np.minimum(trunk + ((place - trunk) // length + 1) * length, seq)
    lower = attention.lowest_keys(layers.documents(None, (2, seq)), window)

    def by_blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention.attend_blocks(q, k, v, lower, min(window, 32), jnp.asarray(until))

    def by_hand(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        query, key = np.arange(seq)[:, None], np.arange(seq)
        seen = (key >= np.asarray(lower)[..., None]) & (key <= query) & (query < until[:, None])
        assert not seen[0, trunk + 50, trunk + 49]
        assert not seen.all(axis=0)[np.tril_indices(seq)].all()
        k, v = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
        scores = jnp.einsum("bqnh,bknh->bnqk", q, k) / np.sqrt(q.shape[-1])
        return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf)), v)

    for found, expected in zip(pulled(by_blocks, q, k, v, d_out), pulled(by_hand, q, k, v, d_out), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-6)


def pulled(attend: Any, q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> Any:
    out, pull = jax.vjp(jax.jit(attend), q, k, v)
    return out, *pull(d_out)


def test_a_window_counts_the_query_itself() -> None:
    lower = attention.lowest_keys(layers.documents(None, (1, 6)), 3)
    np.testing.assert_array_equal(lower[0], [0, 0, 0, 1, 2, 3])


def test_the_window_ends_at_the_document() -> None:
    docs = layers.documents(jnp.asarray([[4, 4, 4, 7, 7, -1]]), (1, 6))
    np.testing.assert_array_equal(attention.lowest_keys(docs, 2)[0], [0, 0, 1, 3, 3, 6])


def test_a_first_token_keeps_nothing_of_itself() -> None:
    """It sees itself alone, so its output is its value, which XSA takes away."""
    q, k, v, _ = inputs(32)
    lower = attention.lowest_keys(layers.documents(None, (2, 32)), 32)
    out = jax.jit(lambda q, k, v: attention.exclude_self(attention.attend_blocks(q, k, v, lower, 32), v))(q, k, v)
    assert np.abs(np.asarray(out)[:, 0]).max() < 1e-5
    assert np.abs(np.asarray(out)[:, 1:]).max() > 0.1
    own = np.repeat(np.asarray(v), HEADS // KV_HEADS, axis=2)
    assert np.abs(np.sum(np.asarray(out) * own, axis=-1)).max() < 1e-5


def test_scores_that_could_overflow_are_refused() -> None:
    config = replace(CONFIG, qk_mult=30.0)
    with pytest.raises(ValueError, match=r"qk_mult \(30.0\) · sqrt\(head_dim 16\), above 80"):
        attention.attention(jnp.zeros((1, 2, 64)), {}, packed(16), jnp.asarray(True), config=config)


def test_long_layers_read_the_first_heads_and_leave_the_others_alone() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 4, 3)), jnp.float32)
    near = attention._used_heads(x, jnp.asarray(False), local=4, long=2)
    np.testing.assert_array_equal(near, x)
    far = attention._used_heads(x, jnp.asarray(True), local=4, long=2)
    np.testing.assert_array_equal(far, x[:, :, [0, 0, 1, 1]])
    gradient = jax.grad(lambda x: attention._used_heads(x, jnp.asarray(True), local=4, long=2).sum())(x)
    assert not np.asarray(gradient)[:, :, 2:].any()
