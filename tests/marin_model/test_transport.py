"""The expert transports against the original code, against each other, and against the laws they must obey."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


class Inputs:
    """One golden case: what goes in, and the transport it was made with."""

    def __init__(self, name: str) -> None:
        self.case = CASES[name]
        self.arrays = {
            key.removeprefix(f"{name}/"): value for key, value in ARRAYS.items() if key.startswith(f"{name}/")
        }
        width = self.case["I"]
        gate_up = self.arrays["w_gate_up"]
        self.bank = ExpertBank(*map(jnp.asarray, (gate_up[..., :width], gate_up[..., width:], self.arrays["w_down"])))
        self.z, self.weights = jnp.asarray(self.arrays["x"]), jnp.asarray(self.arrays["combine"])
        self.shape = self.case["mesh"]
        self.pooled = Transport.pooled_wave(
            self.shape["expert"],
            sender_factor=self.case["sender_capacity_factor"],
            receiver_factor=self.case["receiver_capacity_factor"],
            waves=self.case["waves"],
            groups=self.shape["data"],
        )

    def ragged(self, factor: float, chunks: int = 2) -> Transport:
        return Transport.ragged(self.shape["expert"], receiver_factor=factor, chunks=chunks, groups=self.shape["data"])

    def mesh(self, where: str) -> jax.sharding.Mesh | None:
        return make_mesh(**self.shape) if where == "mesh" else None

    def send(self, transport: Transport, mesh: jax.sharding.Mesh | None = None, **changed: jax.Array) -> Transported:
        given = {"z": self.z, "selected": self.arrays["selected"], "weights": self.weights, "bank": self.bank} | changed
        valid = jnp.asarray(self.arrays["token_valid"])
        return jax.jit(lambda given: transport_tokens(**given, transport=transport, valid=valid, mesh=mesh))(given)

    def gradients(
        self, transport: Transport, mesh: jax.sharding.Mesh | None = None
    ) -> tuple[Transported, tuple[jax.Array, jax.Array, ExpertBank]]:
        d_out = jnp.asarray(np.random.RandomState(5).randn(*self.z.shape), jnp.float32)

        def loss(z: jax.Array, weights: jax.Array, bank: ExpertBank) -> tuple[jax.Array, Transported]:
            back = self.send(transport, mesh, z=z, weights=weights, bank=bank)
            return jnp.vdot(back.out, d_out), back

        (_, back), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(
            self.z, self.weights, self.bank
        )
        return back, gradients


@pytest.mark.parametrize("where", ["virtual", "mesh"])
@pytest.mark.parametrize("name", CASES)
def test_pooled_wave_drops_and_returns_what_the_original_does(name: str, where: str) -> None:
    inputs = Inputs(name)
    back, (d_z, d_weights, d_bank) = inputs.gradients(inputs.pooled, inputs.mesh(where))
    assert int(back.sender_dropped) == inputs.case["sender_dropped"]
    assert int(back.receiver_dropped) == inputs.case["receiver_dropped"]
    np.testing.assert_array_equal(back.kept, inputs.arrays["kept"])
    np.testing.assert_allclose(back.out, inputs.arrays["out"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(d_z, inputs.arrays["grad_x"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(d_weights, inputs.arrays["grad_combine"], atol=2e-5, rtol=0)  # entries up to 37
    gate_up = np.hypot(np.linalg.norm(d_bank.w_gate), np.linalg.norm(d_bank.w_up))
    np.testing.assert_allclose(gate_up, inputs.case["grad_w_gate_up_norm"], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(d_bank.w_down), inputs.case["grad_w_down_norm"], rtol=1e-5)


def test_serving_source_after_source_drops_others_and_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Inputs("ep4_skewed_110_115")
    theirs = np.load(GOLDENS / "04_pooled_wave_source_order.npz")["kept"]
    ours = np.asarray(inputs.send(inputs.pooled).kept)
    assert ours.sum() == theirs.sum()
    assert (ours != theirs).sum() == 202  # as the golden's maker counted
    monkeypatch.setattr(capacity, "visiting_order", lambda shards, slots: jnp.arange(shards * slots, dtype=jnp.int32))
    np.testing.assert_array_equal(inputs.send(inputs.pooled).kept, theirs)


@pytest.mark.parametrize("where", ["virtual", "mesh"])
@pytest.mark.parametrize("name", ["ep4_skewed_padded", "ep4x2_skewed_110_115"])
def test_dropless_returns_what_the_original_does(name: str, where: str) -> None:
    inputs = Inputs(name)
    back = inputs.send(Transport.dropless(), inputs.mesh(where))
    np.testing.assert_allclose(back.out, inputs.arrays["out_dropless"], atol=1e-5, rtol=0)
    assert int(back.sender_dropped) == int(back.receiver_dropped) == 0
    assert int(back.kept.sum()) == inputs.case["valid_assignments"]


@pytest.mark.parametrize("where", ["virtual", "mesh"])
def test_all_three_transports_agree_where_nothing_is_dropped(where: str) -> None:
    inputs = Inputs("ep8_uniform_ample")
    expected = inputs.gradients(Transport.dropless())
    for transport in (inputs.pooled, inputs.ragged(8.0)):
        found = inputs.gradients(transport, inputs.mesh(where))
        assert int(found[0].sender_dropped) == int(found[0].receiver_dropped) == 0
        for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5, rtol=0)
        np.testing.assert_allclose(found[0].out, expected[0].out, atol=1e-5, rtol=0)


def test_dropless_output_does_not_depend_on_the_sharding() -> None:
    inputs = Inputs("ep8_skewed_110_115")
    alone, alone_gradients = inputs.gradients(Transport.dropless())
    for shape in ((1, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)):
        mesh = make_mesh(**dict(zip(("replica", "data", "expert"), shape, strict=True)))
        spread, gradients = inputs.gradients(Transport.dropless(), mesh)
        np.testing.assert_allclose(spread.out, alone.out, atol=2e-6, rtol=0)
        for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(alone_gradients), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5, rtol=0)


@pytest.mark.parametrize("where", ["virtual", "mesh"])
@pytest.mark.parametrize("kind", ["pooled_wave", "ragged"])
def test_a_dropped_assignment_has_no_gradient_and_no_influence(kind: str, where: str) -> None:
    inputs = Inputs("ep4_skewed_110_115")
    transport = inputs.pooled if kind == "pooled_wave" else inputs.ragged(0.9)
    back, (d_z, d_weights, _) = inputs.gradients(transport, inputs.mesh(where))
    dropped = ~np.asarray(back.kept)
    lost = dropped.all(axis=1)  # tokens that reached no expert at all
    assert dropped.sum() > 50
    assert lost.any()
    assert not np.asarray(d_weights)[dropped].any()
    assert np.asarray(d_weights)[~dropped].all()
    assert not np.asarray(d_z)[lost].any()
    assert not np.asarray(back.out)[lost].any()
    louder = inputs.send(transport, inputs.mesh(where), weights=jnp.where(dropped, 100.0, inputs.weights))
    np.testing.assert_array_equal(louder.out, back.out)


@pytest.mark.parametrize("factor", [0.6, 1.0])
@pytest.mark.parametrize("name", ["ep4x2_skewed_110_115", "ep8_skewed_110_115", "ep4_skewed_padded"])
def test_ragged_drops_what_a_plain_loop_over_the_budget_drops(name: str, factor: float) -> None:
    inputs = Inputs(name)
    selected = np.where(inputs.arrays["token_valid"][:, None], inputs.arrays["selected"], -1)
    expected = _fill_budgets(selected, inputs.case["E"], inputs.shape, chunks=2, factor=factor)
    for where in ("virtual", "mesh"):
        back = inputs.send(inputs.ragged(factor), inputs.mesh(where))
        np.testing.assert_array_equal(back.kept, expected)
        assert int(back.sender_dropped) == (selected >= 0).sum() - expected.sum() > 0
        np.testing.assert_allclose(back.out, _only(inputs, expected).out, atol=1e-5, rtol=0)


def _fill_budgets(
    selected: np.ndarray, experts: int, shape: dict[str, int], *, chunks: int, factor: float
) -> np.ndarray:
    """The rule in words: a chunk's rows go to its experts in order, to the sources in order, to their tokens in order."""
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


