"""Layers without experts or attention: RMSNorm, GatedNorm, ShortConv, rotary embedding, SwiGLU. Pure functions.

Activations have the compute dtype (float32 or bfloat16) in and out; norms and rotations are float32 inside and rounded
once. Weights come in the compute dtype too. Which document a token belongs to is one array, made once a batch:
`Documents.start`, the position where its document begins. It bounds attention and convolutions alike.

Source: experiments/grug/moe_hero_ep/model.py of marin-community/marin (short convolution: issue #7585).

Letters: B batch, S sequence, D channels, N heads, H head width, R rank of a gate, J taps of a convolution.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

KEPT = "kept"  # mark of what the backward pass finds instead of computing it again, beside products of matrices
QK_NORM_EPSILON = 1e-6  # the learned norms have 1e-5, `ModelConfig.layer_norm_eps`


class Documents(NamedTuple):
    """Where each token's document begins, and which tokens are padding."""

    start: Int[Array, "B S"]  # int32 position in the row
    valid: Bool[Array, "B S"]  # false at padding


def documents(segment_ids: Int[Array, "B S"] | None, shape: tuple[int, ...]) -> Documents:
    """Documents of a batch from its segment ids, contiguous runs with negative ids at padding.

    None: every row of `shape` is one document.
    """
    if segment_ids is None:
        return Documents(jnp.zeros(shape, jnp.int32), jnp.ones(shape, bool))
    opens = segment_ids[:, 1:] != segment_ids[:, :-1]
    position = jnp.arange(1, shape[1], dtype=jnp.int32)
    start = jax.lax.cummax(jnp.where(opens, position[None], 0), axis=1)
    return Documents(jnp.pad(start, ((0, 0), (1, 0))), segment_ids >= 0)


def rms_norm(x: Float[Array, "... D"], gain: Float[Array, " D"], *, epsilon: float) -> Float[Array, "... D"]:
    """x / sqrt(mean(x²) + epsilon) · gain in float32, rounded once."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + epsilon)
    return (y * _last_axis(gain, x.ndim).astype(jnp.float32)).astype(x.dtype)


def unit_norm(x: Float[Array, "... H"]) -> Float[Array, "... H"]:
    """Root mean square one along the last axis, without a gain: the norm of queries and keys."""
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + QK_NORM_EPSILON)).astype(x.dtype)


def gated_norm(
    x: Float[Array, "... D"],
    gain: Float[Array, " D"],
    w_down: Float[Array, "D R"],
    w_up: Float[Array, "R D"],
    *,
    epsilon: float,
) -> Float[Array, "... D"]:
    """RMSNorm, then each channel times a gate in (0, 1) that a bottleneck of rank R reads off the normed vector."""
    y = rms_norm(x, gain, epsilon=epsilon)
    return y * jax.nn.sigmoid(dense(jax.nn.silu(dense(y, w_down)), w_up))


def dense(x: Float[Array, "... D"], w: Float[Array, "D E"]) -> Float[Array, "... E"]:
    """x · w over the last axis, output in the compute dtype.

    Written out with its gradient because of XLA's CPU backend (jaxlib 0.10): left alone, it transposes the gradient of
    an array of three axes for w's product, and computes what leads to that gradient once a use. A GatedNorm of 4,096
    vectors of 128, forward and backward, took 38 ms of processor time without and 17 with.
    """
    return _dense(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[1])


@jax.custom_vjp
def _dense(x: Array, w: Array) -> Array:
    return x @ w


def _dense_forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ w, (x, w)


def _dense_backward(saved: tuple[Array, Array], d_out: Array) -> tuple[Array, Array]:
    x, w = saved
    d_out = jax.lax.optimization_barrier(d_out)
    return d_out @ w.T, x.T @ d_out


_dense.defvjp(_dense_forward, _dense_backward)


def short_conv(x: Float[Array, "B S D"], taps: Float[Array, "J D"], start: Int[Array, "B S"]) -> Float[Array, "B S D"]:
    """Causal depthwise convolution: out[t] = sum over lag j of taps[j] · x[t − j], within t's document.

    Products and sums are in x's dtype, lag after lag from 0, as in the original; fused, XLA may keep more digits.
    """
    reach = jnp.arange(x.shape[1], dtype=jnp.int32)[None] - start  # [B, S] tokens before this one in its document
    out = x * _last_axis(taps[0], 3)
    for lag in range(1, min(taps.shape[0], x.shape[1])):
        earlier = jnp.pad(x[:, :-lag], ((0, 0), (lag, 0), (0, 0)))
        out = out + jnp.where((reach >= lag)[..., None], earlier * _last_axis(taps[lag], 3), jnp.zeros((), x.dtype))
    return out


class Rotation(NamedTuple):
    """Cosine and sine of every position and frequency, [S, H/4] float32."""

    cos: Float[Array, "S F"]
    sin: Float[Array, "S F"]


def rotation(seq_len: int, head_dim: int, theta: float) -> Rotation:
    """Angles t · theta^(−i / (H/4)) for positions t of the row (not of the document), i = 0 … H/4 − 1."""
    frequencies = head_dim // 4
    omega = theta ** (-np.arange(frequencies, dtype=np.float64) / frequencies)
    angle = jnp.arange(seq_len, dtype=jnp.float32)[:, None] * jnp.asarray(omega, jnp.float32)[None]
    return Rotation(jnp.cos(angle), jnp.sin(angle))


def rotate(x: Float[Array, "B S N H"], by: Rotation) -> Float[Array, "B S N H"]:
    """Turn the pairs (0, 1), (2, 3), … of the first half of the head by their angles; the second half stays.

    Pairs are neighbours. The variant that pairs (i, i + H/4) is another function, not a permutation a model could learn
    away after training.
    """
    half = x.shape[-1] // 2
    pairs = x[..., :half].astype(jnp.float32).reshape(*x.shape[:-1], half // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    cos, sin = by.cos[None, :, None], by.sin[None, :, None]  # [1, S, 1, H/4]
    turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(*x.shape[:-1], half)
    return jnp.concatenate([turned.astype(x.dtype), x[..., half:]], axis=-1)


def swiglu(
    x: Float[Array, "... D"], w_gate: Float[Array, "D I"], w_up: Float[Array, "D I"], w_down: Float[Array, "I D"]
) -> Float[Array, "... D"]:
    """(silu(x · gate) ∘ (x · up)) · down, without biases."""
    return dense(jax.nn.silu(dense(x, w_gate)) * dense(x, w_up), w_down)


def keep(x: Array) -> Array:
    """Mark a result that is dear to compute and wanted by the backward pass (`model.transformer`)."""
    return checkpoint_name(x, KEPT)


def _last_axis(vector: Float[Array, " D"], ndim: int) -> Float[Array, "... D"]:
    return vector.reshape((1,) * (ndim - 1) + vector.shape)
