"""Initialisation: the original's bits, its constants, and the counts of the real shapes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import marin_model
from marin_model import flops
from marin_model.initial import init_arrays
from repro.ladder.rungs import RUNGS
from tests.marin_model.tiny import ABOUT, CONFIG, drawn, params


@pytest.mark.parametrize("name", ABOUT["sha256"])
def test_every_array_has_the_originals_bits(name: str) -> None:
    """Those the golden's maker changed afterwards included: they are stored, or the drawn ones times four."""
    assert hashlib.sha256(np.asarray(params()[name], "<f4").tobytes()).hexdigest() == ABOUT["sha256"][name]


def test_constants_start_where_nothing_is_learned_yet() -> None:
    arrays = drawn()
    for name, array in arrays.items():
        if "sconv" in name:
            assert (np.asarray(array[:, 0]) == 1).all()
            assert not np.asarray(array[:, 1:]).any()
        elif name.endswith(".weight"):
            assert (np.asarray(array) == 1).all()
        elif name.endswith((".attn_gate", ".router_bias")):
            assert not np.asarray(array).any()
        else:
            std = float(jnp.std(array)) / CONFIG.initializer_std
            assert abs(std - 0.98658) < 0.02, name  # of a normal cut at three; half a percent of noise at 16,384 draws
            assert float(jnp.abs(array).max()) <= 3 * CONFIG.initializer_std


def test_old_and_new_keys_draw_the_same() -> None:
    new = init_arrays(CONFIG, jax.random.key(0))
    assert all(np.array_equal(new[name], array) for name, array in drawn().items())


def test_one_shared_expert_takes_the_key_as_it_is() -> None:
    config = replace(CONFIG, num_shared_experts=1)
    one = init_arrays(config, jax.random.PRNGKey(0))
    layer = jax.random.split(jax.random.PRNGKey(0), config.num_layers + 4)[4]
    key = jax.random.split(jax.random.split(layer, 5)[2], 3)[0]
    shape = one["blocks.shared0.w_gate"].shape[1:]
    expected = config.initializer_std * jax.random.truncated_normal(key, -3.0, 3.0, shape, jnp.float32)
    np.testing.assert_array_equal(one["blocks.shared0.w_gate"][0], expected)
    assert "blocks.shared1.w_gate" not in one


@pytest.mark.parametrize("rung", RUNGS)
def test_closed_counts_are_those_of_the_real_model(rung: str) -> None:
    """Parameters by each convention, and FLOPs of all but attention: two a multiplied weight."""
    config = RUNGS[rung].model
    real = nnx.eval_shape(lambda: marin_model.init(config, jax.random.PRNGKey(0)))
    arrays = marin_model.to_named_arrays(real)
    assert {name: array.shape for name, array in arrays.items()} == flops.parameter_shapes(config)
    assert {array.dtype for array in arrays.values()} == {jnp.dtype(jnp.float32)}
    assert sum(array.size for array in arrays.values()) == flops.total_parameters(config)

    def weights(*parts: str) -> int:
        return sum(array.size for name, array in arrays.items() if any(part in name for part in parts))

    experts, chosen = weights("expert_mlp"), config.num_experts_per_token / config.num_experts
    beside = weights("attn.w_", "shared", "w_latent") + arrays["blocks.mlp.router"].size
    assert beside + experts * chosen == flops.active_parameters(config)
    assert beside + experts + weights("token_embed", "output_proj") == flops.matrix_parameters(config)
    parts = flops.forward_flops_per_token(config)
    assert parts["routed_experts"] == 2 * experts * chosen
    assert parts["shared"] == 2 * weights("shared")
    assert parts["latent"] == 2 * weights("w_latent")
    assert parts["router"] == 2 * arrays["blocks.mlp.router"].size
    assert parts["o_proj"] == 2 * weights("attn.w_o")
    assert parts["lm_head"] == 2 * weights("output_proj")
