"""Capacities at the hero's geometry, limits under padding, and the plans that follow from them."""

from __future__ import annotations

from functools import partial
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_model import capacity
from marin_model.pooled_wave import _read_header, _write_header

HERO = {"assignments": 65_536 * 8, "shards": 64, "local_experts": 6, "waves": 3}  # a rack of 64, 16 sequences each


@pytest.mark.parametrize(("factor", "slots"), [(1.05, 2868), (1.10, 3004), (1.15, 3141)])
def test_hero_sender_slots(factor: float, slots: int) -> None:
    assert capacity.sender_capacity(HERO["assignments"], HERO["shards"], HERO["waves"], factor) == slots


@pytest.mark.parametrize(("factor", "rows"), [(1.15, 33_497), (1.33, 38_740)])
def test_hero_receiver_rows(factor: float, rows: int) -> None:
    assert capacity.receiver_capacity(HERO["assignments"], HERO["local_experts"], HERO["waves"], factor) == rows


def test_hero_ragged_budget() -> None:
    assert capacity.ragged_budget(HERO["assignments"], 2, 1.15) == 301_466


@pytest.mark.parametrize(("width", "rows"), [(384, 9), (512, 7), (768, 5), (1024, 4), (3072, 2)])
def test_a_header_takes_the_published_rows(width: int, rows: int) -> None:
    slots = 3141
    local, payload = jnp.zeros((1, slots), jnp.int32), jax.ShapeDtypeStruct((1, slots, width), jnp.bfloat16)
    assert jax.eval_shape(_write_header, local, payload).shape[1] - slots == rows


def test_a_header_reads_back_what_was_written() -> None:
    local = jnp.asarray(np.random.RandomState(0).randint(-1, 6, (4, 50)), jnp.int32)
    payload = jnp.asarray(np.random.RandomState(1).randn(4, 50, 16), jnp.bfloat16)
    read, rest = jax.jit(lambda local, payload: _read_header(_write_header(local, payload), 50))(local, payload)
    np.testing.assert_array_equal(read, local)
    np.testing.assert_array_equal(rest, payload)


@pytest.mark.parametrize(
    ("factor", "ways", "total"),
    [
        (1.0, 12, 256),
        (1.1, 12, 256),
        (1.1, 1, 40),
        (1.15, 24, 1024),
        (1.15, 1152, 4096),
        (1.33, 24, 1024),
        (8.0, 12, 256),
        (0.3, 1, 40),
    ],
)
def test_a_limit_is_the_float64_formula_at_every_count(factor: float, ways: int, total: int) -> None:
    physical = max(1, ceil(factor * total / ways))
    counts = np.arange(total + 1)
    expected = [min(max(ceil(factor * int(n) / ways), 1), physical) for n in counts]
    found = jax.jit(lambda n: capacity.logical_capacity(n, factor, ways, physical))(counts.astype(np.int32))
    np.testing.assert_array_equal(found, expected)


def test_float32_would_round_some_limit_differently() -> None:
    counts = np.arange(1, 40_000)
    exact = np.ceil(1.1 * counts / 12)
    single = np.ceil(np.float32(1.1) * counts.astype(np.float32) / np.float32(12))
    assert (exact != single).any()


def test_the_limit_of_a_full_hero_rack_is_its_physical_capacity() -> None:
    everything = HERO["assignments"] * HERO["shards"]
    limit = capacity.logical_capacity(jnp.int32(everything), 1.15, 384 * HERO["waves"], 33_497)
    assert int(limit) == 33_497


def test_a_sender_stripes_over_waves_and_drops_the_latest() -> None:
    experts = jnp.asarray([0, 1, 0, -1, 1, 0, 0, 5], jnp.int32)  # two experts a shard: seven to shard 0 and 2
    plan_of = jax.jit(partial(capacity.plan_sender, shards=3, local_experts=2, waves=2, capacity=2))
    plan = plan_of(experts, limit=jnp.int32(2))
    np.testing.assert_array_equal(plan.assignment[:, 0], [[0, 2], [1, 4]])  # ranks 0, 2 in wave 0 and 1, 3 in wave 1
    np.testing.assert_array_equal(plan.assignment[:, 1], [[8, 8], [8, 8]])
    np.testing.assert_array_equal(plan.assignment[:, 2], [[7, 8], [8, 8]])
    assert int(plan.dropped) == 2
    np.testing.assert_array_equal(plan.slot, [0, 6, 1, 12, 7, 12, 12, 4])


def test_a_receiver_serves_slot_after_slot() -> None:
    local = jnp.asarray([[0, 0, 1], [0, 1, -1]], jnp.int32)  # [source, slot]
    plan = jax.jit(partial(capacity.plan_receiver, local_experts=2, capacity=2))(local, limit=jnp.int32(2))
    np.testing.assert_array_equal(plan.slot, [[0, 3], [4, 2]])  # source 0's second slot comes too late
    np.testing.assert_array_equal(plan.row, [[0, 4, 3], [1, 2, 4]])
    assert int(plan.dropped) == 1
