"""Log-likelihoods: what the model's own pass gives, whatever is computed together with what."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from evals.batching import Placed, bucket, fewer_shapes, parse_world, place
from evals.loglikelihood import Answer, Request, log_likelihoods
from repro.errors import UsageError
from repro.ladder.world import ALONE
from tests.evals.small_model import CONFIG, log_probabilities, params, random_tokens

ATOL = 1e-5  # the issue's: a request's log-likelihood in nats


@pytest.fixture(scope="module")
def placed() -> Placed:
    return place(params(), CONFIG)


def mixed() -> list[Request]:
    """Questions of several lengths, with four answers each; some answers are one token, one question stands alone."""
    draw = np.random.default_rng(3)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(map(int, draw.integers(0, 256, count)))

    requests = []
    for length in (5, 12, 21, 30):
        question = ids(length)
        for size in (1, 1, 3, 4) if length % 2 else (2, 3, 4, 4):
            answer = ids(size)
            requests.append(Request((*question, *answer)[:-1], answer))
    alone = ids(31)
    return [*requests, Request(alone[:-1], alone[1:]), Request(alone[:-1], alone[-3:])]


def directly(requests: list[Request]) -> list[Answer]:
    """Each request by itself through the model's own pass, in float64 behind the hidden states."""
    rows = np.zeros((len(requests), 64), np.int32)
    for row, request in enumerate(requests):
        rows[row, : len(request.inputs)] = request.inputs
    answers = []
    for log_p, (inputs, targets) in zip(log_probabilities(rows), requests, strict=True):
        at = log_p[len(inputs) - len(targets) : len(inputs)]
        total = at[np.arange(len(targets)), list(targets)].sum()
        answers.append(Answer(float(total), bool((at.argmax(axis=1) == targets).all())))
    return answers


def assert_close(answers: list[Answer], expected: list[Answer]) -> None:
    np.testing.assert_allclose(
        [one.log_likelihood for one in answers], [one.log_likelihood for one in expected], rtol=0, atol=ATOL
    )
    assert [one.is_greedy for one in answers] == [one.is_greedy for one in expected]


def test_answers_are_those_of_a_direct_computation(placed: Placed) -> None:
    requests = mixed()
    answers = log_likelihoods(placed, requests)
    assert_close(answers, directly(requests))


def test_answers_do_not_depend_on_order_rows_or_sharing(placed: Placed) -> None:
    requests = mixed()
    answers = log_likelihoods(placed, requests)
    shuffled = np.random.default_rng(0).permutation(len(requests))
    again = log_likelihoods(placed, [requests[index] for index in shuffled])
    assert_close(again, [answers[index] for index in shuffled])
    by_one = replace(placed, rows=1)
    assert_close([log_likelihoods(by_one, [requests[index]])[0] for index in (0, 12)], [answers[0], answers[12]])


def test_a_mesh_gives_the_same_answers(placed: Placed) -> None:
    requests = [request for request in mixed() if len(request.inputs) > 25][:5]
    spread = place(params(), CONFIG, world=parse_world("2x1x2"))
    bank = spread.params["blocks.mlp.expert_mlp.w_gate"]
    assert [shard.data.shape[1] for shard in bank.addressable_shards] == [4] * 4  # of 8 experts
    assert_close(log_likelihoods(spread, requests), log_likelihoods(placed, requests))


def test_the_likeliest_continuation_is_greedy(placed: Placed) -> None:
    tokens = random_tokens(1, 64)
    best = log_probabilities(tokens)[0, 20].argmax()
    inputs = tuple(map(int, tokens[0, :21]))
    answers = log_likelihoods(placed, [Request(inputs, (int(best),)), Request(inputs, (int(best) ^ 1,))])
    assert [one.is_greedy for one in answers] == [True, False]


def test_nothing_to_score_is_certain(placed: Placed) -> None:
    assert log_likelihoods(placed, [Request((1, 2), ())]) == [Answer(0.0, True)]
    assert log_likelihoods(placed, []) == []


def test_buckets_grow_by_a_half_and_a_third_up_to_the_context() -> None:
    lengths = (1, 16, 17, 24, 25, 33, 65, 97, 100)
    assert [bucket(length, 100) for length in lengths] == [16, 16, 24, 24, 32, 48, 96, 100, 100]


def test_shapes_are_shared_where_compiling_is_dearer() -> None:
    shapes = [(16,), (64,), (16,), (32,)]

    def plan(compiling: int) -> list[tuple[int, ...]]:
        return fewer_shapes(shapes, lambda shape: shape[0], max, compiling)

    assert plan(16) == shapes  # 16 → 32 for two costs 32 tokens, 32 → 64 as many
    assert plan(33) == [(32,), (64,), (32,), (32,)]
    assert plan(200) == [(64,)] * 4


@pytest.mark.parametrize("text", ["4", "2x0x1", "axbxc", "64x1x1"])
def test_a_mesh_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"mesh {text}: must be RxE|mesh {text}: .* needs 64 devices"):
        parse_world(text)


def test_a_cpu_alone_needs_no_mesh() -> None:
    assert jax.default_backend() != "cpu" or parse_world(None) == ALONE
