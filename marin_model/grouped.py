"""Routed experts on one device: each assignment of a token to an expert costs one row of matrix work, and no more.

Assignments are sorted by expert, every expert's group is padded to whole blocks of rows, and a loop walks the used
blocks a chunk at a time. Nothing of the size of all assignments is kept: a chunk gathers its rows and its experts,
multiplies, and adds its share to the tokens. The backward pass is written out, since differentiating the loop would
keep every chunk.

Letters: T tokens, K experts chosen a token, A = T·K assignments, E experts, L latent width, I expert width, b rows of a
block, c blocks of a chunk, N blocks.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from marin_model import layers

BLOCKS_PER_EXPERT = 2  # a balanced expert's group in blocks: fewer waste padding, more waste calls; measured
BLOCK_ROWS = (16, 256)  # smallest and largest block; multiples of the first
CHUNK_BLOCKS = 8  # blocks multiplied at once; measured


class ExpertBank(NamedTuple):
    """Weights of the routed experts of one layer, stored [in, out]: SwiGLU from L to I and back."""

    w_gate: Float[Array, "E L I"]
    w_up: Float[Array, "E L I"]
    w_down: Float[Array, "E I L"]


class Blocks(NamedTuple):
    """Assignments sorted by expert and padded to blocks. Block n belongs to one expert; only the first `used` count."""

    assignment: Int[Array, "N b"]  # int32 in [0, A]; A marks an empty row
    expert: Int[Array, " N"]  # int32
    used: Int[Array, ""]  # int32


class Chunk(NamedTuple):
    """What a few blocks work on. An empty row reads the last token, with weight zero."""

    x: Float[Array, "c b L"]  # rows of z
    token: Int[Array, "c b"]
    weight: Float[Array, "c b 1"]  # float32 combine weight
    assignment: Int[Array, "c b"]  # A: empty
    expert: Int[Array, " c"]
    bank: ExpertBank  # of these c experts


def grouped_swiglu(
    z: Float[Array, "T L"], experts: Int[Array, "T K"], weights: Float[Array, "T K"], bank: ExpertBank
) -> Float[Array, "T L"]:
    """Weighted sum over each token's experts: out[t] = sum over k of weights[t, k] · Expert_{experts[t, k]}(z[t]).

    z and bank in the compute dtype; experts int32 (negative: no expert, contributes zero and receives no gradient).
    Returns float32: products and sums of the combine are float32, the matrix products have the compute dtype's output
    (the run's precision policy).
    """
    if jax.default_backend() == "cpu":
        return _blocked_swiglu(z, experts, weights, bank)
    return ragged_swiglu(z, experts, weights, bank)


def ragged_swiglu(
    z: Float[Array, "T L"], experts: Int[Array, "T K"], weights: Float[Array, "T K"], bank: ExpertBank
) -> Float[Array, "T L"]:
    """`grouped_swiglu` over a ragged product: right on accelerators; on CPU it costs E dense products."""
    tokens, per_token = experts.shape
    flat = experts.reshape(-1)
    order = order_by(flat, bank.w_gate.shape[0])  # [A]
    sizes = count(flat, bank.w_gate.shape[0])  # [E]
    rows = z[order // per_token]  # [A, L]
    product = _ragged_product()
    hidden = jax.nn.silu(product(rows, bank.w_gate, sizes)) * product(rows, bank.w_up, sizes)
    rows = product(hidden, bank.w_down, sizes)  # [A, L]
    back = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=jnp.int32))
    rows = rows[back].reshape(tokens, per_token, -1).astype(jnp.float32)
    rows = jnp.where((experts >= 0)[..., None], rows, 0)  # a product may leave rows beyond the groups unwritten
    combine = jnp.where(experts >= 0, weights.astype(jnp.float32), 0)
    return jnp.einsum("tkl,tk->tl", rows, combine)


def _ragged_product() -> Callable[[Array, Array, Array], Array]:
    """tokamax's kernels on a GPU that has them; XLA's own product elsewhere. Neither was timed: no GPU was at hand."""
    if jax.default_backend() == "gpu" and find_spec("tokamax"):
        product: Callable[[Array, Array, Array], Array] = import_module("tokamax").ragged_dot
        return product
    return lax.ragged_dot


def order_by(keys: Int[Array, " n"], buckets: int) -> Int[Array, " n"]:
    """Stable order of int32 keys in [0, buckets), negative ones last. One sort of integers where key and place fit."""
    n = keys.shape[0]
    keys = jnp.where(keys < 0, buckets, keys)
    if (buckets + 1) * n < 2**31:
        return jnp.sort(keys * n + jnp.arange(n, dtype=jnp.int32)) % n
    return jnp.argsort(keys, stable=True).astype(jnp.int32)


def count(keys: Int[Array, " n"], buckets: int) -> Int[Array, " buckets"]:
    """How often each bucket occurs among int32 keys; negative keys count nowhere. int32."""
    return jnp.zeros(buckets, jnp.int32).at[jnp.where(keys < 0, buckets, keys)].add(1, mode="drop")


def plan_blocks(experts: Int[Array, "T K"], num_experts: int) -> Blocks:
    """Sort the assignments by expert and cut each expert's group into blocks, the last one padded."""
    flat = experts.reshape(-1)
    assignments = flat.shape[0]
    rows = _block_rows(assignments, num_experts)
    blocks = min((assignments + num_experts * (rows - 1)) // rows, assignments)  # no routing needs more
    blocks = -(-max(blocks, 1) // CHUNK_BLOCKS) * CHUNK_BLOCKS
    order, sizes = order_by(flat, num_experts), count(flat, num_experts)
    group_start = jnp.cumsum(sizes) - sizes  # [E] in `order`
    group_blocks = (sizes + rows - 1) // rows  # [E]
    block_end = jnp.cumsum(group_blocks)
    number = jnp.arange(blocks, dtype=jnp.int32)
    expert = jnp.minimum(jnp.searchsorted(block_end, number, side="right").astype(jnp.int32), num_experts - 1)
    first_block = block_end - group_blocks
    place = (number - first_block[expert])[:, None] * rows + jnp.arange(rows, dtype=jnp.int32)[None]  # [N, b] in group
    filled = (place < sizes[expert][:, None]) & (number < block_end[-1])[:, None]
    source = jnp.where(filled, group_start[expert][:, None] + place, 0)
    return Blocks(jnp.where(filled, order[source], assignments), expert, block_end[-1])


def _block_rows(assignments: int, num_experts: int) -> int:
    smallest, largest = BLOCK_ROWS
    target = assignments // (num_experts * BLOCKS_PER_EXPERT)
    return min(max(-(-target // smallest) * smallest, smallest), largest)


@jax.custom_vjp
def _blocked_swiglu(z: Array, experts: Array, weights: Array, bank: ExpertBank) -> Array:
    return _forward(z, experts, weights, bank)[0]


def _forward(
    z: Array, experts: Array, weights: Array, bank: ExpertBank
) -> tuple[Array, tuple[Array, Array, ExpertBank, Blocks]]:
    blocks = jax.tree.map(layers.keep, plan_blocks(experts, bank.w_gate.shape[0]))

    def add_chunk(i: Array, out: Array) -> Array:
        chunk = _gather_chunk(i, z, weights, bank, blocks)
        gate, up = _gate_and_up(chunk)
        rows = jnp.einsum("cbi,cil->cbl", jax.nn.silu(gate) * up, chunk.bank.w_down)
        return out.at[chunk.token].add(rows.astype(jnp.float32) * chunk.weight, mode="promise_in_bounds")

    out = lax.fori_loop(0, _chunks(blocks), add_chunk, jnp.zeros(z.shape, jnp.float32))
    return out, (z, weights, bank, blocks)


def _backward(saved: tuple[Array, Array, ExpertBank, Blocks], d_out: Array) -> tuple[Array, None, Array, ExpertBank]:
    """Gate and up are computed again; the combine weight's gradient is ⟨h, d_h⟩, which needs no expert output."""
    z, weights, bank, blocks = saved

    def add_chunk(i: Array, carry: tuple[Array, Array, ExpertBank]) -> tuple[Array, Array, ExpertBank]:
        d_z, d_weights, d_bank = carry
        chunk = _gather_chunk(i, z, weights, bank, blocks)
        gate, up = _gate_and_up(chunk)
        sigmoid = jax.nn.sigmoid(gate)
        silu = gate * sigmoid
        h = silu * up  # [c, b, I]
        d_rows = d_out.at[chunk.token].get(mode="promise_in_bounds")  # [c, b, L] float32, before the combine weight
        d_h = jnp.einsum("cbl,cil->cbi", d_rows.astype(z.dtype), chunk.bank.w_down)
        d_weight = jnp.sum(d_h.astype(jnp.float32) * h.astype(jnp.float32), axis=2)
        d_weights = d_weights.at[chunk.assignment].set(d_weight, mode="drop")
        d_rows = (d_rows * chunk.weight).astype(z.dtype)
        d_h = d_h * chunk.weight.astype(z.dtype)
        d_gate, d_up = d_h * up * (sigmoid + silu * (1 - sigmoid)), d_h * silu
        d_x = jnp.einsum("cbi,cli->cbl", d_gate, chunk.bank.w_gate)
        d_x += jnp.einsum("cbi,cli->cbl", d_up, chunk.bank.w_up)
        d_z = d_z.at[chunk.token].add(d_x.astype(jnp.float32), mode="promise_in_bounds")
        # Products that sum over the rows of both sides are slow in XLA's CPU backend (jaxlib 0.10: 120 against 57 ms
        # of processor time for 65,536 rows of 128), and without the barrier it folds the transposes back into them.
        x_t, h_t = lax.optimization_barrier((jnp.swapaxes(chunk.x, 1, 2), jnp.swapaxes(h, 1, 2)))
        d_experts = ExpertBank(
            jnp.einsum("clb,cbi->cli", x_t, d_gate),
            jnp.einsum("clb,cbi->cli", x_t, d_up),
            jnp.einsum("cib,cbl->cil", h_t, d_rows),
        )
        d_bank = jax.tree.map(lambda d, g: d.at[chunk.expert].add(g.astype(jnp.float32)), d_bank, d_experts)
        return d_z, d_weights, d_bank

    start = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (z, weights.reshape(-1), bank))
    d_z, d_weights, d_bank = lax.fori_loop(0, _chunks(blocks), add_chunk, start)
    d_bank = jax.tree.map(lambda d, w: d.astype(w.dtype), d_bank, bank)
    return d_z.astype(z.dtype), None, d_weights.reshape(weights.shape).astype(weights.dtype), d_bank


_blocked_swiglu.defvjp(_forward, _backward)


def _chunks(blocks: Blocks) -> Int[Array, ""]:
    return (blocks.used + CHUNK_BLOCKS - 1) // CHUNK_BLOCKS


def _gather_chunk(i: Array, z: Array, weights: Array, bank: ExpertBank, blocks: Blocks) -> Chunk:
    assignment, expert = (
        lax.dynamic_slice_in_dim(of_block, i * CHUNK_BLOCKS, CHUNK_BLOCKS)
        for of_block in (blocks.assignment, blocks.expert)
    )
    inside = jnp.minimum(assignment, weights.size - 1)
    token = inside // weights.shape[1]
    weight = weights.reshape(-1).at[inside].get(mode="promise_in_bounds").astype(jnp.float32)
    return Chunk(
        x=z.at[token].get(mode="promise_in_bounds"),
        token=token,
        weight=jnp.where(assignment < weights.size, weight, 0)[:, :, None],
        assignment=assignment,
        expert=expert,
        bank=ExpertBank(*(w.at[expert].get(mode="promise_in_bounds") for w in bank)),
    )


def _gate_and_up(chunk: Chunk) -> tuple[Float[Array, "c b I"], Float[Array, "c b I"]]:
    gate, up = (jnp.einsum("cbl,cli->cbi", chunk.x, w) for w in (chunk.bank.w_gate, chunk.bank.w_up))
    return gate, up
