"""How strongly a trained router's choices hang on the document, as the spread of `router_scores`, layer by layer.

Counts of a document's assignments scatter more than its tokens would by chance: their variance over documents, less
that of independent tokens, is the variance of the documents' own chances to choose an expert. The spread is the one at
which the model's chances vary as much.

    excess = sum over d, e of (n[d, e] - t[d]·q[e])² - t[d]·q[e]·(1 - q[e])
    relative variance = excess / sum over d, e of t[d]·(t[d] - 1)·q[e]²

n: tokens of document d that chose e, t: its tokens, q[e]: the share of all tokens that chose e. Tokens of one document
that are alike for other reasons (the same word twice) count as the document's.

Comes in: a trained run's weights, and sequences with their segments. Goes out: one spread a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from marin_model import model as mathematics
from marin_model.config import ModelConfig
from marin_model.transport import Transport
from repro.errors import RecordError
from repro.ladder.router_scores import dispersion

LARGEST_SPREAD = 8.0
SMALLEST_DOCUMENT = 16  # tokens; shorter ones say little
FEWEST_DOCUMENTS = 32
ROWS = 32  # sequences routed at once


def measure_spreads(
    counts: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer], *, chosen: int
) -> tuple[float, ...]:
    """One spread a layer, from `count_choices`. RecordError where the documents are too few."""
    if len(sizes) < FEWEST_DOCUMENTS:
        raise RecordError(
            f"{len(sizes)} documents of {SMALLEST_DOCUMENT} tokens or more were routed; fewer than {FEWEST_DOCUMENTS} "
            "say nothing of a router. Take a run with more held-out data."
        )
    return tuple(spread_of(relative_variance(layer, sizes), layer.shape[1], chosen) for layer in counts)


def relative_variance(counts: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer]) -> float:
    """Of the documents' chances to choose an expert: counts [D, E] of documents of so many tokens [D]."""
    t = sizes[:, None].astype(np.float64)
    q = counts.sum(axis=0) / sizes.sum()  # [E]
    excess = np.sum((counts - t * q) ** 2 - t * q * (1 - q))
    return float(excess / np.sum(t * (t - 1) * q**2))


def spread_of(variance: float, experts: int, chosen: int) -> float:
    """The spread at which a document's chances have that relative variance, by bisection; 0 for none."""
    low, high = 0.0, LARGEST_SPREAD
    if variance <= 0:
        return 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        if dispersion(middle, experts, chosen) < variance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def count_choices(
    params: Mapping[str, jax.Array],
    config: ModelConfig,
    tokens: npt.NDArray[np.integer],
    segments: npt.NDArray[np.integer],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How often each layer's experts were chosen by each document [layers, D, E], and the documents' tokens [D]."""
    route = _compiled(config)
    parts = []
    for first in range(0, len(tokens), ROWS):
        rows, own = (
            np.pad(x[first : first + ROWS], ((0, max(0, first + ROWS - len(x))), (0, 0)), constant_values=fill)
            for x, fill in ((tokens, 0), (segments, -1))
        )
        selected = np.asarray(route(dict(params), jnp.asarray(rows), jnp.asarray(own)))  # [layers, T, K]
        parts.append(_by_document(selected, own, config.num_experts))
    counts, sizes = (
        np.concatenate(part, axis=axis) for part, axis in zip(zip(*parts, strict=True), (1, 0), strict=True)
    )
    enough = sizes >= SMALLEST_DOCUMENT
    return counts[:, enough], sizes[enough]


def _by_document(
    selected: npt.NDArray[np.integer], segments: npt.NDArray[np.integer], experts: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    width = int(segments.max(initial=0)) + 1
    row = np.arange(len(segments))[:, None]
    names, document = np.unique(np.where(segments < 0, -1, row * width + segments).reshape(-1), return_inverse=True)
    valid = np.flatnonzero(names[document] >= 0)
    counts = np.zeros((len(selected), len(names), experts), np.int64)
    for layer, own in zip(counts, selected, strict=True):
        np.add.at(layer, (document[valid, None], own[valid]), 1)
    sizes = np.bincount(document[valid], minlength=len(names))
    return counts[:, names >= 0], sizes[names >= 0]


def _compiled(config: ModelConfig) -> Callable[[dict[str, jax.Array], jax.Array, jax.Array], jax.Array]:
    @jax.jit
    def route(params: dict[str, jax.Array], tokens: jax.Array, segments: jax.Array) -> jax.Array:
        seen = mathematics.transformer(
            params, tokens, segments, config=config, transport=Transport.dropless(), mesh=None, keep_routes=True
        )
        assert seen.routed is not None
        return seen.routed.selected

    return route
