"""One training step as a function: (state, batch) -> (state, metrics), compiled once and given its buffers to reuse.

The order within a step is the run's: the router bias is written from the quantiles that the *previous* step measured,
then loss and gradients are taken with it, then the optimizer moves the float32 masters, and the quantiles measured in
this step's forward pass wait for the next one. So step 0 routes with the bias it was given, and a saved state holds the
bias last used in its weights and the next one only as pending quantiles.

Source: experiments/grug/moe_hero_ep/train.py of marin-community/marin. Left to the loop around it: batches, evaluation,
checkpoints, and stopping at a loss that is not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from marin_model import sharding
from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes
from marin_model.model import training_loss
from marin_model.optimizer import GROUPS, OptimizerConfig, make_optimizer, parameter_group, sphere_norms
from marin_model.router import router_bias
from marin_model.transport import Transport

ROUTER_BIAS = "blocks.mlp.router_bias"
Z_LOSS = 1e-4  # W&B config of hero-12d8b6f0-dee637, `trainer.z_loss_weight`


class TrainState(NamedTuple):
    """Everything a step needs from the one before. A pytree of arrays: save it and resume from it."""

    params: dict[str, jax.Array]  # float32 masters by flat name (`marin_model.flops.parameter_shapes`)
    optimizer: optax.OptState  # float32
    pending_qb_betas: jax.Array  # [layers, E] float32: quantiles of the last forward pass, not yet a bias
    step: jax.Array  # [] int32, completed updates


class Batch(NamedTuple):
    """One step's tokens. Position t predicts token t + 1; its weight says whether that counts."""

    tokens: jax.Array  # [B, S] int32
    loss_weight: jax.Array  # [B, S] float32; zero at the last position of each row
    segment_ids: jax.Array | None = None  # [B, S] int32 in contiguous runs, -1 at padding; None: one document a row


class Metrics(NamedTuple):
    """What a step measured, before its update. Losses are means over the weights of the whole batch."""

    loss: jax.Array  # [] cross entropy and z-loss: what upstream logs as train/loss
    cross_entropy: jax.Array  # [] without the z-loss
    z_loss: jax.Array  # [] weight times the mean squared log-sum-exp
    grad_norm: jax.Array  # [] of all gradients together
    grad_norms: dict[str, jax.Array]  # [] by parameter group
    sphere_norms: dict[str, jax.Array]  # [] or [layers] by leaf: norms the optimizer holds fixed
    learning_rates: dict[str, jax.Array]  # [] by parameter group, of this update
    routing_counts: jax.Array  # [layers, E] int32, assignments an expert was chosen for, dropped ones included
    sender_dropped: jax.Array  # [layers] int32, assignments refused at their source
    receiver_dropped: jax.Array  # [layers] int32, assignments refused at their destination


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def init_train_state(params: dict[str, jax.Array], optimizer: OptimizerConfig) -> TrainState:
    """State before the first update. The arrays are copied: a step donates its state's buffers.

    The pending quantiles start as minus the stored router bias, so that the first step routes with that bias less its
    mean (zero in a fresh model).
    """
    masters = {name: jnp.array(p, jnp.float32) for name, p in params.items()}
    return TrainState(masters, make_optimizer(optimizer).init(masters), -masters[ROUTER_BIAS], jnp.zeros([], jnp.int32))


def make_train_step(
    model: ModelConfig,
    optimizer: OptimizerConfig,
    *,
    z_loss: float = Z_LOSS,
    transport: Transport | None = None,
    mesh: jax.sharding.Mesh | None = None,
    compute_dtype: Any = jnp.float32,
    remat: bool = False,
) -> TrainStep:
    """The compiled step. It donates the state it is given: use the returned one.

    Masters, optimizer state and update are float32 whatever `compute_dtype`; in bfloat16 the gradients are the
    bfloat16 copy's, cast up.
    """
    updates_of = make_optimizer(optimizer, mesh).update
    schedules = {group: optimizer.schedule(group) for group in GROUPS}

    def loss_of(params: dict[str, jax.Array], batch: Batch) -> tuple[jax.Array, Any]:
        return training_loss(
            params,
            batch.tokens,
            batch.loss_weight,
            batch.segment_ids,
            config=model,
            z_loss=z_loss,
            transport=transport or Transport.dropless(),
            mesh=mesh,
            compute_dtype=compute_dtype,
            remat=remat,
        )

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        params = {**state.params, ROUTER_BIAS: router_bias(state.pending_qb_betas)}
        (loss, seen), grads = jax.value_and_grad(loss_of, has_aux=True)(params, batch)
        updates, moments = updates_of(grads, state.optimizer, params)
        metrics = Metrics(
            loss=loss,
            cross_entropy=seen.cross_entropy,
            z_loss=seen.z_loss,
            **_gradient_norms(grads),
            sphere_norms=sphere_norms(params, sphere=optimizer.sphere),
            learning_rates={group: rate(state.step) for group, rate in schedules.items()},
            routing_counts=seen.counts,
            sender_dropped=seen.sender_dropped,
            receiver_dropped=seen.receiver_dropped,
        )
        return TrainState(optax.apply_updates(params, updates), moments, seen.qb_betas, state.step + 1), metrics

    if mesh is None:
        return jax.jit(step, donate_argnums=0)
    # Without these XLA could hand the state back spread otherwise than it came, and metrics in parts.
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in parameter_shapes(model).items()}
    state = jax.eval_shape(lambda params: init_train_state(params, optimizer), shapes)
    placed = sharding.tree_shardings(state, model, mesh), NamedSharding(mesh, sharding.REPLICATED)
    return jax.jit(step, donate_argnums=0, out_shardings=placed)


def _gradient_norms(grads: dict[str, jax.Array]) -> dict[str, Any]:
    squares = {group: jnp.zeros([]) for group in GROUPS}
    for name, g in grads.items():
        squares[parameter_group(name, g.ndim)] += jnp.sum(jnp.square(g))
    return {"grad_norm": jnp.sqrt(sum(squares.values())), "grad_norms": {k: jnp.sqrt(v) for k, v in squares.items()}}
