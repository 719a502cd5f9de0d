"""Routed experts on one device: each assignment of a token to an expert costs one row of matrix work, and no more.

Assignments are sorted by expert, every expert's group is padded to whole blocks of rows, and a loop walks the used
blocks a chunk at a time. Nothing of the size of all assignments is kept: a chunk gathers its rows, multiplies, and adds
its share to the tokens. The backward pass is written out, since differentiating the loop would keep every chunk.

Two facts about XLA's CPU backend (jaxlib 0.10) shape the loop: a batched dot of small matrices runs on one core, while
independent dots of one loop body are spread over the cores, hence the blocks of a chunk written out one by one; and
fresh memory is slow (a page fault costs more than the multiplications of its rows), hence no large temporaries.

Letters: T tokens, K experts chosen a token, A = T·K assignments, E experts, L latent width, I expert width, b rows of a
block, c blocks of a chunk, N blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

BLOCKS_PER_EXPERT = 2  # a balanced expert's group in blocks: fewer waste padding, more waste calls; measured
BLOCK_ROWS = (16, 256)  # smallest and largest block; multiples of the first
CHUNK_BLOCKS = 16  # enough independent dots to occupy the cores; compile time grows with it


class ExpertBank(NamedTuple):
    """Weights of the routed experts of one layer, stored [in, out]: SwiGLU from L to I and back."""

    w_gate: jax.Array  # [E, L, I]
    w_up: jax.Array  # [E, L, I]
    w_down: jax.Array  # [E, I, L]


class Blocks(NamedTuple):
    """Assignments sorted by expert and padded to blocks. Block n belongs to one expert; only the first `used` count."""

    assignment: jax.Array  # [N, b] int32 in [0, A]; A marks an empty row
    expert: jax.Array  # [N] int32
    used: jax.Array  # [] int32


def grouped_swiglu(z: jax.Array, experts: jax.Array, weights: jax.Array, bank: ExpertBank) -> jax.Array:
    """Weighted sum over each token's experts: out[t] = sum over k of weights[t, k] · Expert_{experts[t, k]}(z[t]).

    z [T, L] in the compute dtype, experts [T, K] int32 (negative: no expert, contributes zero and receives no
    gradient), weights [T, K], bank in the compute dtype. Returns [T, L] float32: products and sums of the combine are
    float32, the matrix products have the compute dtype's output (the run's precision policy).
    """
    if jax.default_backend() == "cpu":
        return _blocked_swiglu(z, experts, weights, bank)
    return ragged_swiglu(z, experts, weights, bank)


def ragged_swiglu(z: jax.Array, experts: jax.Array, weights: jax.Array, bank: ExpertBank) -> jax.Array:
    """`grouped_swiglu` over `jax.lax.ragged_dot`: right on accelerators; on CPU it costs E dense products."""
    tokens, per_token = experts.shape
    flat = experts.reshape(-1)
    order = order_by(flat, bank.w_gate.shape[0])  # [A]
    sizes = count(flat, bank.w_gate.shape[0])  # [E]
    rows = z[order // per_token]  # [A, L]
    hidden = jax.nn.silu(lax.ragged_dot(rows, bank.w_gate, sizes)) * lax.ragged_dot(rows, bank.w_up, sizes)
    rows = lax.ragged_dot(hidden, bank.w_down, sizes)  # [A, L]; rows beyond the groups are zero
    back = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=jnp.int32))
    rows = rows[back].reshape(tokens, per_token, -1).astype(jnp.float32)
    combine = jnp.where(experts >= 0, weights.astype(jnp.float32), 0)
    return jnp.einsum("tkl,tk->tl", rows, combine)


def order_by(keys: jax.Array, buckets: int) -> jax.Array:
    """Stable order of keys [n] int32 in [0, buckets), negative ones last: [n] int32. Fast where a pair fits one int."""
    n = keys.shape[0]
    keys = jnp.where(keys < 0, buckets, keys)
    if (buckets + 1) * n < 2**31:
        return jnp.sort(keys * n + jnp.arange(n, dtype=jnp.int32)) % n
    return jnp.argsort(keys, stable=True).astype(jnp.int32)


def count(keys: jax.Array, buckets: int) -> jax.Array:
    """How often each bucket occurs among keys [n] int32; negative keys count nowhere. [buckets] int32."""
    return jnp.zeros(buckets, jnp.int32).at[jnp.where(keys < 0, buckets, keys)].add(1, mode="drop")


def plan_blocks(experts: jax.Array, num_experts: int) -> Blocks:
    """Sort the assignments experts [T, K] by expert and cut each expert's group into blocks, the last one padded."""
    flat = experts.reshape(-1)
    assignments = flat.shape[0]
    rows = _block_rows(assignments, num_experts)
    blocks = min((assignments + num_experts * (rows - 1)) // rows, assignments)  # no routing needs more
    blocks = -(-max(blocks, 1) // CHUNK_BLOCKS) * CHUNK_BLOCKS
    order, sizes = order_by(flat, num_experts), count(flat, num_experts)
    group_start = jnp.cumsum(sizes) - sizes  # [E] in `order`
    block_end = jnp.cumsum((sizes + rows - 1) // rows)  # [E]
    number = jnp.arange(blocks, dtype=jnp.int32)
    expert = jnp.minimum(jnp.searchsorted(block_end, number, side="right").astype(jnp.int32), num_experts - 1)
    first_block = block_end - (sizes + rows - 1) // rows
    place = (number - first_block[expert])[:, None] * rows + jnp.arange(rows, dtype=jnp.int32)[None]  # [N, b] in group
    filled = (place < sizes[expert][:, None]) & (number < block_end[-1])[:, None]
    source = jnp.where(filled, group_start[expert][:, None] + place, 0)
    return Blocks(jnp.where(filled, order[source], assignments), expert, block_end[-1])


def _block_rows(assignments: int, num_experts: int) -> int:
    smallest, largest = BLOCK_ROWS
    target = assignments / (num_experts * BLOCKS_PER_EXPERT)
    return min(max(-(-int(target) // smallest) * smallest, smallest), largest)


@jax.custom_vjp
def _blocked_swiglu(z: jax.Array, experts: jax.Array, weights: jax.Array, bank: ExpertBank) -> jax.Array:
    return _forward(z, experts, weights, bank)[0]


def _forward(
    z: jax.Array, experts: jax.Array, weights: jax.Array, bank: ExpertBank
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Blocks, ExpertBank]]:
    blocks = plan_blocks(experts, bank.w_gate.shape[0])

    def add_chunk(i: jax.Array, out: jax.Array) -> jax.Array:
        chunk = _gather_chunk(i, blocks, z, weights)
        for x, token, weight, _, expert in chunk:
            gate_up, down = _expert_weights(bank, expert)
            gate, up = jnp.split(x @ gate_up, 2, axis=1)
            rows = (jax.nn.silu(gate) * up) @ down  # [b, L]
            out = out.at[token].add(rows.astype(jnp.float32) * weight, mode="promise_in_bounds")
        return out

    out = lax.fori_loop(0, _chunks(blocks), add_chunk, jnp.zeros(z.shape, jnp.float32))
    return out, (z, weights, blocks, bank)


def _backward(
    saved: tuple[jax.Array, jax.Array, Blocks, ExpertBank], d_out: jax.Array
) -> tuple[jax.Array, None, jax.Array, ExpertBank]:
    """Gate and up are computed again; the weight's gradient is ⟨h, d_h⟩, which needs no expert output."""
    z, weights, blocks, bank = saved

    def add_chunk(i: jax.Array, carry: tuple[jax.Array, jax.Array, ExpertBank]) -> tuple:
        d_z, d_weights, d_bank = carry
        for x, token, weight, assignment, expert in _gather_chunk(i, blocks, z, weights):
            gate_up, down = _expert_weights(bank, expert)
            gate, up = jnp.split(x @ gate_up, 2, axis=1)  # [b, I] each
            sigmoid = jax.nn.sigmoid(gate)
            silu = gate * sigmoid
            h = silu * up
            d_rows = d_out.at[token].get(mode="promise_in_bounds")  # [b, L] float32, before the combine weight
            d_h = d_rows.astype(x.dtype) @ down.T
            d_weight = jnp.sum(d_h.astype(jnp.float32) * h.astype(jnp.float32), axis=1)
            d_weights = d_weights.at[assignment].set(d_weight, mode="drop")
            d_rows = (d_rows * weight).astype(x.dtype)
            d_h = d_h * weight.astype(x.dtype)
            d_gate_up = jnp.concatenate([d_h * up * (sigmoid + silu * (1 - sigmoid)), d_h * silu], axis=1)  # [b, 2I]
            d_x = d_gate_up @ gate_up.T
            d_z = d_z.at[token].add(d_x.astype(jnp.float32), mode="promise_in_bounds")
            d_expert = (*jnp.split(x.T @ d_gate_up, 2, axis=1), h.T @ d_rows)
            # at[].add, not slice + update: the latter copies the whole bank once a block
            d_bank = ExpertBank(*(d.at[expert].add(g.astype(d.dtype)) for d, g in zip(d_bank, d_expert, strict=True)))
        return d_z, d_weights, d_bank

    start = (
        jnp.zeros(z.shape, jnp.float32),
        jnp.zeros(weights.size, jnp.float32),
        ExpertBank(*(jnp.zeros(w.shape, jnp.float32) for w in bank)),
    )
    d_z, d_weights, d_bank = lax.fori_loop(0, _chunks(blocks), add_chunk, start)
    return (
        d_z.astype(z.dtype),
        None,
        d_weights.reshape(weights.shape).astype(weights.dtype),
        ExpertBank(*(d.astype(w.dtype) for d, w in zip(d_bank, bank, strict=True))),
    )


_blocked_swiglu.defvjp(_forward, _backward)


def _chunks(blocks: Blocks) -> jax.Array:
    return (blocks.used + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS


def _expert_weights(bank: ExpertBank, expert: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gate and up side by side [L, 2I], so that two products are one, and down [I, L]."""
    gate, up, down = (lax.dynamic_index_in_dim(w, expert, 0, keepdims=False) for w in bank)
    return jnp.concatenate([gate, up], axis=1), down


def _gather_chunk(i: jax.Array, blocks: Blocks, z: jax.Array, weights: jax.Array) -> list[tuple[jax.Array, ...]]:
    """Rows of chunk i, for each block: z [b, L], tokens [b], weights [b, 1] float32, assignments [b], expert []."""
    rows = blocks.assignment.shape[1]
    assignment = lax.dynamic_slice_in_dim(blocks.assignment, i * CHUNK_BLOCKS, CHUNK_BLOCKS).reshape(-1)  # [c·b]
    expert = lax.dynamic_slice_in_dim(blocks.expert, i * CHUNK_BLOCKS, CHUNK_BLOCKS)  # [c]
    filled = assignment < weights.size
    inside = jnp.minimum(assignment, weights.size - 1)  # an empty row reads the last token, with weight zero
    token = inside // weights.shape[1]
    x = z.at[token].get(mode="promise_in_bounds")
    weight = weights.reshape(-1).at[inside].get(mode="promise_in_bounds").astype(jnp.float32)
    weight = jnp.where(filled, weight, 0)[:, None]
    cuts = [slice(j * rows, (j + 1) * rows) for j in range(CHUNK_BLOCKS)]
    return [(x[s], token[s], weight[s], assignment[s], expert[j]) for j, s in enumerate(cuts)]
