"""Fifty training steps, and twenty with drops, against the original's losses (tests/goldens/06_*).

Losses of two correct programs part slowly, as the golden's own perturbed run shows: 2e-5 holds up to step 10, 2e-3 up
to step 49. What would be another recipe leaves the first bound within ten steps.

Six steps are compiled here, so compilation is what costs: XLA is told to optimise less, which halves it and doubles the
time of a step.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from marin_model.config import ModelConfig
from marin_model.optimizer import OptimizerConfig
from marin_model.training import Batch, Metrics, init_train_state, make_train_step
from marin_model.transport import Transport
from tests.marin_model.tiny import params

GOLDENS = Path(__file__).parent.parent / "goldens"
ABOUT = json.loads((GOLDENS / "06_train.json").read_text())
CONFIG = ModelConfig.from_dict(ABOUT["config"])
OPTIMIZER = OptimizerConfig(**ABOUT["optimizer"], newton_schulz_dtype="float32")
STREAM = dict(np.load(GOLDENS / "06_train50.npz"))
EARLY, LATE, LIMIT = 2e-5, 2e-3, 10  # bounds up to and after step LIMIT
COMPILER = {"xla_backend_optimization_level": 0}


def train(
    steps: int, config: ModelConfig = CONFIG, optimizer: OptimizerConfig = OPTIMIZER, **more: Any
) -> list[Metrics]:
    state = init_train_state(params(), optimizer)
    weight = jnp.asarray(STREAM["loss_weight"])
    batches = [
        Batch(jnp.asarray(tokens, jnp.int32), weight, jnp.asarray(segment_ids, jnp.int32))
        for tokens, segment_ids in zip(STREAM["tokens"][:steps], STREAM["segment_ids"][:steps], strict=True)
    ]
    step = make_train_step(config, optimizer, **more).lower(state, batches[0]).compile(compiler_options=COMPILER)
    measured = []
    for batch in batches:
        state, metrics = step(state, batch)
        measured.append(metrics)
    return measured


def losses(measured: list[Metrics]) -> np.ndarray:
    return np.array([float(one.loss) for one in measured])


@pytest.fixture(scope="module")
def fifty() -> list[Metrics]:
    return train(50)


def test_fifty_steps_give_the_originals_losses(fifty: list[Metrics]) -> None:
    apart = np.abs(losses(fifty) - STREAM["f32ns_hist/loss"])
    assert apart[: LIMIT + 1].max() <= EARLY
    assert apart.max() <= LATE


def test_gradient_norms_follow(fifty: list[Metrics]) -> None:
    norms = np.array([float(one.grad_norm) for one in fifty])[: LIMIT + 1]
    np.testing.assert_allclose(norms, STREAM["f32ns_hist/grad_norm"][: LIMIT + 1], rtol=1e-3)


def test_spheres_stay(fifty: list[Metrics]) -> None:
    for name, norm in fifty[0].sphere_norms.items():
        np.testing.assert_allclose(fifty[-1].sphere_norms[name], norm, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("config", "optimizer"),
    [
        (CONFIG, replace(OPTIMIZER, sphere="each expert")),
        pytest.param(replace(CONFIG, qb_estimator="topk"), OPTIMIZER, marks=pytest.mark.slow),
        pytest.param(replace(CONFIG, qb_hist_bins=1000), OPTIMIZER, marks=pytest.mark.slow),
        pytest.param(CONFIG, replace(OPTIMIZER, beta1=0.9), marks=pytest.mark.slow),
    ],
    ids=["a sphere an expert", "the top-k estimator", "1000 bins", "beta1 0.9"],
)
def test_another_recipe_leaves_the_bound_within_ten_steps(config: ModelConfig, optimizer: OptimizerConfig) -> None:
    apart = np.abs(losses(train(LIMIT + 1, config, optimizer)) - STREAM["f32ns_hist/loss"][: LIMIT + 1])
    assert apart.max() > EARLY


def test_twenty_steps_with_drops() -> None:
    """Over four virtual shards, one row of the batch each. Required are exact drops for five steps; reached are twenty.

    The losses of all twenty steps are within 1e-6; should a route flip on another machine, that of the late ones grows.
    """
    golden, of = np.load(GOLDENS / "06_train20_ep4.npz"), ABOUT["ep4"]
    transport = Transport.pooled_wave(
        of["shards"], sender_factor=of["sender_factor"], receiver_factor=of["receiver_factor"], waves=of["waves"]
    )
    measured = train(20, transport=transport)
    assert np.abs(losses(measured) - golden["loss"])[: LIMIT + 1].max() <= EARLY
    for name in ("sender_dropped", "receiver_dropped"):
        found = np.array([getattr(one, name) for one in measured])
        np.testing.assert_array_equal(found[:5], golden[name][:5], err_msg=name)
        assert found.sum() > 0, name
