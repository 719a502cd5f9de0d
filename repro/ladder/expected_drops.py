"""What a transport drops at a run's size where routing is even and independent: the noise that any balancing leaves.

At a small scale few assignments meet at each slot, so their number scatters widely about its mean and capacities close
to the mean overflow by chance alone. A measured drop fraction says something of a model only beside this one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from marin_model.grouped import ExpertBank
from marin_model.transport import transport_tokens
from repro.ladder.heldout import pooled_wave
from repro.ladder.recipe import Recipe

DRAWS = 3  # batches
LARGEST = 2**26  # scores of a batch, tokens by experts; beyond, nothing is computed


def expected_drop_fraction(recipe: Recipe, *, seed: int = 0) -> float | None:
    """Dropped of all chosen assignments, by the run's own transport, mean over batches drawn from a seed.

    Every token chooses its experts evenly among all. None where a batch is too large to draw.
    """
    tokens, model = recipe.tokens_per_step, recipe.model
    if tokens * model.num_experts > LARGEST:
        return None
    transport = pooled_wave(recipe, groups=recipe.racks)
    one = jnp.ones((model.num_experts, 1, 1))

    @jax.jit
    def dropped(selected: jax.Array) -> jax.Array:
        weights = jnp.ones(selected.shape)
        back = transport_tokens(
            jnp.ones((tokens, 1)), selected, weights, ExpertBank(one, one, one), transport=transport
        )
        return back.sender_dropped + back.receiver_dropped

    draw = np.random.default_rng(seed)
    chosen = model.num_experts_per_token
    selections = (
        np.argpartition(draw.random((tokens, model.num_experts), np.float32), chosen, axis=1)[:, :chosen]
        for _ in range(DRAWS)
    )
    return float(np.mean([int(dropped(jnp.asarray(one, jnp.int32))) for one in selections]) / (tokens * chosen))
