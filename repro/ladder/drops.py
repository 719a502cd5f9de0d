"""Who is dropped at a run's full routing geometry, on assignments drawn from a model of its router.

A rack is drawn shard by shard (`router_scores`), and the plans of `marin_model.capacity`, which training runs by, say
which assignments find room: the pooled-wave transport's at source and destination, or the ragged one's. Nothing is
computed with activations, so that a rack of 64 shards with 65,536 tokens each fits a laptop.

    drop fraction     assignments without room, of all that were chosen (tokens x K); one layer, one rack, one batch
    by position       the same by the token's place in its sequence, in equal parts
    interval          Student's t at 95% over draws. A draw is of another layer, topics, batch and noise anew; layers
                      differ in how strong their preferences are, and so their drops do, which the interval holds

Comes in: a `Geometry`, a `ScoreModel`, capacity factors. Goes out: `Dropped`, one a draw, or an `Outcome` over draws.

Letters: P shards, Λ experts a shard, A assignments of a shard, W waves, C_s slots, C_r rows, as in `capacity`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax
from scipy.stats import t as student

from marin_model import capacity
from marin_model.grouped import count
from repro.errors import UsageError
from repro.ladder.recipe import Recipe
from repro.ladder.router_scores import (
    Documents,
    ScoreModel,
    balance,
    choose_experts,
    draw_documents,
    draw_topics,
    in_threads,
)

Balance = Literal["previous", "same", "off"]
BALANCES: tuple[str, ...] = get_args(Balance)
PARTS = 8  # of a sequence
CHUNKS = 2  # of the ragged transport: marin_model.transport.Transport
FINE_PASSES = 3  # of balancing on the batch itself, after a first guess on one rack


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A rack as the transport sees it."""

    shards: int
    experts: int
    chosen: int
    tokens_per_shard: int
    waves: int
    racks: int  # whose tokens the balance is measured on

    @property
    def assignments(self) -> int:
        """Of one shard."""
        return self.tokens_per_shard * self.chosen

    @property
    def tokens(self) -> int:
        """Of a rack."""
        return self.tokens_per_shard * self.shards


class Room(NamedTuple):
    """A transport and its capacity factors."""

    transport: Literal["pooled_wave", "ragged"]
    sender_factor: float | None  # None: the ragged transport has no limit there
    receiver_factor: float


class Dropped(NamedTuple):
    """One rack's drops, as fractions of its assignments."""

    sender: float
    receiver: float  # the ragged budget counts here: it is the destination's
    by_position: tuple[float, ...]  # of the assignments of that part of the sequence
    heaviest_expert: float  # its load over the mean, before anything is dropped

    @property
    def total(self) -> float:
        """Dropped of all assignments."""
        return self.sender + self.receiver


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A sequence length and a transport over draws."""

    seq_len: int
    room: Room
    draws: tuple[Dropped, ...]  # one a layer

    def as_json(self) -> dict[str, Any]:
        """One row of the command line's `drops` object."""
        totals = [one.total for one in self.draws]
        low, high = interval_95(totals)
        return {
            "seq_len": self.seq_len,
            **self.room._asdict(),
            "drop_fraction": float(np.mean(totals)),
            "interval_95": [low, high],
            "by_draw": totals,
            "sender_drop_fraction": float(np.mean([one.sender for one in self.draws])),
            "receiver_drop_fraction": float(np.mean([one.receiver for one in self.draws])),
            "by_position": np.mean([one.by_position for one in self.draws], axis=0).tolist(),
            "heaviest_expert": float(np.mean([one.heaviest_expert for one in self.draws])),
        }


def geometry_of(recipe: Recipe) -> Geometry:
    """The rack of a recipe."""
    return Geometry(
        shards=recipe.gpus // recipe.racks,
        experts=recipe.model.num_experts,
        chosen=recipe.model.num_experts_per_token,
        tokens_per_shard=recipe.tokens_per_step // recipe.gpus,
        waves=recipe.model.num_expert_waves,
        racks=recipe.racks,
    )


