"""The grouped expert product against a dense one, and what it may cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_model import grouped
from marin_model.grouped import ExpertBank, grouped_swiglu, plan_blocks, ragged_swiglu

Routed = tuple[jax.Array, jax.Array, jax.Array, ExpertBank]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def draw(tokens: int, chosen: int, experts: int, latent: int = 16, width: int = 8, seed: int = 0) -> Routed:
    random = np.random.RandomState(seed)
    selected = np.stack([random.permutation(experts)[:chosen] for _ in range(tokens)])
    shapes = (
        (tokens, latent),
        (tokens, chosen),
        (experts, latent, width),
        (experts, latent, width),
        (experts, width, latent),
    )
    z, weights, *bank = (jnp.asarray(random.randn(*shape), jnp.float32) for shape in shapes)
    return z, jnp.asarray(selected, jnp.int32), weights, ExpertBank(*bank)


def every_expert_on_every_token(z: jax.Array, experts: jax.Array, weights: jax.Array, bank: ExpertBank) -> jax.Array:
    hidden = jax.nn.silu(jnp.einsum("tl,eli->tei", z, bank.w_gate)) * jnp.einsum("tl,eli->tei", z, bank.w_up)
    chosen = jax.nn.one_hot(experts, bank.w_gate.shape[0], dtype=jnp.float32)
    return jnp.einsum("tei,eil,tke,tk->tl", hidden, bank.w_down, chosen, weights)


def results(
    product: Callable[..., jax.Array], z: jax.Array, experts: jax.Array, weights: jax.Array, bank: ExpertBank
) -> list:
    d_out = jnp.asarray(np.random.RandomState(9).randn(*z.shape), jnp.float32)

    def loss(z: jax.Array, weights: jax.Array, bank: ExpertBank) -> tuple[jax.Array, jax.Array]:
        out = product(z, experts, weights, bank)
        return jnp.vdot(out, d_out), out

    return jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(z, weights, bank))


def none_for_some(routed: Routed) -> Routed:
    z, selected, weights, bank = routed
    return z, selected.at[::3].set(-1).at[1, 0].set(-1), weights, bank


def all_to_one(routed: Routed) -> Routed:
    z, selected, weights, bank = routed
    return z, jnp.full_like(selected, 3), weights, bank


@pytest.mark.parametrize("product", [grouped_swiglu, ragged_swiglu])
@pytest.mark.parametrize(
    "routed",
    [
        draw(96, 4, 12),
        draw(40, 2, 64),  # most experts idle
        draw(1, 1, 2),
        none_for_some(draw(300, 2, 5)),
        all_to_one(draw(200, 4, 24)),
    ],
    ids=["balanced", "idle experts", "one token", "padding", "one expert"],
)
def test_grouped_equals_every_expert_on_every_token(product: Callable[..., jax.Array], routed: Routed) -> None:
    for found, expected in zip(results(product, *routed), results(every_expert_on_every_token, *routed), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6 * max(1.0, float(jnp.linalg.norm(expected))), rtol=0)


def test_no_assignment_means_no_output_and_no_gradient() -> None:
    z, selected, weights, bank = draw(30, 3, 6)
    for found in results(grouped_swiglu, z, jnp.full_like(selected, -1), weights, bank):
        assert not np.asarray(found).any()


def test_every_assignment_stands_in_exactly_one_row_of_its_expert() -> None:
    _, selected, _, _ = none_for_some(draw(300, 4, 24))
    blocks = plan_blocks(selected, 24)
    rows = np.asarray(blocks.assignment[: int(blocks.used)])
    filled = rows < selected.size
    assert sorted(rows[filled]) == list(np.flatnonzero(np.asarray(selected) >= 0))
    owner = np.broadcast_to(np.asarray(blocks.expert[: int(blocks.used)])[:, None], rows.shape)
    np.testing.assert_array_equal(np.asarray(selected).reshape(-1)[rows[filled]], owner[filled])
    assert (np.asarray(blocks.assignment[int(blocks.used) :]) == selected.size).all()


@pytest.mark.parametrize("experts", [16, 384])
def test_the_work_is_that_of_the_active_rows_whatever_the_number_of_experts(experts: int) -> None:
    _, selected, _, _ = draw(2048, 8, experts)
    blocks = plan_blocks(selected, experts)
    rows = int(blocks.used) * blocks.assignment.shape[1]
    assert selected.size <= rows <= 1.5 * selected.size  # padding only; all experts on all tokens were 2x and 48x


def test_nothing_of_the_size_of_all_assignments_is_kept() -> None:
    z, selected, weights, bank = draw(4096, 8, 64, latent=128, width=8)

    def gradient(z: jax.Array) -> jax.Array:
        return jax.grad(lambda z: jnp.sum(grouped_swiglu(z, selected, weights, bank)))(z)

    temporary = jax.jit(gradient).lower(z).compile().memory_analysis().temp_size_in_bytes
    assert temporary < selected.size * z.shape[1] * 4


def test_order_is_stable_with_and_without_packing() -> None:
    keys = jnp.asarray(np.random.RandomState(0).randint(-1, 7, 1000), jnp.int32)
    expected = np.argsort(np.where(np.asarray(keys) < 0, 7, keys), kind="stable")
    np.testing.assert_array_equal(grouped.order_by(keys, 7), expected)
    np.testing.assert_array_equal(
        grouped.order_by(keys, 3_000_000), np.argsort(np.where(keys < 0, 3_000_000, keys), kind="stable")
    )
