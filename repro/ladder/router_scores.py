"""Where tokens go, drawn from a stated model of a router: preferences of topics and documents, noise, and balancing.

    score of token t for expert e = preference[d, e] + bias[e] + noise[t, e]
    preference[d]                 = spread · (√shared · topic[c] + √(1 - shared) · own[d]),   all standard normal

for a document d of the mixture's cell c; the noise is a standard Gumbel variable, and the K highest scores are chosen.
The noise need not be drawn: in the order of their scores, the chosen are drawn one after the other without replacement,
with probabilities softmax(preference + bias) (Yellott 1977). A sequence is cut out of documents of one cell, laid end
to end, with lengths from a lognormal distribution; cells are drawn with the mixture's own weights. Layers differ in
their spread, by another lognormal distribution.

The bias is what quantile balancing comes to rest at: with it, every expert's expected load over a batch is the same.
Expected loads take an expert to be among the K first of E exponential clocks as 1 - exp(-p·t), t such that these sum to
K. For the run the batch is the one before, of all racks, so that the present one is balanced only as far as the two are
alike.

The model's numbers, and what they were set by, stand in `Stated`; `measured_routing` takes the spread from a trained
router instead. NumPy only.

Letters: D documents, E experts, K experts chosen a token, n tokens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Result = TypeVar("Result")
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

CHUNK = 2_048  # documents at once, where expected loads are computed
NEWTON_STEPS = 30
SPARE = 3  # draws beyond the choices, for those that come twice; measured
ROUNDS = 4  # of draws, before the tokens that still lack a choice are drawn with their noise


@dataclass(frozen=True, kw_only=True)
class ScoreModel:
    """The model's numbers. `cells` are weights of the mixture's cells, of sum 1."""

    experts: int
    chosen: int
    spread: float  # standard deviation of preferences, in units in which the noise has π/√6 = 1.28
    shared: float  # of a document's preferences' variance, what all documents of its cell have in common
    document_tokens: float  # mean length
    document_sigma: float  # standard deviation of ln(length)
    cells: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What the record does not say of its routing, and what is taken instead.

    spread        median of layers. With it pooled-wave senders drop the 3% at 4K that the run's did from step 20,030
                  to 20,400 (hero_train.csv): the only number that is set by the record's drops
    layer_sigma   of ln(spread) between layers. In a d6144 and a d2048 of scale smoke 0.15 and 0.19 were measured
    shared, document_tokens, document_sigma: assumptions. The record has no lengths of documents
    """

    spread: float = 1.65
    layer_sigma: float = 0.2
    shared: float = 0.5
    document_tokens: float = 1_500.0
    document_sigma: float = 1.2

    def spreads(self, layers: int) -> tuple[float, ...]:
        """Spreads that stand for all layers: in the middle of each of so many equally likely parts."""
        places = [NormalDist().inv_cdf((layer + 0.5) / layers) for layer in range(layers)]
        return tuple(self.spread * math.exp(self.layer_sigma * place) for place in places)


STATED = Stated()


class Documents(NamedTuple):
    """The documents of a batch in the order of its tokens, cut at the ends of sequences."""

    tokens: Ints  # [D], of sum sequences · sequence length
    preference: Floats  # [D, E], without the bias


def draw_topics(model: ScoreModel, rng: np.random.Generator) -> Floats:
    """Preferences of the cells [cells, E], standard normal: the same for all batches of one router."""
    return rng.standard_normal((len(model.cells), model.experts), dtype=np.float32)


def draw_documents(
    model: ScoreModel, topics: Floats, rng: np.random.Generator, *, sequences: int, length: int
) -> Documents:
    """A batch of sequences, each of one cell. The first document of a sequence begins before it."""
    tokens, sequence = _cut(model, rng, sequences, length)
    cell = rng.choice(len(model.cells), size=sequences, p=model.cells)[sequence]  # [D]
    own = rng.standard_normal((len(tokens), model.experts), dtype=np.float32)
    preference = np.sqrt(model.shared) * topics[cell] + np.sqrt(1 - model.shared) * own
    return Documents(tokens, (model.spread * preference).astype(np.float32))


def expected_loads(documents: Documents, bias: Floats, chosen: int) -> npt.NDArray[np.float64]:
    """Assignments each expert is to get [E], of sum tokens · K."""

    def part(first: int) -> npt.NDArray[np.float64]:
        inside = slice(first, first + CHUNK)
        included = _inclusion(_softmax(documents.preference[inside] + bias), chosen)
        return np.asarray(documents.tokens[inside].astype(np.float32) @ included, np.float64)

    return np.sum(in_threads(part, range(0, len(documents.tokens), CHUNK)), axis=0)


def balance(documents: Documents, chosen: int, *, bias: Floats | None = None, passes: int = 12) -> Floats:
    """The bias [E] of mean zero with which the documents load all experts alike, from a first guess on."""
    experts = documents.preference.shape[1]
    bias = np.zeros(experts, np.float32) if bias is None else bias
    for _ in range(passes):
        loads = expected_loads(documents, bias, chosen)
        # A load changes by less than its factor, since other experts and the token's own choices give way.
        bias = (bias - 1.2 * np.log(loads / loads.mean())).astype(np.float32)
        bias -= bias.mean()
    return bias


