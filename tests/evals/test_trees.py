"""Trees of sequences: every token is computed once, and as a pass over its sequence alone computes it."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals import trees
from tests.evals.small_model import CONFIG, hidden_states, params

Sequences = list[tuple[int, ...]]


def branching(seed: int = 0) -> Sequences:
    """Two families that part at several depths, a sequence within another, one alone, and a root alone."""
    draw = np.random.default_rng(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(map(int, draw.integers(0, 256, count)))

    trunk, branch = ids(21), ids(9)
    family = [trunk, trunk[:6], *((*trunk, *ids(count)) for count in (1, 2, 30)), (*trunk, *branch), (*trunk[:20], 7)]
    deeper = [(*trunk, *branch, *ids(count)) for count in (4, 5, 20)]
    return [*family, *deeper, ids(33), ids(1), (*ids(2), *trunk)]


@pytest.mark.parametrize("length", [60, 97, 400])
def test_hidden_states_are_those_of_each_sequence_alone(length: int) -> None:
    sequences = branching()
    alone = np.zeros((len(sequences), 64), np.int32)
    for row, ids in enumerate(sequences):
        alone[row, : len(ids)] = ids
    expected = hidden_states(alone)
    packed = trees.pack(sequences, [len(ids) for ids in sequences], length=length, window=CONFIG.sliding_window)
    rows = trees.stack([one.row for one in packed], len(packed) + 1)
    found = np.asarray(trees.hidden_states(params(), rows, config=CONFIG, mesh=None))
    for row, one in enumerate(packed):
        for index, places in one.places.items():
            count = len(sequences[index])
            np.testing.assert_allclose(found[row, places], expected[index, :count], atol=1e-5, err_msg=f"{index}")
    assert sorted(index for one in packed for index in one.places) == list(range(len(sequences)))
    assert not found[np.asarray(rows.until) == 0].any()  # padding, and the row that only fills the batch


def test_a_window_reaches_back_along_the_branch() -> None:
    """Sequences longer than the window, whose branches come long after the trunk they see."""
    sequences = branching()
    (packed,) = trees.pack(sequences, [1] * len(sequences), length=400, window=4)
    row = packed.row
    for place in range(400):
        past = [place]
        while row.parent[past[-1]] >= 0 and row.until[place]:
            past.append(int(row.parent[past[-1]]))
        if row.until[place]:
            assert (row.lowest[place], row.lowest_near[place]) == (past[-1], past[:4][-1])
            assert row.position[place] == len(past) - 1


short = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=20, unique=True)


@given(sequences=short, length=st.integers(8, 40))
@settings(max_examples=200, deadline=None)
def test_a_token_sees_its_sequence_and_nothing_else(sequences: Sequences, length: int) -> None:
    packed = trees.pack(sequences, [len(ids) for ids in sequences], length=length, window=3)
    met = set()
    for row, places in packed:
        for index, of_sequence in places.items():
            met.add(index)
            assert tuple(row.tokens[of_sequence]) == sequences[index]
            for position, place in enumerate(of_sequence):
                key = np.arange(length)
                seen = (key >= row.lowest[place]) & (key <= place) & (place < row.until)
                np.testing.assert_array_equal(np.flatnonzero(seen), of_sequence[: position + 1])
                near = seen & (key >= row.lowest_near[place])
                np.testing.assert_array_equal(np.flatnonzero(near), of_sequence[max(0, position - 2) : position + 1])
    assert met == set(range(len(sequences)))


def test_every_beginning_is_computed_once_where_all_fits() -> None:
    sequences = branching()
    (packed,) = trees.pack(sequences, [0] * len(sequences), length=400, window=16)
    beginnings = {ids[:count] for ids in sequences for count in range(1, len(ids) + 1)}
    assert np.count_nonzero(packed.row.until) == len(beginnings)


def test_places_are_of_the_last_tokens() -> None:
    (packed,) = trees.pack([(1, 2, 3), (1, 2, 4)], [2, 1], length=8, window=16)
    assert {index: places.tolist() for index, places in packed.places.items()} == {0: [1, 2], 1: [3]}


def test_no_array_of_a_row_squared_exists() -> None:
    rows = trees.stack([trees.pack([(1, 2)], [1], length=2048, window=16)[0].row], 1)
    traced = jax.make_jaxpr(lambda rows: trees.hidden_states(params(), rows, config=CONFIG, mesh=None))(rows)
    assert "2048,2048" not in str(traced)
