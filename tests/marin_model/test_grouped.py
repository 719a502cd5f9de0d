"""The grouped expert product against a dense one, and what it may cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_model import grouped
from marin_model.grouped import ExpertBank, grouped_swiglu, plan_blocks, ragged_swiglu

QUICKLY = {"xla_backend_optimization_level": 0}  # of machine code: half the compile time, the same arithmetic
TOKENS, CHOSEN, EXPERTS = 200, 4, 24
Routed = tuple[jax.Array, jax.Array, jax.Array, ExpertBank]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def choose(tokens: int, chosen: int, experts: int) -> np.ndarray:
    random = np.random.RandomState(0)
    return np.stack([random.permutation(experts)[:chosen] for _ in range(tokens)]).astype(np.int32)


def draw(selected: np.ndarray, experts: int, latent: int = 16, width: int = 8) -> Routed:
    random = np.random.RandomState(1)
    gate_or_up, down = (experts, latent, width), (experts, width, latent)
    shapes = ((len(selected), latent), selected.shape, gate_or_up, gate_or_up, down)
    z, weights, *bank = (jnp.asarray(random.randn(*shape), jnp.float32) for shape in shapes)
    return z, jnp.asarray(selected), weights, ExpertBank(*bank)


def routings() -> dict[str, np.ndarray]:
    balanced = choose(TOKENS, CHOSEN, EXPERTS)
    padded = balanced.copy()
    padded[::3], padded[1, 0] = -1, -1
    return {
        "balanced": balanced,
        "idle experts": choose(TOKENS, CHOSEN, 5),
        "one expert": np.full_like(balanced, 3),
        "padding": padded,
        "padding only": np.full_like(balanced, -1),
    }


def every_expert_on_every_token(z: jax.Array, experts: jax.Array, weights: jax.Array, bank: ExpertBank) -> jax.Array:
    hidden = jax.nn.silu(jnp.einsum("tl,eli->tei", z, bank.w_gate)) * jnp.einsum("tl,eli->tei", z, bank.w_up)
    chosen = jax.nn.one_hot(experts, bank.w_gate.shape[0], dtype=jnp.float32)
    return jnp.einsum("tei,eil,tke,tk->tl", hidden, bank.w_down, chosen, weights)


@functools.partial(jax.jit, static_argnames="product", compiler_options=QUICKLY)
def results(
    z: jax.Array, experts: jax.Array, weights: jax.Array, bank: ExpertBank, *, product: Callable[..., jax.Array]
) -> list[jax.Array]:
    """Output and the gradients to tokens, weights and bank."""
    d_out = np.random.RandomState(9).randn(*z.shape).astype(np.float32)

    def loss(z: jax.Array, weights: jax.Array, bank: ExpertBank) -> tuple[jax.Array, jax.Array]:
        out = product(z, experts, weights, bank)
        return jnp.vdot(out, d_out), out

    return jax.tree.leaves(jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(z, weights, bank))


@pytest.mark.parametrize("product", [grouped_swiglu, ragged_swiglu])
@pytest.mark.parametrize("routing", routings())
def test_grouped_equals_every_expert_on_every_token(product: Callable[..., jax.Array], routing: str) -> None:
    routed = draw(routings()[routing], EXPERTS)
    found, expected = (results(*routed, product=each) for each in (product, every_expert_on_every_token))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6 * max(1.0, float(jnp.linalg.norm(b))), rtol=0)


def test_one_token_and_one_expert_are_enough() -> None:
    z, selected, weights, bank = draw(np.zeros((1, 1), np.int32), 1)
    hidden = jax.nn.silu(z @ bank.w_gate[0]) * (z @ bank.w_up[0])
    found = jax.jit(grouped_swiglu, compiler_options=QUICKLY)(z, selected, weights, bank)
    np.testing.assert_allclose(found, weights * (hidden @ bank.w_down[0]), rtol=1e-5)


def test_no_assignment_means_no_output_and_no_gradient() -> None:
    for found in results(*draw(routings()["padding only"], EXPERTS), product=grouped_swiglu):
        assert not np.asarray(found).any()


def test_every_assignment_stands_in_exactly_one_row_of_its_expert() -> None:
    selected = routings()["padding"]
    blocks = jax.tree.map(np.asarray, jax.jit(plan_blocks, static_argnums=1)(selected, EXPERTS))
    rows = blocks.assignment[: blocks.used]
    filled = rows < selected.size
    assert sorted(rows[filled]) == list(np.flatnonzero(selected >= 0))
    owner = np.broadcast_to(blocks.expert[: blocks.used, None], rows.shape)
    np.testing.assert_array_equal(selected.reshape(-1)[rows[filled]], owner[filled])
    assert (blocks.assignment[blocks.used :] == selected.size).all()


@pytest.mark.parametrize("experts", [16, 384])
def test_the_work_is_that_of_the_active_rows_whatever_the_number_of_experts(experts: int) -> None:
    selected = choose(2048, 8, experts)
    blocks = jax.jit(plan_blocks, static_argnums=1)(selected, experts)
    rows = int(blocks.used) * blocks.assignment.shape[1]
    assert selected.size <= rows <= 1.5 * selected.size  # padding only; all experts on all tokens were 2x and 48x


def test_nothing_of_the_size_of_all_assignments_is_kept() -> None:
    routed = draw(choose(4096, 8, 64), 64, latent=128)
    compiled = results.lower(*routed, product=grouped_swiglu).compile()
    z, selected, _, _ = routed
    assert compiled.memory_analysis().temp_size_in_bytes < selected.size * z.shape[1] * 4


def test_order_is_stable_with_and_without_packing() -> None:
    keys = jnp.asarray(np.random.RandomState(0).randint(-1, 7, 1000), jnp.int32)
    expected = np.argsort(np.where(np.asarray(keys) < 0, 7, keys), kind="stable")
    np.testing.assert_array_equal(grouped.order_by(keys, 7), expected)
    np.testing.assert_array_equal(
        grouped.order_by(keys, 3_000_000), np.argsort(np.where(keys < 0, 3_000_000, keys), kind="stable")
    )
