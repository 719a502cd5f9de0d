"""`harrier-synthetic`: text in topics and quality levels, made from a seed, whose entropy rate is known.

A document is a chain of made-up words, each followed by a space. The words of one seed are the same in every cell; how
often a word is used and which words like to follow it belong to the topic; how often a word comes from nowhere, all
words alike, belongs to the quality. So a model finds letters first, then words, then topics, then what follows what,
and the better of two qualities is the more predictable.

    next word | word  =  (END · end  +  noise · uniform  +  links · favourites of the word  +  links · topic) / 256

Words and document ends are a Markov chain, and tokens spell it: a word by its letters and a space, an end by EOS and
BOS. No word is spelled like another, so the tokens are known from the chain and the chain from the tokens, and

    entropy rate  =  sum over states of π(state) · H(next | state)  /  sum over states of π(state) · tokens(state)

with π the chain's stationary distribution: the entropy of a Markov chain (Cover and Thomas, "Elements of Information
Theory", theorem 4.2.4) over the mean length of what a state spells. No model can have a lower expected loss, in nats a
token, on text of the cell, its BOS and EOS counted, under the tokenizer `bytes`.

Everything is drawn with integers, so a seed gives the same bytes on every machine. W words, letters N documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from repro.errors import UsageError
from repro.ladder import threefry
from repro.ladder.order import Ints
from repro.ladder.tokenizing import BOS, EOS

WORDS = 256
COMMON = 32  # the shortest words, used alike by all topics
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
FAVOURITES = 4  # followers that a word has in a topic
END = 4  # in 256ths: a document has 64 words on average
NOISE = (128, 16)  # in 256ths, of the lowest and of the highest quality; what is left is halved
ROW = 2**24  # what a row of the chain sums to, 2^16 a 256th
DRAWN_TOGETHER = 1024  # documents
STRIDE = 64  # words drawn at once
MAX_TOPICS, MAX_QUALITIES = 1000, 10

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """The text of one cell. `quality` counts from 0, the noisiest, to `qualities` − 1. UsageError for others."""

    seed: int
    topic: int
    quality: int
    qualities: int
    documents: int

    def __post_init__(self) -> None:
        if not (0 <= self.topic < MAX_TOPICS and 0 <= self.quality < self.qualities <= MAX_QUALITIES):
            raise UsageError(
                f"harrier-synthetic: topic {self.topic}, quality {self.quality} of {self.qualities}: topics count from "
                f"0 to {MAX_TOPICS - 1}, qualities from 0, and there are at most {MAX_QUALITIES}."
            )
        if self.documents < 1 or not 0 <= self.seed < 2**32:
            raise UsageError(
                f"harrier-synthetic: {self.documents} documents of seed {self.seed}; take at least one document and a "
                "seed from 0 to 2^32 - 1."
            )


class Entropy(NamedTuple):
    """Of a text, in nats a token: what a model that knows everything cannot undercut, and what letter counts give."""

    rate: float
    unigram: float


class Chain(NamedTuple):
    """A cell's chain of words; state W is the end of a document."""

    words: tuple[str, ...]
    rows: Ints  # [W + 1, W + 1] weight of each next state; every row sums to ROW


def harrier_synthetic(
    *, tokens_per_cell: int, topics: int = 40, qualities: int = 5, seed: int = 0
) -> dict[str, Synthetic]:
    """Sources of the cells c00q0, c00q1, … with about `tokens_per_cell` tokens each, as `bytes` counts them.

    About: so many documents that tokens_per_cell is their expected length. UsageError where there would be none.
    """
    if tokens_per_cell < 1 or topics < 1 or qualities < 1:
        raise UsageError(
            f"harrier-synthetic: {tokens_per_cell} tokens of {topics} topics by {qualities} qualities; each must be at "
            "least 1."
        )
    cells = {}
    for topic in range(topics):
        for quality in range(qualities):
            one = Synthetic(seed=seed, topic=topic, quality=quality, qualities=qualities, documents=1)
            chain = build_chain(one)
            stationary = _stationary(chain)
            mean = float(stationary @ _lengths(chain)) / stationary[-1]
            documents = math.ceil(tokens_per_cell / mean)
            cells[f"c{topic:02}q{quality}"] = Synthetic(
                seed=seed, topic=topic, quality=quality, qualities=qualities, documents=documents
            )
    return cells


def documents(source: Synthetic, skip: int = 0) -> Iterator[str]:
    """The cell's documents, but for the first `skip`. Each depends on its number alone."""
    chain = build_chain(source)
    words = [f"{word} " for word in chain.words]
    for first in range(skip, source.documents, DRAWN_TOGETHER):
        numbers = np.arange(first, min(first + DRAWN_TOGETHER, source.documents))
        for states in _draw(chain, threefry.fold_in(_key(source.seed, 3, source.topic, source.quality), numbers)):
            yield "".join([words[state] for state in states])


def mixture_entropy(cells: Mapping[str, Synthetic], shares: Mapping[str, float]) -> Entropy:
    """Entropy of a mixture of cells, whose shares of the tokens are divided by their sum.

    The rate is the mean of the cells' own: of a reader who knows the cell. One who must guess it from what was read so
    far pays more at first.
    """
    total = math.fsum(shares.values())
    rate, frequencies = 0.0, np.zeros(EOS + 1)
    for cell, share in shares.items():
        if share > 0:
            found, letters = _entropy_rate(build_chain(cells[cell]))
            rate += share / total * found
            frequencies += share / total * letters
    return Entropy(rate, float(_entropy(frequencies)))


# The chain of a cell


