"""JAX's random keys in plain numpy: the same bits as `jax.random`, without JAX.

The data order is a function of keys that upstream draws with JAX. Whoever only wants to know which sequences a step
reads (an auditor, a data process) need not load an accelerator's runtime for it.

A key is [..., 2] uint32; all functions work on any number of keys at once. The generator is Threefry-2x32 with 20
rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; constants in its table 2),
counted as JAX counts where `jax_threefry_partitionable` is on, which it was in the run (W&B config of the hero).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Key = npt.NDArray[np.uint32]  # [..., 2]
Words = npt.NDArray[np.uint32]

ROUNDS = 20
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # four rounds each, by turns
PARITY = np.uint32(0x1BD11BDA)
MAX_WORD = 2**32 - 1


def key_from_seed(seed: int) -> Key:
    """The key of a seed from 0 to 2^64 − 1: its upper and its lower 32 bits. ValueError for another."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed {seed} is not from 0 to 2^64 - 1")
    return np.array([seed >> 32, seed & MAX_WORD], np.uint32)


def threefry(key: Key, high: npt.ArrayLike, low: npt.ArrayLike) -> tuple[Words, Words]:
    """Two random words of the counter (high, low) under each key; key[..., 0] and the counters broadcast together."""
    first, second = key[..., 0], key[..., 1]
    schedule = (first, second, first ^ second ^ PARITY)
    with np.errstate(over="ignore"):  # numpy warns of scalars that wrap; here they are meant to
        x, y = np.asarray(high, np.uint32) + first, np.asarray(low, np.uint32) + second
        for turn in range(ROUNDS // 4):
            for rotation in ROTATIONS[turn % 2]:
                x = x + y
                y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
            x = x + schedule[(turn + 1) % 3]
            y = y + schedule[(turn + 2) % 3] + np.uint32(turn + 1)
    return x, y


def split(key: Key, count: int = 2) -> Key:
    """`count` new keys of each: [..., 2] → [..., count, 2]."""
    return np.stack(threefry(key[..., None, :], 0, np.arange(count, dtype=np.uint32)), axis=-1)


def fold_in(key: Key, number: npt.ArrayLike) -> Key:
    """A new key of each key and number (0 to 2^32 − 1); keys [..., 2] and numbers [...] broadcast together."""
    return np.stack(threefry(key, 0, number), axis=-1)


def random_words(key: Key, count: int) -> Words:
    """`count` random words of each key: [..., 2] → [..., count]."""
    high, low = threefry(key[..., None, :], 0, np.arange(count, dtype=np.uint32))
    return high ^ low


def random_below(key: Key, bits: int) -> Words:
    """One number from 0 to 2^bits − 1 of each key, as `jax.random.randint` draws it: [..., 2] → [...].

    JAX adds a multiple of 2^32 mod 2^bits to the second of two draws, which for a power of two is nothing.
    """
    return random_words(split(key)[..., 1, :], 1)[..., 0] & np.uint32(2**bits - 1)


def permutation(key: Key, count: int) -> npt.NDArray[np.int64]:
    """`jax.random.permutation` of 0 … count − 1 under one key: stable sorts by random words.

    One sort in 32-bit words would tie too often; JAX sorts often enough to have at least three times log2(count) bits.
    """
    order = np.arange(count)
    for _ in range(math.ceil(3 * math.log(max(1, count)) / math.log(MAX_WORD))):
        key, now = split(key)
        order = order[np.argsort(random_words(now, count), kind="stable")]
    return order
