"""One expert shard of the pooled-wave all-to-all: what it sends, computes and gets back.

Runs under the axis name `sharding.EXPERT`, which either `shard_map` or `vmap` binds (see `transport`). A wave's message
from one source to one destination is ceil(C_s / L) header rows followed by C_s rows of activations; header entry j is
the local expert of slot j plus one, zero for an empty slot, in the activations' dtype (marin-community/marin#8289).

Activations move by two gathers that are each other's transpose, written out so that no gradient is a scatter and that
sums over a token's routes are float32 (the run's precision policy).

Letters as in `transport` and `capacity`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from marin_model import capacity
from marin_model.grouped import ExpertBank
from marin_model.sharding import EXPERT


def pooled_wave_shard(
    z: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    bank: ExpertBank,
    *,
    waves: int,
    sender_factor: float,
    receiver_factor: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """z [τ, L], experts [τ, K] (negative: padding), weights [τ, K], bank of this shard's Λ experts.

    Returns out [τ, L], sender and receiver drops [] int32 of this shard, kept [τ, K] bool.
    """
    shards, local_experts = lax.axis_size(EXPERT), bank.w_gate.shape[0]
    slots = capacity.sender_capacity(experts.size, shards, waves, sender_factor)
    rows = capacity.receiver_capacity(experts.size, local_experts, waves, receiver_factor)
    valid = jnp.sum(experts >= 0, dtype=jnp.int32)
    slot_limit = capacity.logical_capacity(valid, sender_factor, shards * waves, slots)
    row_limit = capacity.logical_capacity(
        lax.psum(valid, EXPERT), receiver_factor, shards * local_experts * waves, rows
    )
    sent = capacity.plan_sender(
        experts.reshape(-1), shards=shards, local_experts=local_experts, waves=waves, capacity=slots, limit=slot_limit
    )
    slot_wave = (sent.slot // (shards * slots)).reshape(experts.shape)  # [τ, K]; `waves` where there is none
    out, dropped, kept = jnp.zeros(z.shape, jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros(experts.shape, bool)
    for wave in range(waves):
        assignment = sent.assignment[wave].reshape(-1)  # [P·C_s]
        slot = jnp.where(
            slot_wave == wave, sent.slot.reshape(experts.shape) % (shards * slots), shards * slots
        )  # [τ, K]
        local = jnp.append(experts.reshape(-1) % local_experts, -1)[assignment].reshape(shards, slots)
        payload = place(z, assignment // experts.shape[1], slot).reshape(shards, slots, -1)
        local, payload = _read_header(_exchange(_write_header(local, payload)), slots)
        plan = capacity.plan_receiver(local, local_experts=local_experts, capacity=rows, limit=row_limit)
        flat = payload.reshape(shards * slots, -1)
        buffer = place(flat, plan.slot.reshape(-1), plan.row.reshape(-1, 1)).reshape(local_experts, rows, -1)
        buffer = _swiglu(buffer, bank).reshape(local_experts * rows, -1)
        flat = place(buffer, plan.row.reshape(-1), plan.slot.reshape(-1, 1))  # zero where dropped
        back = _exchange(flat.reshape(shards, slots, -1)).reshape(shards * slots, -1)
        arrived = _exchange(plan.row < local_experts * rows).reshape(-1)  # [P·C_s] bool
        out = out + combine(back, weights, slot, assignment)
        kept = kept | arrived.at[slot].get(mode="fill", fill_value=False)
        dropped = dropped + plan.dropped
    return out.astype(z.dtype), sent.dropped, dropped, kept


@jax.custom_vjp
def place(x: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    """Rows of x [n, L] at their places: out[i] = x[source[i]], zero where source[i] is n. [m, L].

    target [n, r] holds, for each row of x, the up to r places it went to (m: none). The gradient gathers by it and sums
    in float32.
    """
    return x.at[source].get(mode="fill", fill_value=0)


def _place_forward(x: jax.Array, source: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    return place(x, source, target), target


def _place_backward(target: jax.Array, d_out: jax.Array) -> tuple[jax.Array, None, None]:
    gathered = d_out.at[target].get(mode="fill", fill_value=0)  # [n, r, L]
    return jnp.sum(gathered.astype(jnp.float32), axis=1).astype(d_out.dtype), None, None


place.defvjp(_place_forward, _place_backward)


@jax.custom_vjp
def combine(rows: jax.Array, weights: jax.Array, slot: jax.Array, assignment: jax.Array) -> jax.Array:
    """out[t] = sum over k of weights[t, k] · rows[slot[t, k]], products and sum in float32; nothing where slot is m.

    rows [m, L]; weights, slot [τ, K]; assignment [m] int32, the way back (τ·K: an empty row). Returns [τ, L] float32.
    """
    return _weighted_sum(_rows_of_tokens(rows, slot), weights)


def _combine_forward(
    rows: jax.Array, weights: jax.Array, slot: jax.Array, assignment: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array, jax.Array]]:
    return combine(rows, weights, slot, assignment), (rows, weights, slot, assignment)


def _combine_backward(
    saved: tuple[jax.Array, jax.Array, jax.Array, jax.Array], d_out: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    rows, weights, slot, assignment = saved
    weight = weights.reshape(-1).at[assignment].get(mode="fill", fill_value=0).astype(jnp.float32)[:, None]  # [m, 1]
    d_rows = weight * d_out.at[assignment // slot.shape[1]].get(mode="fill", fill_value=0)
    d_weights = jnp.einsum("tl,tkl->tk", d_out, _rows_of_tokens(rows, slot))
    return d_rows.astype(rows.dtype), d_weights.astype(weights.dtype), None, None


combine.defvjp(_combine_forward, _combine_backward)


def _rows_of_tokens(rows: jax.Array, slot: jax.Array) -> jax.Array:
    return rows.at[slot].get(mode="fill", fill_value=0).astype(jnp.float32)  # [τ, K, L]


def _weighted_sum(rows: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.einsum("tkl,tk->tl", rows, weights.astype(jnp.float32))


def _exchange(blocks: jax.Array) -> jax.Array:
    """Block p of the leading axis [P, ...] goes to shard p; what comes back is ordered by its source."""
    return lax.all_to_all(blocks, EXPERT, split_axis=0, concat_axis=0, tiled=True)


def _write_header(local: jax.Array, payload: jax.Array) -> jax.Array:
    """local [P, C_s] (-1 empty) in front of payload [P, C_s, L]: [P, ceil(C_s / L) + C_s, L]."""
    shards, slots, width = payload.shape
    padded = jnp.pad(local + 1, ((0, 0), (0, -slots % width))).reshape(shards, -1, width)
    return jnp.concatenate([padded.astype(payload.dtype), payload], axis=1)


def _read_header(message: jax.Array, slots: int) -> tuple[jax.Array, jax.Array]:
    header = message.shape[1] - slots
    local = message[:, :header].reshape(message.shape[0], -1)[:, :slots].astype(jnp.int32) - 1
    return local, message[:, header:]


def _swiglu(x: jax.Array, bank: ExpertBank) -> jax.Array:
    """x [Λ, C_r, L], one expert a leading row."""
    gate, up = jnp.einsum("erl,eli->eri", x, bank.w_gate), jnp.einsum("erl,eli->eri", x, bank.w_up)
    return jnp.einsum("eri,eil->erl", jax.nn.silu(gate) * up, bank.w_down)
