"""Who is dropped: capacities of the expert transports and the order in which they are filled. Integers only.

The pooled-wave transport refuses an assignment at its source, where every destination has so many slots a wave, or at
its destination, where every expert has so many rows a wave. The ragged transport refuses once, by a row budget of the
destination. `transport` moves activations by these plans, on a device mesh and on virtual shards alike.

Sources: capacities and priorities from marin-community/marin#8289, #8348, #8347 (slot before source, comment of
2026-08-17), logical limits #8953, ragged budget #8435 and #8549.

Letters: P expert shards, Λ experts a shard, A assignments of a shard in token-major order, W waves, C_s slots of one
(source, destination, wave), C_r rows of one (expert, wave).
"""

from math import ceil
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from marin_model.grouped import count, order_by


class SenderPlan(NamedTuple):
    """Slots of one source shard, and the way back."""

    assignment: Int[Array, "W P C_s"]  # int32; A marks an empty slot
    slot: Int[Array, " A"]  # int32 into the flattened [W, P, C_s]; W·P·C_s marks an assignment without one
    dropped: Int[Array, ""]  # int32


class ReceiverPlan(NamedTuple):
    """Rows of one destination shard in one wave, and the way back."""

    slot: Int[Array, "Λ C_r"]  # int32 into the flattened [P, C_s]; P·C_s marks an empty row
    row: Int[Array, "P C_s"]  # int32 into the flattened [Λ, C_r]; Λ·C_r marks a slot without one
    dropped: Int[Array, ""]  # int32


def sender_capacity(assignments: int, shards: int, waves: int, factor: float) -> int:
    """C_s: 3,141 for the hero (524,288 assignments, 64 shards, 3 waves, factor 1.15)."""
    return max(1, ceil(factor * assignments / (shards * waves)))


def receiver_capacity(assignments: int, local_experts: int, waves: int, factor: float) -> int:
    """C_r: 33,497 for the hero (6 experts a shard, factor 1.15)."""
    return max(1, ceil(factor * assignments / (local_experts * waves)))


def ragged_budget(assignments: int, chunks: int, factor: float) -> int:
    """Rows of one destination and chunk of experts in the ragged transport: 301,466 for the hero (2 chunks)."""
    return ceil(ceil(factor * assignments) / chunks)


def ragged_chunks(local_experts: int, chunks: int) -> int:
    """Chunks the local experts are cut into; one where they cannot be cut evenly, as upstream falls back."""
    return 1 if local_experts % chunks else chunks


def logical_capacity(valid: Int[Array, "..."], factor: float, ways: int, physical: int) -> Int[Array, "..."]:
    """clip(ceil(factor · valid / ways), 1, physical) in int32, rounded as float64 would round it.

    Padding takes no capacity: buffers stay physical, limits follow the valid assignments. JAX computes without
    float64, so the numbers of assignments at which the limit rises are tabulated in NumPy and looked up.
    """
    limit = np.arange(1, physical, dtype=np.int64)
    near = np.floor(limit * ways / factor).astype(np.int64)
    rises = near + 2
    for step in (1, 0, -1):  # the smallest count whose quotient exceeds the limit
        rises = np.where(factor * (near + step) / ways > limit, near + step, rises)
    rises = np.minimum(rises, np.iinfo(np.int32).max).astype(np.int32)
    return 1 + jnp.searchsorted(jnp.asarray(rises), valid, side="right").astype(jnp.int32)


def plan_sender(
    experts: Int[Array, " A"], *, shards: int, local_experts: int, waves: int, capacity: int, limit: Int[Array, ""]
) -> SenderPlan:
    """Slots of one source's assignments (negative: padding). The n-th to a destination goes to wave n mod W, slot
    n div W, and is kept where that slot is below `limit` <= capacity: late tokens are the ones dropped."""
    destination = jnp.where(experts < 0, -1, experts // local_experts)
    order, sizes = order_by(destination, shards), count(destination, shards)  # [A], [P]
    start = jnp.cumsum(sizes) - sizes
    slot = jnp.arange(capacity, dtype=jnp.int32)[None, None, :]
    rank = slot * waves + jnp.arange(waves, dtype=jnp.int32)[:, None, None]  # [W, 1, C_s]
    filled = (rank < sizes[None, :, None]) & (slot < limit)  # [W, P, C_s]
    assignment = jnp.where(filled, order[jnp.where(filled, start[None, :, None] + rank, 0)], experts.size)
    return SenderPlan(assignment, _inverse(assignment, experts.size), jnp.sum(sizes) - jnp.sum(filled, dtype=jnp.int32))


def visiting_order(shards: int, slots: int) -> Int[Array, " P*C_s"]:
    """In which order a receiver looks at its flattened slots [P, C_s]: slot 0 of every source, then slot 1, ..."""
    return jnp.arange(shards * slots, dtype=jnp.int32).reshape(shards, slots).T.reshape(-1)


def plan_receiver(
    local: Int[Array, "P C_s"], *, local_experts: int, capacity: int, limit: Int[Array, ""]
) -> ReceiverPlan:
    """Rows of one wave, given the local expert of each slot (-1: empty): the first `limit` visited of each are kept."""
    visits = visiting_order(*local.shape)
    visited = local.reshape(-1)[visits]
    order, sizes = order_by(visited, local_experts), count(visited, local_experts)
    start = jnp.cumsum(sizes) - sizes
    rank = jnp.arange(capacity, dtype=jnp.int32)[None, :]
    filled = (rank < sizes[:, None]) & (rank < limit)  # [Λ, C_r]
    slot = jnp.where(filled, visits[order[jnp.where(filled, start[:, None] + rank, 0)]], local.size)
    return ReceiverPlan(slot, _inverse(slot, local.size).reshape(local.shape), jnp.sum(jnp.maximum(sizes - limit, 0)))


def ragged_kept(
    experts: Int[Array, " A"], counts: Int[Array, "P E"], shard: Int[Array, ""], *, chunks: int, budget: int
) -> Bool[Array, " A"]:
    """Which of a source shard's assignments (negative: padding) find room.

    `counts` are the assignments of every source to every expert, `shard` is this source. A destination fills each
    chunk's budget expert by expert, within an expert source by source, within both in order of tokens.
    """
    shards, num_experts = counts.shape
    demand = counts.T.reshape(shards, chunks, -1)  # [destination, chunk, expert x source], in order of priority
    before = jnp.cumsum(demand, axis=-1) - demand
    granted = jnp.clip(budget - before, 0, demand).reshape(num_experts, shards)[:, shard]  # [E]
    order = order_by(experts, num_experts)
    start = jnp.cumsum(counts[shard]) - counts[shard]
    own = jnp.maximum(experts, 0)
    rank = _inverse(order, order.size) - start[own]  # among this source's assignments to the same expert
    return (experts >= 0) & (rank < granted[own])


def _inverse(source: Int[Array, "..."], size: int) -> Int[Array, " size"]:
    """Where each of 0 … size - 1 stands in the flattened source, which holds none twice; `source.size`: nowhere."""
    places = jnp.arange(source.size, dtype=jnp.int32)
    return jnp.full(size, source.size, jnp.int32).at[source.reshape(-1)].set(places, mode="drop")