def _only(inputs: Inputs, kept: np.ndarray) -> Transported:
    return inputs.send(Transport.dropless(), selected=jnp.where(kept, inputs.arrays["selected"], -1))


@pytest.mark.parametrize("name", ["ep4_skewed_110_115", "ep4_skewed_padded"])
def test_what_is_sent_is_kept_or_counted_as_dropped(name: str) -> None:
    inputs = Inputs(name)
    for transport in (Transport.dropless(), inputs.pooled, inputs.ragged(0.7)):
        back = inputs.send(transport)
        arrived = int(back.kept.sum() + back.sender_dropped + back.receiver_dropped)
        assert arrived == inputs.case["valid_assignments"]


def test_an_odd_number_of_local_experts_is_one_chunk() -> None:
    assert capacity.ragged_chunks(5, 2) == 1
    assert capacity.ragged_chunks(6, 2) == 2


@pytest.mark.parametrize("kind", ["dropless", "pooled_wave", "ragged"])
def test_bfloat16_stays_bfloat16_and_near_float32(kind: str) -> None:
    inputs = Inputs("ep4_skewed_110_115")
    transport = {"dropless": Transport.dropless(), "pooled_wave": inputs.pooled, "ragged": inputs.ragged(0.9)}[kind]
    exact = inputs.send(transport)
    half = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16), {"z": inputs.z, "weights": inputs.weights, "bank": inputs.bank}
    )
    rounded = inputs.send(transport, **half)
    assert rounded.out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rounded.kept, exact.kept)
    error = np.linalg.norm(np.asarray(rounded.out, np.float32) - exact.out) / np.linalg.norm(exact.out)
    assert error < 1e-2  # eight bits of mantissa, a few roundings


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
        (Transport.ragged(4, receiver_factor=1.15), 8, 8, True, ("4 shards", "2 devices")),
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
