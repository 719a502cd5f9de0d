"""What must hold of a causal model with dropless experts, whatever its weights."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_model import model
from marin_model.sharding import make_mesh, parameter_shardings
from tests.marin_model.tiny import CONFIG, DROPLESS, Batch, golden, params, see

# Another token elsewhere regroups the rows of the experts' products, which moves last digits of values of order one.
ROUNDING = 2e-6


@pytest.fixture(scope="module")
def batch() -> Batch:
    return golden("01_forward_A")[1]


@settings(max_examples=12, deadline=None)
@given(row=st.integers(0, 1), position=st.integers(1, 95), shift=st.integers(1, 127))
def test_no_tokens_output_depends_on_a_later_token_or_another_document(row: int, position: int, shift: int) -> None:
    batch = golden("01_forward_A")[1]
    assert batch.segment_ids is not None
    changed = batch._replace(tokens=batch.tokens.at[row, position].add(shift) % CONFIG.vocab_size)
    before, after = (np.asarray(see(params(), b).hidden) for b in (batch, changed))
    ids = np.asarray(batch.segment_ids)
    may_change = np.zeros(ids.shape, bool)
    may_change[row, position:] = ids[row, position:] == ids[row, position]
    np.testing.assert_allclose(after[~may_change], before[~may_change], rtol=0, atol=ROUNDING)
    assert np.abs(after[row, position] - before[row, position]).max() > 1e-3


def test_padding_changes_nothing() -> None:
    arrays, batch = golden("01_forward_C")
    padding = jnp.asarray(~arrays["valid"])
    before = see(params(), batch)
    after = see(params(), batch._replace(tokens=jnp.where(padding, 77, batch.tokens)))
    np.testing.assert_array_equal(after.hidden, before.hidden)
    np.testing.assert_array_equal(after.stats.counts, before.stats.counts)
    for name, betas in after.betas.items():
        np.testing.assert_array_equal(betas, before.betas[name])


def test_permuting_experts_permutes_nothing_visible(batch: Batch) -> None:
    order = np.random.RandomState(0).permutation(CONFIG.num_experts)
    permuted = dict(params())
    for name, axis in [
        ("router", 2),
        ("router_bias", 1),
        *((f"expert_mlp.{w}", 1) for w in ("w_gate", "w_up", "w_down")),
    ]:
        permuted[f"blocks.mlp.{name}"] = jnp.take(permuted[f"blocks.mlp.{name}"], order, axis=axis)
    before, after = see(params(), batch), see(permuted, batch)
    np.testing.assert_allclose(after.hidden, before.hidden, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(after.loss.loss, before.loss.loss, rtol=1e-6)
    np.testing.assert_array_equal(order[after.routed.selected], before.routed.selected)
    np.testing.assert_array_equal(after.stats.counts, np.asarray(before.stats.counts)[:, order])
    np.testing.assert_allclose(after.betas["hist"], np.asarray(before.betas["hist"])[:, order], rtol=0, atol=ROUNDING)


def test_dropless_output_does_not_depend_on_the_sharding(batch: Batch) -> None:
    """Weights and rows over replica 2 x data 2 x expert 2 devices: loss, hidden states, counts and quantiles."""
    mesh = make_mesh(replica=2, data=2, expert=2)
    rows = Batch(*(jnp.tile(jnp.asarray(x), (4, 1)) for x in batch))

    @partial(jax.jit, static_argnames="mesh")
    def run(arrays: dict[str, jax.Array], mesh: jax.sharding.Mesh | None) -> tuple[jax.Array, model.Computed]:
        of = {"config": CONFIG, "transport": DROPLESS, "mesh": mesh}
        loss, _ = model.training_loss(arrays, *rows, z_loss=1e-4, **of)
        return loss, model.transformer(arrays, rows.tokens, rows.segment_ids, **of)

    spread = {name: jax.device_put(params()[name], to) for name, to in parameter_shardings(CONFIG, mesh).items()}
    loss, seen = run(spread, mesh)
    alone = see(params(), batch)
    np.testing.assert_allclose(loss, alone.loss.loss, rtol=1e-6)
    np.testing.assert_allclose(seen.hidden, np.tile(alone.hidden, (4, 1, 1)), rtol=0, atol=ROUNDING)
    np.testing.assert_array_equal(seen.stats.counts, 4 * np.asarray(alone.stats.counts))
