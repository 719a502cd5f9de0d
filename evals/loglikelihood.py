"""Log-likelihoods of continuations, many at once: requests in any order in, one answer each out, in the same order.

A request is the ids that go into the model and the targets of the last of them. Two things make it fast: inputs that
begin alike are computed once up to where they part, many to a row (`evals.trees`), and the vocabulary is only looked at
where there is a target. What comes out does not depend on what was computed together, but for rounding.

Sums over a request's tokens are made on the host in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int

from evals import trees
from evals.batching import Placed, bucket, rows_of_batch

ROW = 4096  # places of a row, where no request is longer: a quarter faster than 1,024 (benchmarks/eval.py, on a CPU)
LOGITS = 2**25  # that are held at once: 128 MB
FEWEST = 64  # targets that are scored at once; with fewer the rest is padding


class Request(NamedTuple):
    """`targets` are what should follow the last so many of `inputs`."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]


class Answer(NamedTuple):
    """The targets' log-likelihood in nats, and whether each of them is the likeliest token at its place."""

    log_likelihood: float
    is_greedy: bool


def log_likelihoods(
    placed: Placed, requests: Sequence[Request], on_answers: Callable[[int], None] = lambda count: None
) -> list[Answer]:
    """An answer to each request. Inputs must fit the model's context and have at least as many ids as targets."""
    unique = list(dict.fromkeys(request for request in requests if request.targets))
    answers: dict[Request, Answer] = dict.fromkeys((r for r in requests if not r.targets), Answer(0.0, True))
    if not unique:
        return [answers[request] for request in requests]
    inputs, last = [one.inputs for one in unique], [len(one.targets) for one in unique]
    longest, tokens = max(map(len, inputs)), sum(map(len, inputs))
    wanted = min(ROW, tokens // placed.world.devices)
    length = bucket(max(longest, wanted), max(ROW, placed.config.max_seq_len))
    packed = trees.pack(inputs, last, length=length, window=placed.config.sliding_window)
    count = rows_of_batch(placed, length, len(packed))
    for start in range(0, len(packed), count):
        batch = packed[start : start + count]
        rows = trees.stack([one.row for one in batch], count)
        hidden = trees.hidden_states(
            placed.params, placed.world.spread(rows), config=placed.config, mesh=placed.world.mesh
        )
        asked = [
            (row * length + places, unique[index])
            for row, one in enumerate(batch)
            for index, places in one.places.items()
        ]
        answers |= _answers(placed, hidden, asked)
        on_answers(len(asked))
    return [answers[request] for request in requests]


def _answers(
    placed: Placed, hidden: jax.Array, asked: Sequence[tuple[npt.NDArray[np.int32], Request]]
) -> dict[Request, Answer]:
    """`asked`: requests, and at which of all places of the batch their targets are to be looked up."""
    places = np.concatenate([places for places, _ in asked])
    targets = np.concatenate([np.asarray(request.targets, np.int32) for _, request in asked])
    most = max(1, LOGITS // placed.config.vocab_size)
    at_once = bucket(min(len(targets), most), most, min(FEWEST, most), 4)
    filling = -len(targets) % at_once
    chunks = np.pad(np.stack([places, targets]), ((0, 0), (0, filling))).reshape(2, -1, at_once)
    scored = [_score(hidden, placed.params["output_proj"], *chunk) for chunk in chunks.transpose(1, 0, 2)]
    log_p, hit = (np.concatenate(parts)[: len(targets)] for parts in zip(*placed.world.fetch(scored), strict=True))
    first = np.cumsum([0, *(len(request.targets) for _, request in asked)])[:-1]
    totals, greedy = np.add.reduceat(log_p, first, dtype=np.float64), np.logical_and.reduceat(hit, first)
    return {
        request: Answer(float(total), bool(all_hit))
        for (_, request), total, all_hit in zip(asked, totals, greedy, strict=True)
    }


@jax.jit
def _score(
    hidden: Float[Array, "R L D"], head: Float[Array, "D V"], place: Int[Array, " n"], target: Int[Array, " n"]
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """Log-probability of each target, and whether it is the likeliest token."""
    chosen = hidden.reshape(-1, hidden.shape[-1])[place]
    logits = jnp.einsum("nd,dv->nv", chosen, head, preferred_element_type=jnp.float32)
    of_target = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
    return of_target - jax.nn.logsumexp(logits, axis=1), jnp.argmax(logits, axis=1).astype(jnp.int32) == target
