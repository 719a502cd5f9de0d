"""A pass in two parts computes what a pass over the whole row computes."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evals import cached
from tests.evals.small_model import CONFIG, hidden_states, params, random_tokens

ATOL = 1e-5  # float32; hidden states are of order one


@pytest.fixture(scope="module")
def whole() -> tuple[np.ndarray, np.ndarray]:
    """Tokens [2, 48], and their hidden states from one pass. The window is 16, so that keys fall out of it."""
    tokens = random_tokens(2, 48)
    return tokens, hidden_states(tokens)


def begun(tokens: np.ndarray, lengths: tuple[int, int]) -> tuple[jax.Array, cached.Kept]:
    """The first tokens of both rows, padded to 48 with what follows them, which must not matter."""
    return cached.begin(params(), jnp.asarray(tokens), jnp.asarray(lengths), config=CONFIG, mesh=None)


def test_padding_does_not_change_a_row(whole: tuple[np.ndarray, np.ndarray]) -> None:
    tokens, expected = whole
    hidden, _ = begun(tokens, (48, 31))
    np.testing.assert_allclose(hidden[0], expected[0], atol=ATOL)
    np.testing.assert_allclose(hidden[1, :31], expected[1, :31], atol=ATOL)
    assert not np.any(hidden[1, 31:])


def test_one_token_at_a_time_is_the_whole_row(whole: tuple[np.ndarray, np.ndarray]) -> None:
    tokens, expected = whole
    _, kept = begun(tokens, (5, 2))
    kept = cached.with_room(kept, jnp.asarray([0, 1]), 48)
    step = jax.jit(lambda kept, tokens: cached.advance(params(), kept, tokens, config=CONFIG, mesh=None))
    for turn in range(40):
        here = np.asarray([5, 2]) + turn
        hidden, kept = step(kept, jnp.asarray(tokens[[0, 1], here]))
        np.testing.assert_allclose(hidden, expected[[0, 1], here], atol=ATOL, err_msg=f"token {turn}")


def test_a_model_without_convolutions_keeps_none_of_their_inputs() -> None:
    bare = replace(CONFIG, sconv=False)
    shapes = (jnp.zeros((2, 8), jnp.int32), jnp.zeros(2, jnp.int32))
    _, kept = jax.eval_shape(lambda *given: cached.begin(params(), *given, config=bare, mesh=None), *shapes)
    assert kept.convolved == {}