def choose_experts(preference: Floats, tokens: Ints, chosen: int, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    """Experts of documents' tokens [n, K], document after document, each token's by descending score.

    `preference` [D, E] holds the bias, `tokens` [D] how many each document has.
    """
    ends = np.cumsum(_softmax(preference.astype(np.float64)), axis=1)  # [D, E]
    ends /= ends[:, -1:]
    document = np.repeat(np.arange(len(tokens)), tokens)  # [n]
    picked = np.full((chosen, document.size), -1, np.int16)  # a choice is a row: its numbers lie together
    waiting = np.arange(document.size)
    for _ in range(ROUNDS):
        draws = _draw(ends, np.bincount(document[waiting], minlength=len(tokens)), SPARE + chosen, rng)
        picked[:, waiting] = _first_distinct(np.concatenate([picked[:, waiting], draws]), chosen)
        waiting = waiting[picked[-1, waiting] < 0]
        if not waiting.size:
            break
    for columns in np.array_split(waiting, 1 + waiting.size // CHUNK):
        _fill_up(picked, columns, preference, document, rng)
    return picked.T.astype(np.int32)


def _draw(ends: npt.NDArray[np.float64], tokens: Ints, draws: int, rng: np.random.Generator) -> npt.NDArray[np.int16]:
    """Experts [draws, n], independent; `ends` [D, E] sums a document's chances up to each expert."""
    place = rng.random((draws, int(tokens.sum())))
    result = np.empty(place.shape, np.int16)
    last = np.cumsum(tokens)
    for document, (first, end) in enumerate(zip(last - tokens, last, strict=True)):
        result[:, first:end] = np.searchsorted(ends[document], place[:, first:end], side="right")
    return result


def _first_distinct(draws: npt.NDArray[np.int16], chosen: int) -> npt.NDArray[np.int16]:
    """The first K different numbers of each column, in their order, then -1; a -1 given counts for nothing."""
    result = np.full((chosen, draws.shape[1]), -1, np.int16)
    filled = np.zeros(draws.shape[1], np.int64)
    columns = np.arange(draws.shape[1])
    for number, draw in enumerate(draws):
        new = (draw >= 0) & (filled < chosen)
        for before in draws[:number]:
            new &= draw != before
        where = columns[new]
        result[filled[where], where] = draw[where]
        filled[where] += 1
    return result


def _fill_up(
    picked: npt.NDArray[np.int16], columns: Ints, preference: Floats, document: Ints, rng: np.random.Generator
) -> None:
    """The rest of the choices of tokens whose documents want few experts: by scores, noise and all."""
    scores = preference[document[columns]] + rng.gumbel(size=(columns.size, preference.shape[1]))
    choice, token = np.nonzero(picked[:, columns] >= 0)
    scores[token, picked[:, columns][choice, token]] = -np.inf
    best = np.argsort(-scores, axis=1)[:, : len(picked)]
    for column, order in zip(columns, best, strict=True):
        missing = picked[:, column] < 0
        picked[missing, column] = order[: missing.sum()]


def _cut(model: ScoreModel, rng: np.random.Generator, sequences: int, length: int) -> tuple[Ints, Ints]:
    """Lengths of the pieces of documents that fill each sequence, and the sequence of each."""
    mean_log = np.log(model.document_tokens) - model.document_sigma**2 / 2
    pieces: list[Ints] = []
    for _ in range(sequences):
        # A place in running text falls into a document with a chance in proportion to its length.
        first = rng.lognormal(mean_log + model.document_sigma**2, model.document_sigma) * rng.random()
        lengths, reached = [max(1, round(first))], max(1, round(first))
        while reached < length:
            more = np.maximum(1, rng.lognormal(mean_log, model.document_sigma, size=16).round()).astype(np.int64)
            lengths.extend(more.tolist())
            reached += int(more.sum())
        ends = np.minimum(np.cumsum(lengths), length)
        own = np.diff(ends, prepend=0)
        pieces.append(own[own > 0])
    return np.concatenate(pieces), np.repeat(np.arange(sequences), [len(one) for one in pieces])


def _softmax(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def _inclusion(p: npt.NDArray[np.floating], chosen: int) -> npt.NDArray[np.floating]:
    """Chance [D, E] of an expert to be among the chosen: 1 - exp(-p·t), of sum K. Newton's method from below."""
    t = np.full((len(p), 1), chosen, p.dtype)
    for _ in range(NEWTON_STEPS):
        missed = np.exp(-p * t)
        short = chosen - (1 - missed).sum(axis=1, keepdims=True)
        if np.abs(short).max() < 1e-4 * chosen:
            break
        t += short / (p * missed).sum(axis=1, keepdims=True)
    return 1 - np.exp(-p * t)


def in_threads(function: Callable[..., Result], *items: Iterable[object]) -> list[Result]:
    """The function of each item, in their order, on a few threads: NumPy and XLA let go of the interpreter."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(function, *items))


def dispersion(spread: float, experts: int, chosen: int, *, documents: int = 512) -> float:
    """Relative variance of a document's chance to choose an expert, mean over experts and documents; no bias."""
    rng = np.random.default_rng(0)  # the same documents for every spread, so that it rises with it
    preference = spread * rng.standard_normal((documents, experts))
    included = _inclusion(_softmax(preference), chosen)
    return float(np.mean((included * experts / chosen - 1) ** 2))


def normalised(weights: Sequence[float]) -> tuple[float, ...]:
    """Weights of sum 1."""
    total = sum(weights)
    return tuple(weight / total for weight in weights)
