"""One expert shard of the pooled-wave all-to-all: what it sends, computes and gets back.

Runs under the axis name `sharding.EXPERT`, which either `shard_map` or `vmap` binds, or under that and the one of the
shards within a device (see `transport`, `exchange`). A wave's message from one source to one destination is
ceil(C_s / L) header rows followed by C_s rows of activations; header entry j is the local expert of slot j plus one,
zero for an empty slot, in the activations' dtype (marin-community/marin#8289).

Activations move by two gathers that are each other's transpose, written out so that no gradient is a scatter and that
sums over a token's routes are float32 (the run's precision policy).

Letters as in `transport` and `capacity`.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from marin_model import capacity, exchange
from marin_model.grouped import ExpertBank
from marin_model.sharding import EXPERT


def pooled_wave_shard(
    z: Float[Array, "τ L"],
    experts: Int[Array, "τ K"],
    weights: Float[Array, "τ K"],
    bank: ExpertBank,
    *,
    waves: int,
    sender_factor: float,
    receiver_factor: float,
    axes: exchange.Axes = (EXPERT,),
) -> tuple[Float[Array, "τ L"], Int[Array, ""], Int[Array, ""], Bool[Array, "τ K"]]:
    """This shard's tokens (experts negative: padding) and the bank of its Λ experts.

    Returns the weighted sums, this shard's drops as sender and as receiver, and which assignments were kept.
    """
    shards, local_experts = exchange.shard_count(axes), bank.w_gate.shape[0]
    slots = capacity.sender_capacity(experts.size, shards, waves, sender_factor)
    rows = capacity.receiver_capacity(experts.size, local_experts, waves, receiver_factor)
    valid = jnp.sum(experts >= 0, dtype=jnp.int32)
    slot_limit = capacity.logical_capacity(valid, sender_factor, shards * waves, slots)
    row_limit = capacity.logical_capacity(lax.psum(valid, axes), receiver_factor, shards * local_experts * waves, rows)
    sent = capacity.plan_sender(
        experts.reshape(-1), shards=shards, local_experts=local_experts, waves=waves, capacity=slots, limit=slot_limit
    )
    nowhere = shards * slots  # marks an assignment that has no slot in a wave
    sent_slot = sent.slot.reshape(experts.shape)  # [τ, K] into the slots of all waves
    local_expert = jnp.append(experts.reshape(-1) % local_experts, -1)  # [A + 1]
    out, dropped, kept = jnp.zeros(z.shape, jnp.float32), jnp.zeros((), jnp.int32), jnp.zeros(experts.shape, bool)
    for wave in range(waves):
        # At the source: a block of slots for every destination.
        assignment = sent.assignment[wave].reshape(-1)  # [P·C_s]
        slot = sent_slot - wave * nowhere
        slot = jnp.where((slot >= 0) & (slot < nowhere), slot, nowhere)  # [τ, K]
        local = local_expert[assignment].reshape(shards, slots)
        payload = place(z, assignment // experts.shape[1], slot).reshape(shards, slots, -1)
        # At the destination: a block of slots from every source, rows for every expert, and the slots sent back.
        local, payload = _read_header(exchange.to_shards(_write_header(local, payload), axes), slots)
        plan = capacity.plan_receiver(local, local_experts=local_experts, capacity=rows, limit=row_limit)
        received = payload.reshape(nowhere, -1)
        x = place(received, plan.slot.reshape(-1), plan.row.reshape(-1, 1))
        x = _swiglu(x.reshape(local_experts, rows, -1), bank).reshape(local_experts * rows, -1)
        answers = place(x, plan.row.reshape(-1), plan.slot.reshape(-1, 1))  # [P·C_s, L], zero where refused
        # At the source again.
        answers = exchange.to_shards(answers.reshape(shards, slots, -1), axes).reshape(nowhere, -1)
        accepted = exchange.to_shards(plan.row < local_experts * rows, axes).reshape(-1)  # [P·C_s] bool
        out = out + combine(answers, weights, slot, assignment)
        kept = kept | _rows(accepted, slot)
        dropped = dropped + plan.dropped
    return out.astype(z.dtype), sent.dropped, dropped, kept


@jax.custom_vjp
def place(x: Float[Array, "n L"], source: Int[Array, " m"], target: Int[Array, "n r"]) -> Float[Array, "m L"]:
    """Rows of x at their places: out[i] = x[source[i]], zero where source[i] is n.

    target holds, for each row of x, the up to r places it went to (m: none). The gradient gathers by it and sums in
    float32.
    """
    return _rows(x, source)


def _place_forward(x: Array, source: Array, target: Array) -> tuple[Array, Array]:
    return place(x, source, target), target


def _place_backward(target: Array, d_out: Array) -> tuple[Array, None, None]:
    return jnp.sum(_rows(d_out, target).astype(jnp.float32), axis=1).astype(d_out.dtype), None, None


place.defvjp(_place_forward, _place_backward)


@jax.custom_vjp
def combine(
    rows: Float[Array, "m L"], weights: Float[Array, "τ K"], slot: Int[Array, "τ K"], assignment: Int[Array, " m"]
) -> Float[Array, "τ L"]:
    """out[t] = sum over k of weights[t, k] · rows[slot[t, k]], products and sum in float32; nothing where slot is m.

    `assignment` is the way back (τ·K: an empty row). Returns float32.
    """
    return _weighted_sum(_rows_of_tokens(rows, slot), weights)


def _combine_forward(
    rows: Array, weights: Array, slot: Array, assignment: Array
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    return combine(rows, weights, slot, assignment), (rows, weights, slot, assignment)


def _combine_backward(saved: tuple[Array, Array, Array, Array], d_out: Array) -> tuple[Array, Array, None, None]:
    rows, weights, slot, assignment = saved
    weight = _rows(weights.reshape(-1, 1), assignment).astype(jnp.float32)  # [m, 1]
    d_rows = weight * _rows(d_out, assignment // slot.shape[1])
    d_weights = jnp.einsum("tl,tkl->tk", d_out, _rows_of_tokens(rows, slot))
    return d_rows.astype(rows.dtype), d_weights.astype(weights.dtype), None, None


combine.defvjp(_combine_forward, _combine_backward)


def _rows_of_tokens(rows: Array, slot: Array) -> Array:
    return _rows(rows, slot).astype(jnp.float32)  # [τ, K, L]


def _weighted_sum(rows: Array, weights: Array) -> Array:
    return jnp.einsum("tkl,tk->tl", rows, weights.astype(jnp.float32))


def _rows(x: Float[Array, "n ..."], index: Int[Array, "..."]) -> Float[Array, "..."]:
    """Rows of x by an index in [0, n]; zeros for n."""
    return x.at[index].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def _write_header(local: Array, payload: Array) -> Array:
    """local [P, C_s] (-1 empty) in front of payload [P, C_s, L]: [P, ceil(C_s / L) + C_s, L]."""
    shards, slots, width = payload.shape
    padded = jnp.pad(local + 1, ((0, 0), (0, -slots % width))).reshape(shards, -1, width)
    return jnp.concatenate([padded.astype(payload.dtype), payload], axis=1)


def _read_header(message: Array, slots: int) -> tuple[Array, Array]:
    header = message.shape[1] - slots
    local = message[:, :header].reshape(message.shape[0], -1)[:, :slots].astype(jnp.int32) - 1
    return local, message[:, header:]


def _swiglu(x: Array, bank: ExpertBank) -> Array:
    """x [Λ, C_r, L], one expert a leading row."""
    gate, up = jnp.einsum("erl,eli->eri", x, bank.w_gate), jnp.einsum("erl,eli->eri", x, bank.w_up)
    return jnp.einsum("eri,eil->erl", jax.nn.silu(gate) * up, bank.w_down)
