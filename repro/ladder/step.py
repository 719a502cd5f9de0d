"""Recipe → the compiled update's function and its parts, as training runs them and as the planner lowers them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from marin_model.optimizer import OptimizerConfig
from marin_model.training import make_train_step
from marin_model.transport import Transport
from repro.ladder.recipe import Recipe


def make_step(recipe: Recipe, *, mesh: Any, remat: bool) -> Any:
    """The jitted update (state, batch) -> (state, metrics); it donates the state. `mesh`: real, abstract or None."""
    return make_train_step(
        recipe.model,
        optimizer_config(recipe),
        transport=pooled_wave(recipe, groups=recipe.racks),
        mesh=mesh,
        compute_dtype=jnp.dtype(recipe.compute_dtype),
        remat=remat,
    )


def optimizer_config(recipe: Recipe) -> OptimizerConfig:
    """The optimizer's numbers out of the recipe's."""
    return OptimizerConfig(
        learning_rate=recipe.muonh_learning_rate,
        adam_lr=recipe.adam_learning_rate,
        steps=recipe.steps,
        beta1=recipe.beta1,
        beta2=recipe.beta2,
        epsilon=recipe.epsilon,
        final_ratio=recipe.min_learning_rate_ratio,
        newton_schulz_dtype="bfloat16" if recipe.newton_schulz_dtype == "bfloat16" else "float32",
    )


def pooled_wave(recipe: Recipe, *, groups: int) -> Transport:
    """The run's transport over the shards of a rack, virtual where there are fewer devices."""
    model = recipe.model
    return Transport.pooled_wave(
        recipe.gpus // recipe.racks,
        sender_factor=model.sender_capacity_factor,
        receiver_factor=model.capacity_factor,
        waves=model.num_expert_waves,
        groups=groups,
    )


def recomputes(recipe: Recipe) -> bool:
    """Whether each layer is made again in the backward pass unless asked otherwise: at full scale, as the run did."""
    return recipe.scale == "full"
