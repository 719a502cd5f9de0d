"""Log-likelihoods of continuations, many at once: requests in any order in, one answer each out, in the same order.

A request is the ids that go into the model and the targets of the last of them. Three things make it fast: rows of like
length are computed together; inputs that begin alike are computed once up to where they part (`Branching`); and the
vocabulary is only looked at where there is a target. What comes out does not depend on any of it, but for rounding.

Sums over a request's tokens are made on the host in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from evals import cached
from evals.batching import COMPILING, Placed, bucket, fewer_shapes, filled, in_batches
from marin_model.config import ModelConfig

MOST_BRANCHES = 16  # of one row; more share their beginning sixteen by sixteen
FEWEST_TARGETS, TARGET_STEP = 4, 4  # buckets of targets: 4, 16, 64, …
LOGITS = 2**25  # that are held at once: 128 MB


class Request(NamedTuple):
    """`targets` are what should follow the last so many of `inputs`."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]


class Answer(NamedTuple):
    """The targets' log-likelihood in nats, and whether each of them is the likeliest token at its place."""

    log_likelihood: float
    is_greedy: bool


@dataclass(frozen=True)
class Branching:
    """Requests by index whose inputs agree in the first `shared`, none of which has a target. One request: shared 0."""

    shared: int
    members: tuple[int, ...]


def log_likelihoods(
    placed: Placed,
    requests: Sequence[Request],
    on_answers: Callable[[int], None] = lambda count: None,
    compiling: int = COMPILING,
) -> list[Answer]:
    """An answer to each request. Inputs must fit the model's context and have at least as many ids as targets.

    `compiling`: tokens that one more compiled shape must save.
    """
    unique = list(dict.fromkeys(request for request in requests if request.targets))
    answers: dict[Request, Answer] = dict.fromkeys((r for r in requests if not r.targets), Answer(0.0, True))
    groups, shapes = _plan(unique, placed.config, compiling)
    for indices, rows in in_batches(placed, shapes, [shape.cost for shape in shapes]):
        batch = [groups[index] for index in indices]
        for member, answer in _answer(placed, batch, shapes[indices[0]], rows, unique):
            answers[unique[member]] = answer
        on_answers(sum(len(group.members) for group in batch))
    return [answers[request] for request in requests]


def _plan(requests: Sequence[Request], config: ModelConfig, compiling: int) -> tuple[list[Branching], list[Shape]]:
    """Requests together where they begin alike, or each alone, whichever is cheaper, compiling included."""
    plans = []
    alone = [Branching(0, (index,)) for index in range(len(requests))]
    for groups in (share_beginnings(requests, config.max_seq_len), alone):
        shapes = [_shape([requests[one] for one in group.members], group.shared, config) for group in groups]
        shapes = fewer_shapes(shapes, lambda shape: shape.cost, _join_shapes, compiling)
        plans.append((sum(shape.cost for shape in shapes) + compiling * len(set(shapes)), groups, shapes))
    _, groups, shapes = min(plans, key=lambda plan: plan[0])
    return groups, shapes


def share_beginnings(requests: Sequence[Request], context: int) -> list[Branching]:
    """Put requests together wherever that saves tokens, padding included. Requests must be distinct."""
    order = sorted(range(len(requests)), key=lambda index: requests[index].inputs)
    groups: list[Branching] = []
    for index in order:
        alone = Branching(0, (index,))
        if groups and len(groups[-1].members) < MOST_BRANCHES:
            together = _join(groups[-1], index, requests)
            costs = [_cost(group, requests, context) for group in (together, groups[-1], alone)]
            if together.shared and costs[0] <= costs[1] + costs[2]:
                groups[-1] = together
                continue
        groups.append(alone)
    return groups


def _join(group: Branching, index: int, requests: Sequence[Request]) -> Branching:
    first, new = requests[group.members[0]], requests[index]
    limit = min(_unscored(first), _unscored(new), group.shared or len(first.inputs))
    pairs = zip(first.inputs[:limit], new.inputs[:limit], strict=True)
    shared = next((place for place, (one, other) in enumerate(pairs) if one != other), limit)
    return Branching(shared, (*group.members, index))


def _unscored(request: Request) -> int:
    return len(request.inputs) - len(request.targets)


class Shape(NamedTuple):
    """The arrays of a row: inputs from its start, and branches with their inputs and targets. One branch: none."""

    row: int
    branches: int
    branch: int
    targets: int

    @property
    def cost(self) -> int:
        """Tokens that are computed of a row."""
        return self.row + (self.branches * self.branch if self.branches > 1 else 0)


def _join_shapes(first: Shape, second: Shape) -> Shape | None:
    """The least shape that holds both; none for a row with branches and one without."""
    if (first.branches == 1) != (second.branches == 1):
        return None
    return Shape(*map(max, first, second))


def _shape(members: Sequence[Request], shared: int, config: ModelConfig) -> Shape:
    context = config.max_seq_len
    targets = bucket(max(len(one.targets) for one in members), context, FEWEST_TARGETS, TARGET_STEP)
    if len(members) == 1:
        return Shape(bucket(len(members[0].inputs), context), 1, 0, targets)
    branch = bucket(max(len(one.inputs) for one in members) - shared, context, FEWEST_TARGETS)
    return Shape(bucket(shared, context), bucket(len(members), MOST_BRANCHES, 2), branch, min(targets, branch))


