"""What a model writes after prompts: token by token from what is kept of the tokens before, many prompts at once.

Prompts of like length are computed together, equal prompts once. Each text has its own random numbers, named by its
seed and its place, so that it does not depend on what it is computed together with. Whether a text has ended is asked
on the host every `STEPS` tokens; what was written after its end is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from evals import cached
from evals.batching import Placed, bucket, fewer_shapes, filled, in_batches
from evals.forward import Weights
from marin_model.config import ModelConfig

STEPS = 16  # tokens that are written between two looks at the texts


class Prompt(NamedTuple):
    """What to go on from. `temperature` 0: the likeliest token each time; else the logits are divided by it."""

    ids: tuple[int, ...]
    new_tokens: int  # at most; with the prompt they must fit the model's context
    temperature: float = 0.0
    seed: int = 0  # below 2³²; without meaning at temperature 0


HasEnded = Callable[[int, list[int]], bool]  # (index of the prompt, what was written) -> whether to stop


def generate(
    placed: Placed,
    prompts: Sequence[Prompt],
    eos: int,
    has_ended: HasEnded = lambda index, written: False,
    on_texts: Callable[[int], None] = lambda count: None,
) -> list[list[int]]:
    """New tokens of each prompt, up to EOS, which is left out, to where `has_ended`, or to as many as were asked for.

    `has_ended` is asked of every text each `STEPS` tokens and at its last one; some tokens may follow the end it sees.
    """
    context = placed.config.max_seq_len
    shapes = [(bucket(len(one.ids), context), bucket(len(one.ids) + one.new_tokens, context)) for one in prompts]
    shapes = fewer_shapes(
        shapes, lambda shape: shape[1], lambda one, other: (max(one[0], other[0]), max(one[1], other[1]))
    )
    texts: list[list[int]] = [[] for _ in prompts]
    for indices, rows in in_batches(placed, shapes, [room for _, room in shapes]):
        _write(placed, {index: prompts[index] for index in indices}, shapes[indices[0]], rows, eos, has_ended, texts)
        on_texts(len(indices))
    return texts


def _write(
    placed: Placed,
    prompts: dict[int, Prompt],
    shape: tuple[int, int],
    rows: int,
    eos: int,
    has_ended: HasEnded,
    texts: list[list[int]],
) -> None:
    """The texts of one batch, into `texts`."""
    length, room = shape
    unique = {ids: place for place, ids in enumerate(dict.fromkeys(prompt.ids for prompt in prompts.values()))}
    counts = np.zeros(rows, np.int32)
    counts[: len(unique)] = [len(ids) for ids in unique]
    row_of = np.zeros(rows, np.int32)
    row_of[: len(prompts)] = [unique[prompt.ids] for prompt in prompts.values()]
    temperature, seed = np.zeros(rows, np.float32), np.zeros(rows, np.uint32)
    temperature[: len(prompts)] = [prompt.temperature for prompt in prompts.values()]
    seed[: len(prompts)] = [prompt.seed for prompt in prompts.values()]

    tokens = filled(list(unique), rows, length)
    start, how = placed.world.spread(((tokens, counts, row_of), (temperature, seed)))
    static = {"config": placed.config, "mesh": placed.world.mesh}
    logits, kept = _read(placed.params, *start, room=room, **static)
    open_texts = dict(enumerate(prompts))  # row -> index
    written = 0
    while open_texts:
        tokens, logits, kept = _next_tokens(placed.params, logits, kept, *how, jnp.int32(written), **static)
        block = placed.world.fetch(tokens)
        written += STEPS
        for row, index in list(open_texts.items()):
            new = block[row, : prompts[index].new_tokens - len(texts[index])].tolist()
            ended = eos in new
            texts[index] += new[: new.index(eos)] if ended else new
            if ended or written >= prompts[index].new_tokens or has_ended(index, texts[index]):
                del open_texts[row]


@partial(jax.jit, static_argnames=("room", "config", "mesh"))
def _read(
    params: Weights,
    tokens: Int[Array, "R S"],
    counts: Int[Array, " R"],
    row_of: Int[Array, " R"],
    *,
    room: int,
    config: ModelConfig,
    mesh: Mesh | None,
) -> tuple[Float[Array, "R V"], cached.Kept]:
    """Logits behind each prompt, and what is kept of it with room for what will be written."""
    hidden, kept = cached.begin(params, tokens, counts, config=config, mesh=mesh)
    last = jnp.take_along_axis(hidden, jnp.maximum(counts - 1, 0)[:, None, None], axis=1)[:, 0]
    return _logits(params, last[row_of]), cached.with_room(kept, row_of, room)


@partial(jax.jit, static_argnames=("config", "mesh"), donate_argnames=("kept",))
def _next_tokens(
    params: Weights,
    logits: Float[Array, "R V"],
    kept: cached.Kept,
    temperature: Float[Array, " R"],
    seed: Array,  # [R] uint32
    written: Int[Array, ""],
    *,
    config: ModelConfig,
    mesh: Mesh | None,
) -> tuple[Int[Array, "R steps"], Float[Array, "R V"], cached.Kept]:
    def step(carry: tuple[Array, cached.Kept], turn: Array) -> tuple[tuple[Array, cached.Kept], Array]:
        logits, kept = carry
        token = _choose(logits, temperature, seed, written + turn)
        hidden, kept = cached.advance(params, kept, token, config=config, mesh=mesh)
        return (_logits(params, hidden), kept), token

    (logits, kept), tokens = jax.lax.scan(step, (logits, kept), jnp.arange(STEPS, dtype=jnp.int32))
    return tokens.T, logits, kept


def _choose(logits: Float[Array, "R V"], temperature: Float[Array, " R"], seed: Array, place: Array) -> Array:
    """The next token of each row: the likeliest, or drawn with the row's own random numbers for this place."""

    def draw(logits: Array, temperature: Array, seed: Array) -> Array:
        key = jax.random.fold_in(jax.random.PRNGKey(seed), place)
        return jax.random.categorical(key, logits / jnp.where(temperature > 0, temperature, 1.0))

    drawn = jax.vmap(draw)(logits, temperature, seed)
    return jnp.where(temperature > 0, drawn, jnp.argmax(logits, axis=1)).astype(jnp.int32)


def _logits(params: Weights, hidden: Float[Array, "R D"]) -> Float[Array, "R V"]:
    return jnp.einsum("rd,dv->rv", hidden, params["output_proj"], preferred_element_type=jnp.float32)
