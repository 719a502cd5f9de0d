"""The synthetic text: the same for a seed, and as predictable as it says."""

from __future__ import annotations

import hashlib
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import UsageError
from repro.ladder import synthetic
from repro.ladder.synthetic import ROW, Synthetic, build_chain, documents, harrier_synthetic, mixture_entropy

DIGEST = "d11052e8812da86f5e122546ebfa8ed30b4de329289d08a956e559415793c5c5"


def source(topic: int = 3, quality: int = 1, qualities: int = 5, documents: int = 2_000, seed: int = 0) -> Synthetic:
    return Synthetic(seed=seed, topic=topic, quality=quality, qualities=qualities, documents=documents)


def words_of(text: str) -> list[str]:
    assert text.endswith(" ")
    return text[:-1].split(" ")


# The same for a seed


def test_a_seed_gives_the_same_bytes_everywhere() -> None:
    """The digest pins the text itself: who changes it makes another corpus, and has to say so."""
    text = "\n".join(documents(source(documents=300)))
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST
    assert "\n".join(documents(source(documents=300, seed=1))) != text


@given(skip=st.integers(0, 1_100))
@settings(max_examples=8, deadline=None)
def test_a_document_depends_on_its_number_alone(skip: int) -> None:
    whole = list(documents(source(documents=1_100)))
    assert list(documents(source(documents=1_100), skip)) == whole[skip:]
    assert list(islice(documents(source(documents=5_000), skip), 3)) == list(
        documents(source(documents=skip + 3), skip)
    )


def test_topics_and_qualities_differ_and_words_are_shared() -> None:
    chains = [build_chain(source(topic=t, quality=q)) for t in range(3) for q in range(5)]
    assert {chain.words for chain in chains} == {chains[0].words}
    assert len({chain.rows.tobytes() for chain in chains}) == len(chains)
    assert len(set(chains[0].words)) == len(chains[0].words) == synthetic.WORDS


@given(seed=st.integers(0, 2**32 - 1), topic=st.integers(0, 999), qualities=st.integers(1, 10), data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_row_of_a_chain_is_a_distribution(seed: int, topic: int, qualities: int, data: st.DataObject) -> None:
    quality = data.draw(st.integers(0, qualities - 1))
    chain = build_chain(source(topic, quality, qualities, seed=seed))
    assert (chain.rows.sum(axis=1) == ROW).all()
    assert (chain.rows >= 0).all()
    assert (chain.rows[:-1, -1] == ROW * synthetic.END // 256).all()
    assert chain.rows[-1, -1] == 0  # no document is empty


def test_the_expected_length_is_kept() -> None:
    """Documents' lengths vary as a geometric distribution's: 2,000 of them sum to within 10% (4.5 sigma)."""
    cells = harrier_synthetic(tokens_per_cell=700_000, topics=2, qualities=2)
    assert list(cells) == ["c00q0", "c00q1", "c01q0", "c01q1"]
    for cell in cells.values():
        tokens = sum(len(text) + 2 for text in documents(cell))
        assert abs(tokens / 700_000 - 1) < 0.1


# As predictable as it says


@pytest.mark.parametrize("quality", [0, 4])
def test_the_entropy_rate_is_what_the_chain_itself_loses_on_its_text(quality: int) -> None:
    """Mean −ln P of the text under its own chain, counted word by word: within 4 standard errors over documents."""
    cell = source(quality=quality)
    chain = build_chain(cell)
    state = {word: number for number, word in enumerate(chain.words)}
    end = len(chain.words)
    losses, lengths = [], []
    for text in documents(cell):
        path = np.array([end, *(state[word] for word in words_of(text)), end])
        losses.append(-np.log(chain.rows[path[:-1], path[1:]] / ROW).sum())
        lengths.append(len(text) + 2)
    rate = mixture_entropy({"c": cell}, {"c": 1}).rate
    excess = np.array(losses) - rate * np.array(lengths)  # of each document, 0 on average
    error = excess.std() / np.sqrt(len(excess))
    assert abs(excess.mean()) < 4 * error
    assert error / np.mean(lengths) < 0.004  # nats a token: the test can tell qualities apart


def test_the_unigram_entropy_is_that_of_the_letters() -> None:
    cell = source()
    text = "".join(documents(cell)).encode()
    counts = np.bincount(np.frombuffer(text, np.uint8), minlength=258)
    counts[[synthetic.BOS, synthetic.EOS]] = cell.documents
    p = counts[counts > 0] / counts.sum()
    assert abs(mixture_entropy({"c": cell}, {"c": 1}).unigram + (p * np.log(p)).sum()) < 0.005


def test_better_quality_is_more_predictable() -> None:
    cells = harrier_synthetic(tokens_per_cell=1, topics=1, qualities=5)
    rates = [mixture_entropy(cells, {cell: 1}).rate for cell in cells]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1] + 0.15
    assert all(mixture_entropy(cells, {cell: 1}).unigram > 2.5 for cell in cells)


def test_a_mixture_has_the_mean_rate_and_at_least_the_mean_unigram_entropy() -> None:
    cells = harrier_synthetic(tokens_per_cell=1, topics=2, qualities=1)
    alone = [mixture_entropy(cells, {cell: 1}) for cell in cells]
    both = mixture_entropy(cells, {"c00q0": 3, "c01q0": 1})
    assert both.rate == pytest.approx(0.75 * alone[0].rate + 0.25 * alone[1].rate, rel=1e-12)
    assert both.unigram > 0.75 * alone[0].unigram + 0.25 * alone[1].unigram


def test_the_stationary_distribution_is_where_the_chain_settles() -> None:
    chain = build_chain(source())
    share = np.full(len(chain.rows), 1 / len(chain.rows))
    for _ in range(2_000):
        share = share @ (chain.rows / ROW)
    assert np.allclose(share, synthetic._stationary(chain), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quality": 5}, "quality 5 of 5"),
        ({"qualities": 11}, "at most 10"),
        ({"topic": -1}, "topic -1"),
        ({"documents": 0}, "0 documents"),
        ({"seed": 2**32}, "seed from 0 to"),
    ],
)
def test_a_cell_that_does_not_exist_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source(**change)


def test_a_corpus_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="0 tokens of 40 topics by 5 qualities"):
        harrier_synthetic(tokens_per_cell=0)