def _cost(group: Branching, requests: Sequence[Request], context: int) -> int:
    lengths = [len(requests[index].inputs) for index in group.members]
    if len(lengths) == 1:
        return bucket(lengths[0], context)
    branch = bucket(max(lengths) - group.shared, context, FEWEST_TARGETS)
    return bucket(group.shared, context) + bucket(len(lengths), MOST_BRANCHES, 2) * branch


def _answer(
    placed: Placed, batch: Sequence[Branching], shape: Shape, rows: int, requests: Sequence[Request]
) -> list[tuple[int, Answer]]:
    """Answers to all members of a batch's groups."""
    members = [[requests[index] for index in group.members] for group in batch]
    targets = np.zeros((rows, shape.branches, shape.targets), np.int32)
    wanted = np.zeros((rows, shape.branches), np.int32)
    for row, branches in enumerate(members):
        for place, one in enumerate(branches):
            targets[row, place, : len(one.targets)] = one.targets
            wanted[row, place] = len(one.targets)
    starts = [
        one[0].inputs[: group.shared] if shape.branches > 1 else one[0].inputs
        for one, group in zip(members, batch, strict=True)
    ]
    given = [filled(starts, rows, shape.row), _counts(starts, rows)]
    if shape.branches > 1:
        tails = np.zeros((rows, shape.branches, shape.branch), np.int32)
        counts = np.zeros((rows, shape.branches), np.int32)
        for row, (branches, group) in enumerate(zip(members, batch, strict=True)):
            for place, one in enumerate(branches):
                tail = one.inputs[group.shared :]
                tails[row, place, : len(tail)] = tail
                counts[row, place] = len(tail)
        given += [tails, counts]
    program = _score_branches if shape.branches > 1 else _score_rows
    arrays = [placed.put(array) for array in (*given, targets, wanted)]
    log_p, hit = jax.device_get(program(placed.params, *arrays, config=placed.config, mesh=placed.mesh))
    answers = []
    for row, group in enumerate(batch):
        for place, index in enumerate(group.members):
            count = wanted[row, place]
            total = float(np.sum(log_p[row, place, :count], dtype=np.float64))
            answers.append((index, Answer(total, bool(hit[row, place, :count].all()))))
    return answers


def _counts(rows: Sequence[Sequence[int]], count: int) -> np.ndarray:
    return np.asarray([len(ids) for ids in rows] + [0] * (count - len(rows)), np.int32)


# On the device


@partial(jax.jit, static_argnames=("config", "mesh"))
def _score_rows(
    params: cached.Weights,
    tokens: Int[Array, "R S"],
    counts: Int[Array, " R"],
    targets: Int[Array, "R 1 n"],
    wanted: Int[Array, "R 1"],
    *,
    config: ModelConfig,
    mesh: Mesh | None,
) -> tuple[Float[Array, "R 1 n"], Bool[Array, "R 1 n"]]:
    hidden, _ = cached.begin(params, tokens, counts, config=config, mesh=mesh)
    return _score(params, hidden[:, None], counts[:, None], targets, wanted)


@partial(jax.jit, static_argnames=("config", "mesh"))
def _score_branches(
    params: cached.Weights,
    tokens: Int[Array, "R P"],
    counts: Int[Array, " R"],
    tails: Int[Array, "R G m"],
    tail_counts: Int[Array, "R G"],
    targets: Int[Array, "R G n"],
    wanted: Int[Array, "R G"],
    *,
    config: ModelConfig,
    mesh: Mesh | None,
) -> tuple[Float[Array, "R G n"], Bool[Array, "R G n"]]:
    _, kept = cached.begin(params, tokens, counts, config=config, mesh=mesh)
    hidden = cached.go_on(params, kept, tails, tail_counts, config=config, mesh=mesh)
    return _score(params, hidden, tail_counts, targets, wanted)


def _score(
    params: cached.Weights,
    hidden: Float[Array, "R G m D"],
    counts: Int[Array, "R G"],
    targets: Int[Array, "R G n"],
    wanted: Int[Array, "R G"],
) -> tuple[Float[Array, "R G n"], Bool[Array, "R G n"]]:
    """Log-probability of each target, and whether it is the likeliest token; beyond `wanted` without meaning."""
    place = (counts - wanted)[..., None] + jnp.arange(targets.shape[2], dtype=jnp.int32)
    place = jnp.minimum(place, hidden.shape[2] - 1)
    chosen = jnp.take_along_axis(hidden, place[..., None], axis=2)  # [R, G, n, D]
    head = params["output_proj"]

    def of_position(given: tuple[Array, Array]) -> tuple[Array, Array]:
        h, target = given
        logits = jnp.einsum("d,dv->v", h, head, preferred_element_type=jnp.float32)
        return logits[target] - jax.nn.logsumexp(logits), jnp.argmax(logits).astype(jnp.int32) == target

    positions = chosen.reshape(-1, chosen.shape[-1]), targets.reshape(-1)
    at_once = min(max(1, LOGITS // head.shape[1]), targets.size)
    log_p, hit = jax.lax.map(of_position, positions, batch_size=at_once)
    return log_p.reshape(targets.shape), hit.reshape(targets.shape)
