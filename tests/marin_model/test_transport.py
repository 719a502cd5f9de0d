"""The expert transports against the original code, against each other, and against the laws they must obey."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_model import capacity
from marin_model.sharding import make_mesh
from marin_model.transport import ExpertBank, Transport, Transported, transport_tokens

GOLDENS = Path(__file__).parents[1] / "goldens"
CASES: dict[str, dict[str, Any]] = json.loads((GOLDENS / "04_pooled_wave.json").read_text())
ARRAYS = dict(np.load(GOLDENS / "04_pooled_wave.npz"))
QUICKLY = {"xla_backend_optimization_level": 0}  # of machine code: half the compile time, the same arithmetic
DROPLESS = Transport.dropless()
SCARCE = 0.7  # a ragged budget at which some tokens of the skewed cases lose all their experts

Mesh = jax.sharding.Mesh
Gradients = tuple[jax.Array, jax.Array, ExpertBank]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@dataclass(frozen=True)
class Inputs:
    """One golden case: what goes in. Its `facts` say with which transport it was made and what must come out."""

    facts: dict[str, Any]
    expected: dict[str, np.ndarray]
    z: jax.Array
    selected: jax.Array
    weights: jax.Array
    bank: ExpertBank
    valid: jax.Array

    @property
    def pooled(self) -> Transport:
        return Transport.pooled_wave(
            self.facts["mesh"]["expert"],
            sender_factor=self.facts["sender_capacity_factor"],
            receiver_factor=self.facts["receiver_capacity_factor"],
            waves=self.facts["waves"],
            groups=self.facts["mesh"]["data"],
        )

    def ragged(self, factor: float) -> Transport:
        shape = self.facts["mesh"]
        return Transport.ragged(shape["expert"], receiver_factor=factor, groups=shape["data"])

    def mesh(self, where: str) -> Mesh | None:
        return make_mesh(**self.facts["mesh"]) if where == "mesh" else None

    def given(self, **changed: Any) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("z", "selected", "weights", "bank", "valid")} | changed


@functools.cache
def load(name: str) -> Inputs:
    arrays = {key.removeprefix(f"{name}/"): value for key, value in ARRAYS.items() if key.startswith(f"{name}/")}
    gate, up = np.split(arrays["w_gate_up"], 2, axis=2)
    return Inputs(
        facts=CASES[name],
        expected=arrays,
        z=jnp.asarray(arrays["x"]),
        selected=jnp.asarray(arrays["selected"]),
        weights=jnp.asarray(arrays["combine"]),
        bank=ExpertBank(jnp.asarray(gate), jnp.asarray(up), jnp.asarray(arrays["w_down"])),
        valid=jnp.asarray(arrays["token_valid"]),
    )


@functools.partial(jax.jit, static_argnames=("transport", "mesh"), compiler_options=QUICKLY)
def differentiate(
    given: dict[str, Any], *, transport: Transport, mesh: Mesh | None = None
) -> tuple[Transported, Gradients]:
    """What comes back, and gradients to tokens, combine weights and bank under a fixed cotangent."""
    d_out = np.random.RandomState(5).randn(*given["z"].shape).astype(np.float32)

    def loss(z: jax.Array, weights: jax.Array, bank: ExpertBank) -> tuple[jax.Array, Transported]:
        back = transport_tokens(**(given | {"z": z, "weights": weights, "bank": bank}), transport=transport, mesh=mesh)
        return jnp.vdot(back.out, jnp.asarray(d_out, z.dtype)), back

    of = (given["z"], given["weights"], given["bank"])
    gradients, back = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*of)
    return back, gradients


@pytest.mark.parametrize(
    ("name", "where"),
    [
        (name, where)
        for name in CASES
        for where in ("virtual", "mesh")
        if (name, where) != ("ep4_skewed_115_115", "mesh")
    ],
)
def test_pooled_wave_drops_and_returns_what_the_original_does(name: str, where: str) -> None:
    inputs = load(name)
    back, (d_z, d_weights, d_bank) = differentiate(inputs.given(), transport=inputs.pooled, mesh=inputs.mesh(where))
    assert int(back.sender_dropped) == inputs.facts["sender_dropped"]
    assert int(back.receiver_dropped) == inputs.facts["receiver_dropped"]
    np.testing.assert_array_equal(back.kept, inputs.expected["kept"])
    np.testing.assert_allclose(back.out, inputs.expected["out"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(d_z, inputs.expected["grad_x"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(d_weights, inputs.expected["grad_combine"], atol=2e-5, rtol=0)  # entries up to 37
    gate_up = np.hypot(np.linalg.norm(d_bank.w_gate), np.linalg.norm(d_bank.w_up))
    np.testing.assert_allclose(gate_up, inputs.facts["grad_w_gate_up_norm"], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(d_bank.w_down), inputs.facts["grad_w_down_norm"], rtol=1e-5)


def test_serving_source_after_source_drops_others_and_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = load("ep4_skewed_110_115")
    theirs = np.load(GOLDENS / "04_pooled_wave_source_order.npz")["kept"]
    ours = inputs.expected["kept"]
    assert ours.sum() == theirs.sum()
    assert (ours != theirs).sum() == 202  # as the golden's maker counted
    monkeypatch.setattr(capacity, "visiting_order", lambda shards, slots: jnp.arange(shards * slots, dtype=jnp.int32))
    afresh = jax.jit(lambda given: transport_tokens(**given, transport=inputs.pooled).kept, compiler_options=QUICKLY)
    np.testing.assert_array_equal(afresh(inputs.given()), theirs)


@pytest.mark.parametrize("name", ["ep4_skewed_padded", "ep4x2_skewed_110_115"])
def test_dropless_returns_what_the_original_does(name: str) -> None:
    inputs = load(name)
    back, _ = differentiate(inputs.given(), transport=DROPLESS)
    np.testing.assert_allclose(back.out, inputs.expected["out_dropless"], atol=1e-5, rtol=0)
    assert int(back.sender_dropped) == int(back.receiver_dropped) == 0
    assert int(back.kept.sum()) == inputs.facts["valid_assignments"]


@pytest.mark.parametrize(
    ("kind", "where"), [("pooled_wave", "virtual"), ("pooled_wave", "mesh"), ("ragged", "virtual")]
)
def test_all_three_transports_agree_where_nothing_is_dropped(kind: str, where: str) -> None:
    inputs = load("ep8_uniform_ample")
    expected, expected_gradients = differentiate(inputs.given(), transport=DROPLESS)
    transport = inputs.pooled if kind == "pooled_wave" else inputs.ragged(8.0)
    found, gradients = differentiate(inputs.given(), transport=transport, mesh=inputs.mesh(where))
    assert int(found.sender_dropped) == int(found.receiver_dropped) == 0
    np.testing.assert_allclose(found.out, expected.out, atol=1e-5, rtol=0)
    _assert_close(gradients, expected_gradients)


@pytest.mark.parametrize("kind", ["pooled_wave", "ragged"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param("ep8_skewed_110_115", {"expert": 2}, marks=pytest.mark.slow),
        ("ep4x2_skewed_110_115", {"expert": 2}),
    ],
)
def test_devices_that_hold_several_shards_drop_what_a_device_each_would(
    name: str, shape: dict[str, int], kind: str
) -> None:
    """Two devices with four of eight shards, and with two shards of each of two groups."""
    inputs = load(name)
    transport = inputs.pooled if kind == "pooled_wave" else inputs.ragged(SCARCE)
    alone, alone_gradients = differentiate(inputs.given(), transport=transport)
    assert int(alone.sender_dropped + alone.receiver_dropped) > 0
    # Rows lie by device, within a device by group and shard.
    order = np.arange(len(inputs.z)).reshape(transport.groups, shape["expert"], -1).swapaxes(0, 1).reshape(-1)
    rows = {key: getattr(inputs, key)[order] for key in ("z", "selected", "weights", "valid")}
    back, gradients = differentiate(inputs.given(**rows), transport=transport, mesh=make_mesh(**shape))
    np.testing.assert_array_equal(back.kept, np.asarray(alone.kept)[order])
    assert int(back.sender_dropped) == int(alone.sender_dropped)
    assert int(back.receiver_dropped) == int(alone.receiver_dropped)
    np.testing.assert_allclose(back.out, np.asarray(alone.out)[order], atol=2e-6, rtol=0)
    if transport.groups == 1:  # the same order of rows, so the same cotangent
        _assert_close(gradients, alone_gradients)


def test_dropless_output_does_not_depend_on_the_sharding() -> None:
    inputs = load("ep8_skewed_110_115")
    alone, alone_gradients = differentiate(inputs.given(), transport=DROPLESS)
    mesh = make_mesh(replica=2, data=2, expert=2)
    spread, gradients = differentiate(inputs.given(), transport=DROPLESS, mesh=mesh)
    np.testing.assert_allclose(spread.out, alone.out, atol=2e-6, rtol=0)
    _assert_close(gradients, alone_gradients)


def test_permuting_the_experts_changes_nothing_visible() -> None:
    inputs = load("ep8_skewed_110_115")
    new = np.random.RandomState(1).permutation(inputs.facts["E"])  # expert e becomes new[e]
    bank = jax.tree.map(lambda w: jnp.zeros_like(w).at[new].set(w), inputs.bank)
    permuted = inputs.given(bank=bank, selected=jnp.asarray(new, jnp.int32)[inputs.selected])
    found, _ = differentiate(permuted, transport=DROPLESS)
    expected, _ = differentiate(inputs.given(), transport=DROPLESS)
    np.testing.assert_allclose(found.out, expected.out, atol=2e-6, rtol=0)


def _assert_close(found: Gradients, expected: Gradients) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=0)


@pytest.mark.parametrize("where", ["virtual", "mesh"])
@pytest.mark.parametrize("kind", ["pooled_wave", "ragged"])
def test_a_dropped_assignment_has_no_gradient_and_no_influence(kind: str, where: str) -> None:
    inputs = load("ep4_skewed_110_115")
    how = {
        "transport": inputs.pooled if kind == "pooled_wave" else inputs.ragged(SCARCE),
        "mesh": inputs.mesh(where),
    }
    back, (d_z, d_weights, _) = differentiate(inputs.given(), **how)
    dropped = ~np.asarray(back.kept)
    lost = dropped.all(axis=1)  # tokens that reached no expert at all
    assert dropped.sum() > 200
    assert lost.any()
    assert not np.asarray(d_weights)[dropped].any()
    assert np.asarray(d_weights)[~dropped].all()
    assert not np.asarray(d_z)[lost].any()
    assert not np.asarray(back.out)[lost].any()
    louder, louder_gradients = differentiate(inputs.given(weights=jnp.where(dropped, 100.0, inputs.weights)), **how)
    np.testing.assert_array_equal(louder.out, back.out)
    np.testing.assert_array_equal(louder_gradients[0], d_z)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("ep4_skewed_110_115", "virtual"),
        ("ep4_skewed_110_115", "mesh"),
        ("ep4_skewed_padded", "virtual"),
        ("ep4_skewed_padded", "mesh"),
        ("ep4x2_skewed_110_115", "virtual"),
    ],
)
def test_ragged_drops_what_a_plain_loop_over_the_budget_drops(name: str, where: str) -> None:
    inputs = load(name)
    selected = np.where(inputs.expected["token_valid"][:, None], inputs.expected["selected"], -1)
    kept = _fill_budgets(selected, inputs.facts["E"], inputs.facts["mesh"], chunks=2, factor=SCARCE)
    back, gradients = differentiate(inputs.given(), transport=inputs.ragged(SCARCE), mesh=inputs.mesh(where))
    np.testing.assert_array_equal(back.kept, kept)
    assert int(back.sender_dropped) == (selected >= 0).sum() - kept.sum() > 0
    survivors = inputs.given(selected=jnp.where(kept, inputs.selected, -1))
    expected, expected_gradients = differentiate(survivors, transport=DROPLESS)
    np.testing.assert_allclose(back.out, expected.out, atol=1e-5, rtol=0)
    _assert_close(gradients, expected_gradients)


def _fill_budgets(
    selected: np.ndarray, experts: int, shape: dict[str, int], *, chunks: int, factor: float
) -> np.ndarray:
    """The rule in words: a chunk's rows go to its experts in order, to the sources in order, to tokens in order."""
    shards, local = shape["expert"], experts // shape["expert"]
    groups = selected.reshape(shape["data"], shards, -1)
    kept = np.zeros(groups.shape, bool)
    budget = int(np.ceil(np.ceil(factor * groups.shape[2]) / chunks))
    for group in range(shape["data"]):
        for first in range(0, experts, local // chunks):
            room = budget
            for expert in range(first, first + local // chunks):
                for source in range(shards):
                    for a in np.flatnonzero(groups[group, source] == expert)[:room]:
                        kept[group, source, a] = True
                        room -= 1
    return kept.reshape(selected.shape)


@pytest.mark.parametrize("name", ["ep4_skewed_110_115", "ep4_skewed_padded"])
def test_what_is_sent_is_kept_or_counted_as_dropped(name: str) -> None:
    inputs = load(name)
    for transport in (DROPLESS, inputs.pooled, inputs.ragged(SCARCE)):
        back, _ = differentiate(inputs.given(), transport=transport)
        arrived = int(back.kept.sum() + back.sender_dropped + back.receiver_dropped)
        assert arrived == inputs.facts["valid_assignments"]


def test_an_odd_number_of_local_experts_is_one_chunk() -> None:
    assert capacity.ragged_chunks(5, 2) == 1
    assert capacity.ragged_chunks(6, 2) == 2


def test_bfloat16_stays_bfloat16_and_near_float32() -> None:
    inputs = load("ep4_skewed_110_115")
    bank = jax.tree.map(lambda w: w.astype(jnp.bfloat16), inputs.bank)
    half = inputs.given(z=inputs.z.astype(jnp.bfloat16), weights=inputs.weights.astype(jnp.bfloat16), bank=bank)
    send = jax.jit(lambda given: transport_tokens(**given, transport=inputs.pooled), compiler_options=QUICKLY)
    rounded = send(half)
    assert rounded.out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rounded.kept, inputs.expected["kept"])
    error = np.linalg.norm(np.asarray(rounded.out, np.float32) - inputs.expected["out"])
    assert error < 1e-2 * np.linalg.norm(inputs.expected["out"])  # eight bits of mantissa, a few roundings


@pytest.mark.parametrize(
    ("transport", "tokens", "experts", "on_mesh", "numbers"),
    [
        (
            Transport.pooled_wave(4, sender_factor=1.15, receiver_factor=1.15, waves=3),
            8,
            10,
            False,
            ("10 experts", "4 "),
        ),
        (
            Transport.pooled_wave(4, sender_factor=1.15, receiver_factor=1.15, waves=3),
            8,
            16,
            False,
            ("4 exp", "3 waves"),
        ),
        (Transport.ragged(4, receiver_factor=1.15, groups=2), 12, 8, False, ("12 tokens", "8 shards")),
        (Transport.ragged(3, receiver_factor=1.15), 8, 9, True, ("3 shards", "2 devices")),
        (Transport.ragged(2, receiver_factor=1.15, groups=2), 8, 8, True, ("2 groups", "4 ")),
        (Transport.dropless(), 9, 8, True, ("9 tokens", "8 shards")),
        (Transport.dropless(), 8, 9, True, ("9 experts", "2 ")),
    ],
)
def test_what_does_not_divide_is_refused_with_its_numbers(
    transport: Transport, tokens: int, experts: int, on_mesh: bool, numbers: tuple[str, ...]
) -> None:
    mesh = make_mesh(data=4, expert=2) if on_mesh else None
    bank = ExpertBank(jnp.ones((experts, 4, 2)), jnp.ones((experts, 4, 2)), jnp.ones((experts, 2, 4)))
    selected = jnp.zeros((tokens, 2), jnp.int32)
    with pytest.raises(ValueError, match="transport: ") as refusal:
        transport_tokens(jnp.ones((tokens, 4)), selected, jnp.ones((tokens, 2)), bank, transport=transport, mesh=mesh)
    for number in numbers:
        assert number in str(refusal.value)


@pytest.mark.parametrize(
    "wrong", [{"kind": "express"}, {"kind": "ragged", "receiver_factor": 0.0}, {"kind": "ragged", "shards": 0}]
)
def test_a_transport_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{list(wrong)[-1]}"):
        Transport(**wrong)
