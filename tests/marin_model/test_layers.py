"""The small layers against their formulas, written out in numpy."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_model import layers

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_the_two_norms_have_their_own_epsilons() -> None:
    small = np.full((1, 1, 4), 1e-3, np.float32)  # mean square 1e-6: each epsilon shows
    learned = layers.rms_norm(jnp.asarray(small), jnp.full(4, 2.0), epsilon=1e-5)
    np.testing.assert_allclose(learned, 2 * small / np.sqrt(1.1e-5), rtol=1e-6)
    np.testing.assert_allclose(layers.unit_norm(jnp.asarray(small)), small / np.sqrt(2e-6), rtol=1e-6)


def test_a_norm_in_bfloat16_rounds_once() -> None:
    x, gain = jnp.asarray(normal(3, 64), jnp.bfloat16), jnp.asarray(normal(64), jnp.bfloat16)
    exact = layers.rms_norm(x.astype(jnp.float32), gain.astype(jnp.float32), epsilon=1e-5)
    np.testing.assert_array_equal(layers.rms_norm(x, gain, epsilon=1e-5), exact.astype(jnp.bfloat16))


def test_a_gated_norm_gates_what_it_normed() -> None:
    x, gain, down, up = normal(2, 3, 8), normal(8), normal(8, 5), normal(5, 8)
    normed = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * gain
    bottleneck = normed @ down
    expected = normed * sigmoid(bottleneck * sigmoid(bottleneck) @ up)
    np.testing.assert_allclose(
        layers.gated_norm(*map(jnp.asarray, (x, gain, down, up)), epsilon=1e-5), expected, atol=1e-6
    )


def test_a_fresh_gate_is_one_half() -> None:
    x = jnp.asarray(normal(1, 2, 8))
    halved = layers.gated_norm(x, jnp.ones(8), jnp.ones((8, 4)), jnp.zeros((4, 8)), epsilon=1e-5)
    np.testing.assert_allclose(halved, 0.5 * layers.rms_norm(x, jnp.ones(8), epsilon=1e-5), rtol=1e-6)


def test_a_dense_map_has_the_gradient_of_a_product() -> None:
    x, w, d_out = map(jnp.asarray, (normal(2, 3, 4), normal(4, 5), normal(2, 3, 5)))
    out, pull = jax.vjp(layers.dense, x, w)
    np.testing.assert_allclose(out, x @ w, atol=1e-6)
    d_x, d_w = pull(d_out)
    np.testing.assert_allclose(d_x, d_out @ w.T, atol=1e-6)
    np.testing.assert_allclose(d_w, np.einsum("bsd,bse->de", x, d_out), atol=1e-6)


documents = jax.jit(lambda ids: layers.documents(ids, ids.shape))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=12, max_size=12), st.lists(st.booleans(), min_size=12, max_size=12))
def test_a_document_begins_where_its_ids_begin(opens: list[bool], padded: list[bool]) -> None:
    number = np.cumsum(opens)
    ids = np.where(np.asarray(padded)[number - number[0]], -1, number)
    docs = documents(jnp.asarray(ids[None], jnp.int32))
    for t, one in enumerate(ids):
        first = t
        while first and ids[first - 1] == one:
            first -= 1
        assert int(docs.start[0, t]) == first
        assert bool(docs.valid[0, t]) == (one >= 0)


def test_without_ids_a_row_is_one_document() -> None:
    docs = layers.documents(None, (2, 3))
    assert not docs.start.any()
    assert docs.valid.all()


def test_a_short_convolution_reads_back_within_its_document() -> None:
    x, taps = normal(1, 7, 2), normal(4, 2)
    ids = [0, 0, 0, 1, 1, 1, 1]
    expected = np.zeros_like(x)
    for t in range(7):
        for lag in range(4):
            if t >= lag and ids[t - lag] == ids[t]:
                expected[0, t] += taps[lag] * x[0, t - lag]
    found = jax.jit(lambda x, ids: layers.short_conv(x, jnp.asarray(taps), documents(ids).start))(x, np.array([ids]))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_row_shorter_than_the_kernel_is_no_trouble() -> None:
    x = jnp.asarray(normal(1, 2, 3))
    out = layers.short_conv(x, jnp.ones((4, 3)), jnp.zeros((1, 2), jnp.int32))
    np.testing.assert_allclose(out, np.cumsum(x, axis=1), rtol=1e-6)


def test_rotation_turns_neighbours_of_the_first_half() -> None:
    """As complex numbers: pair i of position t times exp(j · t · theta^(-i / (H/4)))."""
    x = normal(1, 5, 2, 8)
    turned = np.asarray(layers.rotate(jnp.asarray(x), layers.rotation(5, 8, 100.0)))
    for t in range(5):
        for i in range(2):
            pair = (x[0, t, :, 2 * i] + 1j * x[0, t, :, 2 * i + 1]) * np.exp(1j * t * 100.0 ** (-i / 2))
            np.testing.assert_allclose(turned[0, t, :, 2 * i], pair.real, atol=1e-6)
            np.testing.assert_allclose(turned[0, t, :, 2 * i + 1], pair.imag, atol=1e-6)
    np.testing.assert_array_equal(turned[..., 4:], x[..., 4:])