def simulate(
    geometry: Geometry,
    model: ScoreModel,
    *,
    seq_lens: Sequence[int],
    rooms: Sequence[Room],
    spreads: Sequence[float],
    balanced: Balance = "previous",
    seed: int = 0,
) -> Iterator[Outcome]:
    """The outcomes of each sequence length in turn, and of each room in it, on the same draws: one a spread.

    UsageError for a sequence length that does not divide the tokens of a rack, or a room that cannot be.
    """
    for length in seq_lens:
        check_length(geometry, length)
    for room in rooms:
        check_room(geometry, room)
    for length in seq_lens:
        found: dict[Room, list[Dropped]] = {room: [] for room in rooms}
        for layer, spread in enumerate(spreads):
            experts = draw_rack(geometry, replace(model, spread=spread), length, balanced, (seed, layer))
            for room, dropped in zip(rooms, in_threads(partial(drop, geometry, experts, length), rooms), strict=True):
                found[room].append(dropped)
        for room, draws in found.items():
            yield Outcome(seq_len=length, room=room, draws=tuple(draws))


def draw_rack(
    geometry: Geometry, model: ScoreModel, length: int, balanced: Balance, seed: int | tuple[int, ...]
) -> npt.NDArray[np.int32]:
    """Experts [P, A] that a rack's tokens choose, shard by shard in token-major order."""
    topics, before, now, noise = np.random.SeedSequence(seed).spawn(4)
    preferences = draw_topics(model, np.random.default_rng(topics))
    batch = partial(draw_documents, model, preferences, length=length)
    documents = batch(np.random.default_rng(now), sequences=geometry.tokens // length)
    bias = np.zeros(geometry.experts, np.float32)
    if balanced == "previous":
        earlier = batch(np.random.default_rng(before), sequences=geometry.racks * geometry.tokens // length)
        bias = _balance(earlier, model.chosen, geometry.racks)
    elif balanced == "same":
        bias = balance(documents, model.chosen)
    starts = np.cumsum(documents.tokens) - documents.tokens  # [D]

    def shard(number: int, seeds: np.random.SeedSequence) -> npt.NDArray[np.int32]:
        first, last = number * geometry.tokens_per_shard, (number + 1) * geometry.tokens_per_shard
        low = int(np.searchsorted(starts, first, side="right")) - 1
        high = int(np.searchsorted(starts, last, side="left"))
        inside = np.minimum(starts[low:high] + documents.tokens[low:high], last) - np.maximum(starts[low:high], first)
        preference, rng = documents.preference[low:high] + bias, np.random.default_rng(seeds)
        return choose_experts(preference, inside, model.chosen, rng).reshape(-1)

    return np.stack(in_threads(shard, range(geometry.shards), noise.spawn(geometry.shards)))


def drop(geometry: Geometry, experts: npt.NDArray[np.int32], length: int, room: Room) -> Dropped:
    """What a transport drops of a rack's assignments [P, A], by the plans that training uses."""
    kept_by = _pooled_wave if room.transport == "pooled_wave" else _ragged
    kept, sender = kept_by(geometry, jnp.asarray(experts), room)
    lost = ~np.asarray(kept).reshape(geometry.tokens, geometry.chosen)
    total = int(lost.sum())
    parts = min(PARTS, length)
    part = (np.arange(geometry.tokens) % length) * parts // length
    by_part = np.bincount(part, weights=lost.sum(axis=1), minlength=parts) / (
        np.bincount(part, minlength=parts) * geometry.chosen
    )
    loads = np.bincount(experts.reshape(-1), minlength=geometry.experts)
    return Dropped(
        sender=int(sender) / lost.size,
        receiver=(total - int(sender)) / lost.size,
        by_position=tuple(by_part.tolist()),
        heaviest_expert=float(loads.max() / loads.mean()),
    )


def interval_95(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's interval of the mean, not below 0; none of a single value."""
    if len(values) < 2:
        return None, None
    half = float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    mean = float(np.mean(values))
    return max(0.0, mean - half), mean + half


def check_length(geometry: Geometry, length: int) -> None:
    """UsageError where sequences of that length do not fill a rack's shards evenly."""
    shard = geometry.tokens_per_shard
    if length < 1 or geometry.tokens % length or (shard % length and length % shard):
        raise UsageError(
            f"--seq-len {length}: a shard has {shard:,} tokens, a rack {geometry.tokens:,}. Choose a length that "
            "divides a shard's, or is a multiple of it that divides the rack's."
        )


def check_room(geometry: Geometry, room: Room) -> None:
    """UsageError where the transport cannot have these factors."""
    factors = [factor for factor in (room.sender_factor, room.receiver_factor) if factor is not None]
    if not all(0 < factor <= geometry.shards for factor in factors):
        shown = ":".join(f"{factor:g}" for factor in factors)
        raise UsageError(f"--capacity-factor {shown}: above 0, and at most {geometry.shards}, the shards of a rack.")


def _balance(documents: Documents, chosen: int, racks: int) -> npt.NDArray[np.float32]:
    """The bias that loads alike, found on one rack's share first: all of it is slow."""
    share = len(documents.tokens) // racks
    guess = balance(Documents(documents.tokens[:share], documents.preference[:share]), chosen)
    return balance(documents, chosen, bias=guess, passes=FINE_PASSES) if racks > 1 else guess


def _pooled_wave(geometry: Geometry, experts: jax.Array, room: Room) -> tuple[jax.Array, jax.Array]:
    assert room.sender_factor is not None
    local = geometry.experts // geometry.shards
    slots = capacity.sender_capacity(geometry.assignments, geometry.shards, geometry.waves, room.sender_factor)
    rows = capacity.receiver_capacity(geometry.assignments, local, geometry.waves, room.receiver_factor)
    return _pooled_wave_kept(experts, geometry.shards, local, geometry.waves, slots, rows)


@partial(jax.jit, static_argnums=(1, 2, 3, 4, 5))
def _pooled_wave_kept(
    experts: jax.Array, shards: int, local: int, waves: int, slots: int, rows: int
) -> tuple[jax.Array, jax.Array]:
    """Which assignments [P, A] find a slot and a row, and how many have no slot. No padding: limits are capacities."""

    def send(own: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        plan = capacity.plan_sender(
            own, shards=shards, local_experts=local, waves=waves, capacity=slots, limit=jnp.int32(slots)
        )
        locals_ = jnp.append(own % local, -1)[plan.assignment]  # [W, P, C_s], -1: empty
        return locals_.astype(jnp.int8), plan.slot, plan.dropped

    sent, slot, dropped = lax.map(send, experts)  # [P, W, P, C_s], [P, A], [P]

    def receive(arrived: jax.Array) -> jax.Array:
        plan = capacity.plan_receiver(
            arrived.astype(jnp.int32), local_experts=local, capacity=rows, limit=jnp.int32(rows)
        )
        return plan.row < local * rows  # [P, C_s]

    arrived = sent.transpose(1, 2, 0, 3).reshape(waves * shards, shards, slots)  # (wave, destination) first
    accepted = lax.map(receive, arrived).reshape(waves, shards, shards, slots)

    def keep(own: tuple[jax.Array, jax.Array]) -> jax.Array:
        slot, accepted = own
        return accepted.at[slot].get(mode="fill", fill_value=False)

    back = accepted.transpose(2, 0, 1, 3).reshape(shards, -1)  # [source, W·P·C_s]
    return lax.map(keep, (slot, back)), jnp.sum(dropped)


def _ragged(geometry: Geometry, experts: jax.Array, room: Room) -> tuple[jax.Array, jax.Array]:
    chunks = capacity.ragged_chunks(geometry.experts // geometry.shards, CHUNKS)
    budget = capacity.ragged_budget(geometry.assignments, chunks, room.receiver_factor)
    return _ragged_kept(experts, geometry.experts, chunks, budget), jnp.int32(0)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _ragged_kept(experts: jax.Array, num_experts: int, chunks: int, budget: int) -> jax.Array:
    counts = lax.map(lambda own: count(own, num_experts), experts)  # [P, E]

    def keep(own: tuple[jax.Array, jax.Array]) -> jax.Array:
        return capacity.ragged_kept(own[0], counts, own[1], chunks=chunks, budget=budget)

    return lax.map(keep, (experts, jnp.arange(len(experts))))
