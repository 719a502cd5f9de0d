"""Arrays of a step: the store's tokens in the order's order, documents told apart, held-out ones never among them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_model.layers import documents as attention_documents
from marin_model.training import Batch as TrainingBatch
from repro.errors import UsageError
from repro.ladder.batches import Batch, Batches, recipe_order, segment_ids
from repro.ladder.corpus import Store, StoreSpec, build_store
from repro.ladder.order import Order, Phase
from repro.ladder.recipe import resolve_recipe
from repro.ladder.sources import text_files
from repro.ladder.synthetic import harrier_synthetic
from repro.ladder.tokenizing import load_tokenizer

BOS, EOS = 256, 257
S = 16


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two cells of numbered documents, one of them in cell b as long as twenty sequences; cell c is empty."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = {
        "a": [f"a{i}," for i in range(200)],
        "b": [f"b{i}," for i in range(100)] + ["0123456789" * 32] + [f"b{i}," for i in range(100, 200)],
        "c": [],
    }
    for cell, some in texts.items():
        (folder / f"{cell}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    sources = {cell: text_files([folder / f"{cell}.jsonl"]) for cell in texts}
    spec = StoreSpec(sources=sources, tokenizer=load_tokenizer("bytes"), held_out=0.2, shard_tokens=500)
    return build_store(spec, folder / "store")


@pytest.fixture(scope="module")
def batches(store: Store) -> Batches:
    phases = [Phase(start=0, weights={"a": 1, "b": 3, "c": 0}), Phase(start=8, weights={"a": 1, "b": 1})]
    order = Order(sequences=store.sequences(S), phases=phases, batch_size=6, block_size=16)
    return Batches(order=order, store=store, seq_len=S)


def test_a_row_is_its_sequence_of_the_flat_stream(batches: Batches) -> None:
    flat = {cell: stream.read(0, stream.tokens) for cell, stream in batches.store.train.items()}
    for step in (0, 3, 8, 1000):
        rows, batch = batches.order.rows(step), batches.batch(step)
        assert (batch.tokens.dtype, batch.loss_weight.dtype, batch.segment_ids.dtype) == ("i4", "f4", "i4")
        assert batch.tokens.shape == batch.loss_weight.shape == batch.segment_ids.shape == (6, S)
        for cell, sequence, tokens in zip(*rows, batch.tokens, strict=True):
            name = batches.order.cells[cell]
            assert np.array_equal(tokens, flat[name][S * sequence : S * (sequence + 1)])


def test_one_epoch_of_a_cell_is_its_stream_but_for_the_tail(store: Store) -> None:
    """Nothing is padded, packed or lost: sequences by number are the stream again, the long document whole."""
    sequences = store.sequences(S)["b"]
    order = Order(sequences={"b": sequences}, phases=[Phase(start=0, weights={"b": 1})], batch_size=1, block_size=1)
    batches = Batches(order=order, store=store, seq_len=S)
    found = {int(order.rows(step).sequence[0]): batches.batch(step).tokens[0] for step in range(sequences)}
    assert sorted(found) == list(range(sequences))
    flat = np.concatenate([found[number] for number in range(sequences)])
    assert np.array_equal(flat, store.train["b"].read(0, sequences * S))
    assert 0 <= store.train["b"].tokens - len(flat) < S
    long = bytes([1, *b"0123456789" * 32, 2])
    spelled = np.where(flat == BOS, 1, np.where(flat == EOS, 2, flat)).astype(np.uint8).tobytes()
    assert spelled.count(long) == 1  # over twenty sequences and more


def test_a_step_is_the_same_whoever_asks_and_whenever(batches: Batches) -> None:
    whole = batches.batch(5)
    again = Batches(order=batches.order, store=batches.store, seq_len=S).batch(5)  # as after a resume
    parts = [batches.batch(5, 0, 1), batches.batch(5, 1, 3), batches.batch(5, 4)]  # as three processes
    for name in Batch._fields:
        assert np.array_equal(getattr(again, name), getattr(whole, name))
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
    assert not np.array_equal(batches.batch(6).tokens, whole.tokens)


def test_the_last_position_has_no_weight_and_eos_to_bos_has(batches: Batches) -> None:
    batch = batches.batch(0)
    assert (batch.loss_weight[:, -1] == 0).all()
    assert (batch.loss_weight[:, :-1] == 1).all()
    row, place = np.argwhere(batch.tokens[:, :-1] == EOS)[0]
    assert batch.tokens[row, place + 1] == BOS
    assert batch.loss_weight[row, place] == 1
    assert batch.segment_ids[row, place + 1] == batch.segment_ids[row, place] + 1


@given(st.lists(st.sampled_from([BOS, EOS, 1, 2]), min_size=1, max_size=30))
def test_a_segment_ends_after_eos_wherever_a_sequence_begins(tokens: list[int]) -> None:
    """By the definition: how many of the positions up to here follow an EOS; the first follows nothing."""
    expected = [sum(before == EOS for before in tokens[:place]) for place in range(len(tokens))]
    assert segment_ids(np.array([tokens], np.int32), EOS).tolist() == [expected]


def test_attention_stays_inside_a_document(batches: Batches) -> None:
    batch = batches.batch(0)
    start = np.asarray(attention_documents(jax.numpy.asarray(batch.segment_ids), batch.tokens.shape).start)
    for tokens, starts in zip(batch.tokens, start, strict=True):
        for place in range(S):
            ended = np.flatnonzero(tokens[:place] == EOS)
            assert starts[place] == (ended[-1] + 1 if len(ended) else 0)


def test_the_arrays_stand_in_the_order_of_the_training_step() -> None:
    assert Batch._fields == TrainingBatch._fields


# Held-out documents


def test_held_out_documents_are_never_trained_on(batches: Batches) -> None:
    def documents(tokens: np.ndarray) -> set[bytes]:
        """Those that stand whole in a row."""
        rows = [np.split(row, np.flatnonzero(row == EOS) + 1) for row in tokens]
        whole = [one for row in rows for one in row if len(one) > 1 and one[0] == BOS and one[-1] == EOS]
        return {bytes(one[1:-1].tolist()) for one in whole}

    held = documents(batches.held_out().tokens)
    trained = set().union(*(documents(batches.batch(step).tokens) for step in range(200)))
    assert len(held) > 20
    assert len(trained) > 100
    assert not held & trained


def test_cells_take_turns_in_what_is_held_out(batches: Batches) -> None:
    streams = [batches.store.held_out[cell] for cell in "ab"]
    some = batches.held_out(4 * S + 1).tokens
    assert np.array_equal(some, [s.read(S * number, S) for number in (0, 1) for s in streams])
    whole = batches.held_out()
    assert len(whole.tokens) == sum(stream.tokens // S for stream in streams)
    assert np.array_equal(batches.held_out(10**9).tokens, whole.tokens)
    assert len(batches.held_out(1).tokens) == 1
    assert (whole.loss_weight[:, -1] == 0).all()


def test_a_store_with_nothing_held_out_says_so(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text for training")
    spec = StoreSpec(sources={"a": text_files([tmp_path])}, tokenizer=load_tokenizer("bytes"), held_out=0)
    trained = build_store(spec, tmp_path / "store")
    order = Order(sequences=trained.sequences(S), phases=[Phase(start=0, weights={"a": 1})], batch_size=1, block_size=1)
    with pytest.raises(UsageError, match=r"no cell has 16 held-out tokens.* hold out more than 0\.0%"):
        Batches(order=order, store=trained, seq_len=S).held_out()


# Recipes


def test_smoke_reads_its_own_mixture_of_the_synthetic_store(tmp_path: Path) -> None:
    recipe = resolve_recipe("d768", "smoke")
    assert recipe.mixture_weights is not None
    cells = harrier_synthetic(tokens_per_cell=40_000, topics=8, qualities=2)
    assert set(cells) >= set(recipe.mixture_weights[0])
    spec = StoreSpec(sources=cells, tokenizer=load_tokenizer("bytes"), held_out=0.05)
    store = build_store(spec, tmp_path / "store")
    order = recipe_order(recipe, store, recipe.mixture_weights)
    batches = Batches(order=order, store=store, seq_len=recipe.seq_len)
    assert batches.batch(0).tokens.shape == (recipe.batch_size, recipe.seq_len)
    assert batches.held_out(recipe.evaluation_tokens).tokens.size == recipe.evaluation_tokens
    assert order.unread_cells() == ()
    for start, weights in zip(recipe.mixture_phase_starts, recipe.mixture_weights, strict=True):
        block = [order.rows(start + step).cell for step in range(recipe.mixture_step_multiple)]
        shares = np.bincount(np.concatenate(block)) / (len(block) * recipe.batch_size)
        assert np.allclose(shares, list(weights.values()), atol=0.01)
    assert [departure.what for departure in batches.departures] == ["corpus", "tokenizer"]
    assert "synthetic" in str(batches.departures[0].here)


def test_a_store_without_the_mixtures_cells_is_refused(store: Store) -> None:
    recipe = resolve_recipe("d768", "smoke")
    assert recipe.mixture_weights is not None
    with pytest.raises(UsageError, match=r"has no cell c00q0 \((\d+) of \1 cells of the mixture are missing\)"):
        recipe_order(recipe, store, recipe.mixture_weights)


def test_an_order_of_another_store_or_length_is_refused(batches: Batches) -> None:
    with pytest.raises(UsageError, match=r"has \d+ of 8 tokens\. Make the order from this store"):
        Batches(order=batches.order, store=batches.store, seq_len=8)


def test_the_identity_changes_with_tokens_and_with_order_and_has_no_path(batches: Batches) -> None:
    text = json.dumps(batches.identity)
    assert str(batches.store.folder) not in text
    assert batches.identity["store"] == batches.store.sha256
    order = replace(batches.order, seed=1)
    assert Batches(order=order, store=batches.store, seq_len=S).identity != batches.identity
