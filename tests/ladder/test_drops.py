"""The simulator of drops: its draws against the scores they stand for, its drops against the transport that trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_model import router
from marin_model.grouped import ExpertBank
from marin_model.initial import init_arrays
from marin_model.transport import Transport, transport_tokens
from repro.errors import RecordError, UsageError
from repro.ladder import measured_routing
from repro.ladder.drops import Geometry, Room, check_length, draw_rack, drop, geometry_of, interval_95, simulate
from repro.ladder.measured_routing import count_choices, measure_spreads, relative_variance, spread_of
from repro.ladder.recipe import resolve_recipe
from repro.ladder.router_scores import (
    STATED,
    Documents,
    ScoreModel,
    balance,
    choose_experts,
    draw_documents,
    draw_topics,
    expected_loads,
)

RACK = Geometry(shards=8, experts=48, chosen=4, tokens_per_shard=1024, waves=3, racks=2)
MODEL = ScoreModel(
    experts=48, chosen=4, spread=1.5, shared=0.5, document_tokens=200, document_sigma=1.0, cells=(0.25,) * 4
)


def batch(seed: int, *, sequences: int = 64, length: int = 256, model: ScoreModel = MODEL) -> Documents:
    topics = draw_topics(model, np.random.default_rng(99))
    return draw_documents(model, topics, np.random.default_rng(seed), sequences=sequences, length=length)


def test_choices_are_those_of_the_highest_noisy_scores() -> None:
    preference = np.array([[2.0, 1.0, 0.0, 0.0, -1.0, 0.5], [5.0, 5.0, -3.0, -3.0, -3.0, -3.0]], np.float32)
    n = 40_000
    picked = choose_experts(preference, np.array([n, n]), 3, np.random.default_rng(0)).reshape(2, n, 3)
    noise = np.random.default_rng(1).gumbel(size=(2, n, 6))
    scores = np.argsort(-(preference[:, None] + noise), axis=2)[:, :, :3]
    for choice in range(3):
        for document in range(2):
            ours, theirs = (np.bincount(one[document, :, choice], minlength=6) / n for one in (picked, scores))
            assert np.abs(ours - theirs).max() < 5 * np.sqrt(0.5 / n)  # five standard errors of a difference
    assert all(len(set(row)) == 3 for row in picked[0].tolist())


def test_a_document_that_wants_one_expert_still_chooses_others() -> None:
    preference = np.full((1, 12), -40.0, np.float32)
    preference[0, 7] = 0
    picked = choose_experts(preference, np.array([500]), 4, np.random.default_rng(0))
    assert (picked[:, 0] == 7).all()
    assert all(len(set(row)) == 4 and min(row) >= 0 for row in picked.tolist())
    others = np.bincount(picked[:, 1:].reshape(-1), minlength=12)
    assert others[7] == 0
    assert others.min(where=np.arange(12) != 7, initial=999) > 90  # 136 in the mean


@given(st.integers(1, 400), st.integers(1, 40), st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_documents_fill_every_sequence(length: int, sequences: int, seed: int) -> None:
    documents = batch(seed, sequences=sequences, length=length)
    assert documents.tokens.min() > 0
    assert documents.preference.shape == (len(documents.tokens), MODEL.experts)
    ends = set(np.cumsum(documents.tokens).tolist())
    assert {length * (row + 1) for row in range(sequences)} <= ends  # documents are cut where a sequence ends


def test_expected_loads_are_those_that_are_drawn() -> None:
    documents, bias = batch(3), np.zeros(48, np.float32)
    expected = expected_loads(documents, bias, 4)
    assert expected.sum() == pytest.approx(4 * documents.tokens.sum(), rel=1e-4)
    drawn = np.zeros(48)
    for seed in range(60):
        picked = choose_experts(documents.preference, documents.tokens, 4, np.random.default_rng(seed))
        drawn += np.bincount(picked.reshape(-1), minlength=48) / 60
    # The clocks' chances are an approximation: with 300 draws they were off by up to 2.4% of the mean load.
    assert np.abs(drawn - expected).max() < 0.04 * expected.mean()


def test_balance_loads_all_experts_alike() -> None:
    documents = batch(4)
    loads = expected_loads(documents, balance(documents, 4), 4)
    assert np.abs(loads / loads.mean() - 1).max() < 1e-3
    assert expected_loads(documents, np.zeros(48, np.float32), 4).std() > 0.2 * loads.mean()


def test_balance_is_where_the_models_quantile_balancing_comes_to_rest() -> None:
    documents = batch(5, sequences=64)
    tokens = np.repeat(np.arange(len(documents.tokens)), documents.tokens)
    scores = documents.preference[tokens] + np.random.default_rng(0).gumbel(size=(len(tokens), 48)).astype(np.float32)

    @jax.jit
    def step(bias: jax.Array) -> jax.Array:
        threshold = -jnp.sort(-(scores + bias), axis=1)[:, 4:5]
        betas = router.qb_betas_hist(scores - threshold, jnp.ones(len(scores), bool), k=4, bins=10_000)
        return router.router_bias(betas[None])[0]

    bias = jnp.zeros(48)
    for _ in range(15):
        bias = step(bias)
    ours = balance(documents, 4)
    assert np.corrcoef(ours, bias)[0, 1] > 0.999
    assert np.abs(ours - bias).max() < 0.1  # biases run from -0.7 to 0.9


@pytest.mark.parametrize(
    ("room", "length"),  # several sequences a shard, and one over four shards
    [(Room("pooled_wave", 1.05, 0.95), 128), (Room("ragged", None, 1.02), 4096)],
)
def test_drops_are_those_of_the_transport_that_trains(room: Room, length: int) -> None:
    experts = draw_rack(RACK, MODEL, length, "previous", 1)
    found = drop(RACK, experts, length, room)
    selected = jnp.asarray(experts.reshape(RACK.tokens, RACK.chosen))
    one = jnp.ones((RACK.experts, 1, 1))
    if room.sender_factor is None:
        transport = Transport.ragged(RACK.shards, receiver_factor=room.receiver_factor)
    else:
        transport = Transport.pooled_wave(
            RACK.shards, sender_factor=room.sender_factor, receiver_factor=room.receiver_factor, waves=RACK.waves
        )
    moved = jax.jit(lambda z, w: transport_tokens(z, selected, w, ExpertBank(one, one, one), transport=transport))(
        jnp.ones((RACK.tokens, 1)), jnp.ones(selected.shape)
    )
    lost = ~np.asarray(moved.kept)
    assert lost.any()
    assert found.total == lost.mean()
    if room.sender_factor is not None:
        assert found.sender == int(moved.sender_dropped) / lost.size
        assert found.receiver == pytest.approx(int(moved.receiver_dropped) / lost.size, abs=1e-12)
    place = np.arange(RACK.tokens) % length
    eighths = [lost[place * 8 // length == part].mean() for part in range(8)]
    assert found.by_position == pytest.approx(eighths, abs=1e-12)


def test_the_same_seed_draws_the_same_rack_and_another_does_not() -> None:
    first, again, other = (draw_rack(RACK, MODEL, 256, "previous", seed) for seed in (7, 7, 8))
    assert (first == again).all()
    assert (first != other).any()
    assert first.shape == (8, 4096)
    assert (np.sort(first.reshape(-1, 4), axis=1)[:, 1:] > np.sort(first.reshape(-1, 4), axis=1)[:, :-1]).all()


def test_longer_sequences_and_less_room_drop_more() -> None:
    rooms = [Room("pooled_wave", factor, factor) for factor in (1.1, 1.3)]
    found = {
        (one.seq_len, one.room.receiver_factor): one.as_json()
        for one in simulate(RACK, MODEL, seq_lens=[64, 1024], rooms=rooms, spreads=[1.5] * 4)
    }
    for factor in (1.1, 1.3):
        assert found[1024, factor]["interval_95"][0] > found[64, factor]["interval_95"][1]
    for length in (64, 1024):
        assert found[length, 1.1]["drop_fraction"] > found[length, 1.3]["drop_fraction"]
    late = found[1024, 1.1]["by_position"]  # a sequence a shard: its last tokens find the slots taken
    assert late[0] == 0
    assert late[-1] > 2 * found[1024, 1.1]["drop_fraction"]


def test_balancing_the_batch_itself_is_best_and_none_is_worst() -> None:
    def mean(balanced: str) -> float:
        (one,) = simulate(
            RACK,
            MODEL,
            seq_lens=[256],
            rooms=[Room("ragged", None, 1.1)],
            spreads=[1.5] * 4,
            balanced=balanced,  # type: ignore[arg-type]
        )
        return float(one.as_json()["drop_fraction"])

    assert mean("same") < mean("previous") < mean("off")


def test_a_stronger_preference_drops_more() -> None:
    room = Room("pooled_wave", 1.15, 1.15)
    totals = [
        drop(RACK, draw_rack(RACK, replace(MODEL, spread=s), 256, "same", 0), 256, room).total for s in (0.5, 1, 2)
    ]
    assert totals == sorted(totals)


def test_the_heros_geometry_is_the_records() -> None:
    hero = geometry_of(resolve_recipe("d6144"))
    assert hero == Geometry(shards=64, experts=384, chosen=8, tokens_per_shard=65_536, waves=3, racks=11)
    assert hero.assignments == 524_288


@pytest.mark.slow
def test_the_full_geometry_drops_what_the_run_dropped_at_4k() -> None:
    hero = geometry_of(resolve_recipe("d6144"))
    stated = ScoreModel(
        experts=384, chosen=8, spread=STATED.spread, shared=STATED.shared, document_tokens=STATED.document_tokens,
        document_sigma=STATED.document_sigma, cells=(1 / 200,) * 200,
    )  # fmt: skip
    rooms = [Room("pooled_wave", 1.15, 1.15)]
    short, long = (
        one.as_json()["drop_fraction"]
        for one in simulate(hero, stated, seq_lens=[4096, 65_536], rooms=rooms, spreads=[STATED.spread])
    )
    assert 0.02 < short < 0.045  # hero_train.csv: 3.05% to 3.42%
    assert 0.10 < long < 0.40


def test_lengths_that_do_not_fill_shards_are_refused() -> None:
    for length in (1, 64, 1024, 2048, 8192):
        check_length(RACK, length)
    for length in (0, -4, 3, 3072, 16_384):
        with pytest.raises(UsageError, match="divides a shard's"):
            check_length(RACK, length)
    with pytest.raises(UsageError, match="above 0"):
        next(simulate(RACK, MODEL, seq_lens=[64], rooms=[Room("ragged", None, -1.0)], spreads=[1.0]))


def test_the_interval_is_students() -> None:
    low, high = interval_95([1.0, 2.0, 3.0])
    assert high == pytest.approx(2 + 4.302653 / np.sqrt(3), rel=1e-6)
    assert low == 0  # 2 - 2.48
    assert interval_95([1.0]) == (None, None)


@pytest.mark.parametrize("spread", [0.3, 1.0, 1.8])
def test_a_known_spread_is_found_in_counts(spread: float) -> None:
    model = replace(MODEL, spread=spread, cells=(1 / 400,) * 400)
    documents = batch(6, sequences=400, length=256, model=model)
    picked = choose_experts(documents.preference, documents.tokens, 4, np.random.default_rng(0))
    document = np.repeat(np.arange(len(documents.tokens)), documents.tokens)
    counts = np.zeros((len(documents.tokens), 48), np.int64)
    np.add.at(counts, (document[:, None], picked), 1)
    keep = documents.tokens >= 16
    assert spread_of(relative_variance(counts[keep], documents.tokens[keep]), 48, 4) == pytest.approx(spread, rel=0.08)


def test_even_routing_has_no_spread() -> None:
    rng = np.random.default_rng(0)
    picked = rng.permuted(np.tile(np.arange(48), (40_000, 1)), axis=1)[:, :4]
    counts = np.zeros((400, 48), np.int64)
    np.add.at(counts, (np.repeat(np.arange(400), 100)[:, None], picked), 1)
    assert spread_of(relative_variance(counts, np.full(400, 100)), 48, 4) < 0.05


def test_choices_are_counted_by_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that sends document d of row r to experts (r + d + layer) and the one after it."""
    rows, length = 40, 32

    def route(params: object, tokens: jax.Array, segments: jax.Array) -> np.ndarray:
        first = np.arange(measured_routing.ROWS)[:, None] % 5 + np.maximum(segments, 0)
        return np.stack([np.stack([first + layer, first + layer + 1], -1).reshape(-1, 2) for layer in (0, 1)])

    monkeypatch.setattr(measured_routing, "_compiled", lambda config: route)
    segments = np.zeros((rows, length), np.int32)
    segments[0] = -1  # padding counts for nothing
    segments[1, 16:] = 1  # two documents
    segments[2, 20:] = 1  # the second is too short
    config = replace(resolve_recipe("d6144").model, num_experts=8, num_experts_per_token=2)
    counts, sizes = count_choices({}, config, np.zeros((rows, length), np.int32), segments)
    assert sizes.tolist() == [16, 16, 20] + [32] * 37
    assert counts.shape == (2, 40, 8)
    assert (counts.sum(axis=2) == 2 * sizes).all()
    assert counts[0, 0].tolist() == [0, 16, 16, 0, 0, 0, 0, 0]  # row 1, document 0
    assert counts[1, 1].tolist() == [0, 0, 0, 16, 16, 0, 0, 0]  # row 1, document 1, the layer above
    spreads = measure_spreads(counts, sizes, chosen=2)
    assert min(spreads) > 2  # hardly anything but the document matters
    with pytest.raises(RecordError, match="say nothing of a router"):
        measure_spreads(counts[:, :3], sizes[:3], chosen=2)


@pytest.mark.slow  # a quarter of a minute to compile
def test_a_models_own_choices_can_be_counted() -> None:
    config = resolve_recipe("d768", str(Path(__file__).with_name("toy.toml"))).model
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=(40, config.max_seq_len)).astype(np.int32)
    params = init_arrays(config, jax.random.PRNGKey(0))
    counts, sizes = count_choices(params, config, tokens, np.zeros(tokens.shape, np.int32))
    assert counts.shape == (config.num_layers, 40, config.num_experts)
    assert (counts.sum(axis=2) == sizes * config.num_experts_per_token).all()
