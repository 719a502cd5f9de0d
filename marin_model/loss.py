"""Cross-entropy and log-sum-exp of the next token, streamed over blocks of the vocabulary.

[T, V] never exists: a block of columns of the LM head gives a tile of logits, the tile gives its share of the sums, and
is gone. Backward computes the tiles again and turns each into its share of the gradients. Logits, sums and the hidden
gradient's accumulation are float32; with bfloat16 operands the tile's gradient is rounded before its two products, as
in the run (`xla_fast_bwd`, experiments/grug/moe_hero_ep/model.py of marin-community/marin).

Letters: T tokens, D hidden, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

LARGEST_BLOCK = 4096  # columns, the run's tile
TILE = 2**20  # logits of a tile where fewer columns do: 4 MB
SMALLEST_BLOCK = 128


C = TypeVar("C")  # what a loop over blocks carries


class TokenLoss(NamedTuple):
    """Of every position: cross-entropy, and the log-sum-exp that the z-loss squares. Nats, float32."""

    cross_entropy: Float[Array, " T"]
    log_sum_exp: Float[Array, " T"]


class Loss(NamedTuple):
    """Means over the weights of the batch; zero where all weights are. `loss` is the sum of the other two."""

    loss: Float[Array, ""]
    cross_entropy: Float[Array, ""]
    z_loss: Float[Array, ""]


def weighted_loss(
    hidden: Float[Array, "B S D"],
    output_proj: Float[Array, "D V"],
    tokens: Int[Array, "B S"],
    loss_weight: Float[Array, "B S"],
    *,
    z_loss: float,
) -> Loss:
    """Sum of weight · (cross-entropy + z_loss · log-sum-exp²) over the sum of weights, both over the whole batch.

    Position t is scored on token t + 1, across document boundaries too; the last position has label 0 and should have
    weight 0.
    """
    labels = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1))).reshape(-1)
    ce, lse = token_loss(hidden.reshape(-1, hidden.shape[-1]), output_proj, labels)
    weight = loss_weight.astype(jnp.float32).reshape(-1)
    total = jnp.sum(weight)
    scale = jnp.where(total > 0, 1 / jnp.where(total > 0, total, 1.0), 0.0)
    cross_entropy = jnp.sum(weight * ce) * scale
    z = z_loss * jnp.sum(weight * jnp.square(lse)) * scale
    return Loss(cross_entropy + z, cross_entropy, z)


@jax.custom_vjp
def token_loss(hidden: Float[Array, "T D"], output_proj: Float[Array, "D V"], labels: Int[Array, " T"]) -> TokenLoss:
    """Loss of every position against its label. Operands in the compute dtype."""
    return _forward(hidden, output_proj, labels)[0]


def _forward(hidden: Array, output_proj: Array, labels: Array) -> tuple[TokenLoss, tuple[Array, ...]]:
    def add_block(first: Array | int, columns: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, label_logit = carry
        logits = _logits(hidden, columns)  # [T, block]
        higher = jnp.maximum(top, jnp.max(logits, axis=1))
        total = total * jnp.exp(top - higher) + jnp.sum(jnp.exp(logits - higher[:, None]), axis=1)
        here = _is_label(labels, first, columns.shape[1])
        return higher, total, label_logit + jnp.sum(jnp.where(here, logits, 0.0), axis=1)

    tokens = hidden.shape[0]
    start = jnp.full(tokens, -jnp.inf), jnp.zeros(tokens), jnp.zeros(tokens)
    top, total, label_logit = _over_blocks(add_block, start, output_proj, tokens)
    lse = top + jnp.log(total)
    return TokenLoss(lse - label_logit, lse), (hidden, output_proj, labels, lse)


def _backward(saved: tuple[Array, ...], d: TokenLoss) -> tuple[Array, Array, None]:
    hidden, output_proj, labels, lse = saved
    d_softmax = d.cross_entropy + d.log_sum_exp  # [T]
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)

    def add_block(first: Array | int, columns: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        d_hidden, d_proj = carry
        d_logits = jnp.exp(_logits(hidden, columns) - lse[:, None]) * d_softmax[:, None]
        here = _is_label(labels, first, columns.shape[1])
        d_logits = (d_logits - jnp.where(here, d.cross_entropy[:, None], 0.0)).astype(hidden.dtype)
        d_hidden = d_hidden + product("tv,dv->td", d_logits, columns)
        d_columns = product("td,tv->dv", hidden, d_logits).astype(d_proj.dtype)
        return d_hidden, jax.lax.dynamic_update_slice_in_dim(d_proj, d_columns, first, axis=1)

    start = jnp.zeros(hidden.shape, jnp.float32), jnp.zeros_like(output_proj)
    d_hidden, d_proj = _over_blocks(add_block, start, output_proj, hidden.shape[0])
    return d_hidden.astype(hidden.dtype), d_proj, None


token_loss.defvjp(_forward, _backward)


def _over_blocks(add_block: Callable[[Any, Array, C], C], carry: C, output_proj: Array, tokens: int) -> C:
    """add_block(first column, columns [D, block], carry) over whole blocks in a loop, then over what is left."""
    vocabulary = output_proj.shape[1]
    block = min(vocabulary, LARGEST_BLOCK, max(TILE // tokens, SMALLEST_BLOCK))

    def whole(i: Array, carry: C) -> C:
        return add_block(i * block, jax.lax.dynamic_slice_in_dim(output_proj, i * block, block, axis=1), carry)

    blocks = vocabulary // block
    carry = jax.lax.fori_loop(0, blocks, whole, carry)
    left = blocks * block
    return carry if left == vocabulary else add_block(left, output_proj[:, left:], carry)


def _logits(hidden: Array, columns: Array) -> Float[Array, "T block"]:
    return jnp.einsum("td,dv->tv", hidden, columns, preferred_element_type=jnp.float32)


def _is_label(labels: Int[Array, " T"], first: Array | int, block: int) -> Array:
    return (labels - first)[:, None] == jnp.arange(block, dtype=jnp.int32)[None]
