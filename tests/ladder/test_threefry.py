"""Random keys in numpy against the generator's published vectors and against jax.random itself."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from repro.ladder import threefry

SEEDS = (0, 1, 5, 2**31, 2**32 - 1)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # kat_vectors of the Random123 distribution (D. E. Shaw Research), threefry2x32 20
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_the_generator_gives_the_published_words(
    key: tuple[int, int], counter: tuple[int, int], words: tuple[int, int]
) -> None:
    assert tuple(map(int, threefry.threefry(np.array(key, np.uint32), *counter))) == words


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_words_and_permutations_are_those_of_jax(seed: int) -> None:
    ours, theirs = threefry.key_from_seed(seed), jax.random.PRNGKey(np.uint32(seed))
    assert np.array_equal(ours, theirs)
    for count in (2, 3):
        assert np.array_equal(threefry.split(ours, count), jax.random.split(theirs, count))
    for number in (0, 7, 2**32 - 1):
        assert np.array_equal(threefry.fold_in(ours, number), jax.random.fold_in(theirs, np.uint32(number)))
    assert np.array_equal(threefry.random_words(ours, 1000), jax.random.bits(theirs, (1000,)))
    assert threefry.random_below(ours, 30) == jax.random.randint(theirs, (), 0, 2**30)
    for count in (1, 1000, 2048, 49_152):  # one sort, one, two, two
        assert np.array_equal(threefry.permutation(ours, count), jax.random.permutation(theirs, count))


def test_many_keys_at_once_give_what_each_gives_alone() -> None:
    keys = threefry.split(threefry.key_from_seed(3), 4).reshape(2, 2, 2)
    numbers = np.arange(4).reshape(2, 2)
    for i, j in np.ndindex(2, 2):
        key = keys[i, j]
        assert np.array_equal(threefry.split(keys, 3)[i, j], threefry.split(key, 3))
        assert np.array_equal(threefry.fold_in(keys, numbers)[i, j], threefry.fold_in(key, numbers[i, j]))
        assert np.array_equal(threefry.random_words(keys, 5)[i, j], threefry.random_words(key, 5))
        assert threefry.random_below(keys, 30)[i, j] == threefry.random_below(key, 30)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_beyond_64_bits_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="not from 0 to"):
        threefry.key_from_seed(seed)