def build_chain(source: Synthetic) -> Chain:
    """The words of the seed and the weights of each word's followers in this cell."""
    words = _lexicon(source.seed)
    span = source.qualities - 1
    noise = NOISE[0] + (NOISE[1] - NOISE[0]) * source.quality // span if span else NOISE[1]
    links = (256 - END - noise) // 2
    topic = _topic_ranks(source.seed, source.topic)
    parts = np.zeros((WORDS + 1, WORDS + 1), np.int64)
    parts[:WORDS, WORDS] = _shares(np.ones(1, np.int64), END)
    parts[:WORDS, :WORDS] += _shares(np.ones(WORDS, np.int64), noise)
    parts[:WORDS, topic] += _shares(_zipf(WORDS), 256 - END - noise - links)
    parts[WORDS, topic] += _shares(_zipf(WORDS), 256)
    followers = _favourites(source.seed, source.topic)
    for rank, weight in enumerate(_shares(_zipf(FAVOURITES), links)):
        parts[np.arange(WORDS), followers[:, rank]] += weight
    return Chain(words, parts)


def _lexicon(seed: int) -> tuple[str, ...]:
    """W different words of one to three syllables, short ones first."""
    draws = threefry.random_words(_key(seed, 0), 3 * WORDS * 7).reshape(-1, 7)  # some words come twice
    found: dict[str, None] = {}
    for size, *letters in draws.tolist():
        sounds = zip((CONSONANTS, VOWELS) * 3, letters, strict=True)
        spelled = "".join(alphabet[letter % len(alphabet)] for alphabet, letter in sounds)
        found.setdefault(spelled[: 2 + size % 5])
    return tuple(sorted(list(found)[:WORDS], key=len))


def _topic_ranks(seed: int, topic: int) -> Ints:
    """[W] words by how often the topic uses them: every second one a common word, until those are used up."""
    own = COMMON + threefry.permutation(_key(seed, 1, topic), WORDS - COMMON)
    mixed = np.stack([np.arange(COMMON), own[:COMMON]], axis=1).ravel()
    return np.concatenate([mixed, own[COMMON:]])


def _favourites(seed: int, topic: int) -> Ints:
    """[W, FAVOURITES] words that follow each word, drawn by how often the topic uses them."""
    limits = np.cumsum(_shares(_zipf(WORDS), 256))
    draws = threefry.random_words(_key(seed, 2, topic), WORDS * FAVOURITES) >> np.uint32(8)  # below ROW
    return _topic_ranks(seed, topic)[np.searchsorted(limits, draws, side="right")].reshape(WORDS, FAVOURITES)


def _zipf(count: int) -> Ints:
    return 2**20 // np.arange(1, count + 1)


def _shares(weights: Ints, parts: int) -> Ints:
    """Integer shares by weight that sum to `parts` 256ths of a row; the first gets what rounding down leaves."""
    shares = weights * (parts * ROW // 256) // weights.sum()
    shares[0] += parts * ROW // 256 - shares.sum()
    return shares


def _key(seed: int, *numbers: int) -> threefry.Key:
    key = threefry.key_from_seed(seed)
    for number in numbers:
        key = threefry.fold_in(key, number)
    return key


def _draw(chain: Chain, keys: threefry.Key) -> list[Ints]:
    """The words of each document, given their keys [N, 2]."""
    end = len(chain.words)
    # One sorted array for all rows: row after row, each limit raised by as many ROWs as rows stand before it.
    limits = (np.cumsum(chain.rows, axis=1) + ROW * np.arange(end + 1)[:, None]).ravel()
    state = np.full(len(keys), end)
    written: list[list[Ints]] = [[] for _ in keys]
    writing, stride = np.arange(len(keys)), 0
    while writing.size:
        draws = threefry.random_words(threefry.fold_in(keys[writing], stride), STRIDE) >> np.uint32(8)  # below ROW
        drawn = np.empty((len(writing), STRIDE), np.int64)
        for place in range(STRIDE):
            at = np.searchsorted(limits, draws[:, place] + ROW * state, side="right") - (end + 1) * state
            state = drawn[:, place] = at
        over = (drawn == end).any(axis=1)
        length = np.where(over, (drawn == end).argmax(axis=1), STRIDE)
        for document, states, count in zip(writing, drawn, length, strict=True):
            written[document].append(states[:count])
        writing, state, stride = writing[~over], state[~over], stride + 1
    return [np.concatenate(states) for states in written]


# Its entropy


def _stationary(chain: Chain) -> Floats:
    """[W + 1] share of each state in a long run: the solution of π P = π, sum of π = 1."""
    states = len(chain.rows)
    equations = chain.rows.T / ROW - np.eye(states)
    equations[-1] = 1  # one equation follows from the others
    return np.linalg.solve(equations, np.eye(states)[-1])


def _lengths(chain: Chain) -> Floats:
    """[W + 1] tokens that each state spells."""
    return np.array([*(len(word) + 1 for word in chain.words), len((EOS, BOS))], np.float64)


def _entropy_rate(chain: Chain) -> tuple[float, Floats]:
    """Nats a token, and the frequency of each token [EOS + 1]."""
    stationary = _stationary(chain)
    tokens = float(stationary @ _lengths(chain))
    spelled = np.zeros((len(stationary), EOS + 1))
    for state, word in enumerate(chain.words):
        np.add.at(spelled[state], list(f"{word} ".encode()), 1)
    spelled[-1, [BOS, EOS]] = 1
    return float(stationary @ _entropy(chain.rows / ROW)) / tokens, stationary @ spelled / tokens


def _entropy(probabilities: Floats) -> Floats:
    """Nats, over the last axis."""
    some = np.where(probabilities > 0, probabilities, 1)
    return -(some * np.log(some)).sum(axis=-1)
