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
from jaxtyping import Array, Bool, Float, Int

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
    return y * jax.nn.sigmoid(jax.nn.silu(y @ w_down) @ w_up)


def short_conv(x: Float[Array, "B S D"], taps: Float[Array, "J D"], start: Int[Array, "B S"]) -> Float[Array, "B S D"]:
    """Causal depthwise convolution: out[t] = sum over lag j of taps[j] · x[t − j], within t's document.

    Products and sums are in x's dtype, lag after lag from 0: rounding of the original's kernels.
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
    return (jax.nn.silu(x @ w_gate) * (x @ w_up)) @ w_down


def _last_axis(vector: Float[Array, " D"], ndim: int) -> Float[Array, "... D"]:
    return vector.reshape((1,) * (ndim - 1) + vector.shape)
