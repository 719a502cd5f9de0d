"""Macro, micro and bits a byte, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evals.aggregate import Sums, values
from evals.identity import BITS_PER_BYTE, BPB, DEFINITIONS, LOSS

SETS = [("paloma", "a"), ("paloma", "b"), ("uncheatable", "c")]
BIT = math.log(2)  # nats
# Two batches; losses are written in bits. Set b is in both, a in the first, c in the second.
SUMS = Sums(
    targets=np.array([[10.0, 30, 0], [0, 10, 40]]),
    loss=np.array([[20.0, 30, 0], [0, 50, 120]]) * BIT,
    logged_bytes=np.array([[8.0, 15, 0], [0, 0, 60]]),
    text_bytes=np.array([[10.0, 20, 0], [0, 5, 80]]),
)


def found(sums: Sums = SUMS, *, with_bytes: bool = True) -> dict[str, float]:
    return {value.path: value.value for value in values(sums, SETS, with_bytes=with_bytes)}


def test_a_sets_loss_is_over_its_targets_macro_over_sets_micro_over_all_targets() -> None:
    got = found()
    assert got["paloma/a/loss"] == pytest.approx(2 * BIT)  # 20 / 10
    assert got["paloma/b/loss"] == pytest.approx(2 * BIT)  # 80 / 40
    assert got["uncheatable/c/loss"] == pytest.approx(3 * BIT)  # 120 / 40
    assert got["paloma/macro_loss"] == pytest.approx(2 * BIT)
    assert got["uncheatable/macro_loss"] == pytest.approx(3 * BIT)
    assert got["macro_loss"] == pytest.approx((2 + 2 + 3) / 3 * BIT)
    assert got["loss"] == pytest.approx((20 + 80 + 120) / 90 * BIT)
    assert got["paloma/micro_loss"] == pytest.approx(100 / 50 * BIT)


def test_bpb_is_upstreams_mean_of_ratios_of_each_batch() -> None:
    got = found()
    assert got["paloma/a/bpb"] == pytest.approx(20 / 8)
    # Batch 1: 30 targets, 30 bits over 15 bytes. Batch 2: 10 targets, 50 bits over no byte, which counts as one.
    b = (30 * 30 / 15 + 10 * 50 / 1) / 40
    assert got["paloma/b/bpb"] == pytest.approx(b)
    assert got["uncheatable/c/bpb"] == pytest.approx(120 / 60)
    assert got["paloma/macro_bpb"] == pytest.approx((2.5 + b) / 2)
    assert got["paloma/bpb"] == pytest.approx((10 * 2.5 + 40 * b) / 50)  # weighted by targets, whatever its name
    # Over everything: batch 1 has 40 targets, 50 bits, 23 bytes; batch 2 has 50, 170, 60.
    assert got["bpb"] == pytest.approx((40 * 50 / 23 + 50 * 170 / 60) / 90)


def test_bits_per_byte_is_total_bits_over_total_bytes() -> None:
    got = found()
    assert got["paloma/a/bits_per_byte"] == pytest.approx(20 / 10)
    assert got["paloma/b/bits_per_byte"] == pytest.approx(80 / 25)
    assert got["paloma/macro_bits_per_byte"] == pytest.approx((2 + 3.2) / 2)
    assert got["paloma/micro_bits_per_byte"] == pytest.approx(100 / 35)
    assert got["bits_per_byte"] == pytest.approx(220 / 115)


def test_bpb_depends_on_the_batch_and_bits_per_byte_and_loss_do_not() -> None:
    one_batch = Sums(*(np.sum(part, axis=0, keepdims=True) for part in vars(SUMS).values()))
    merged, apart = found(one_batch), found()
    same = {path for path, value in apart.items() if merged[path] == pytest.approx(value, rel=1e-12)}
    assert set(apart) - same == {"paloma/b/bpb", "paloma/macro_bpb", "paloma/bpb", "macro_bpb", "bpb"}


def test_without_bytes_there_are_only_losses() -> None:
    got = found(with_bytes=False)
    assert got == {path: value for path, value in found().items() if path.endswith("loss")}


def test_every_value_says_what_it_is() -> None:
    for value in values(SUMS, SETS, with_bytes=True):
        assert value.name in (LOSS, BPB, BITS_PER_BYTE)
        assert (value.name, value.average) in DEFINITIONS
        assert value.path.endswith(value.name)
    by_path = {value.path: value for value in values(SUMS, SETS, with_bytes=True)}
    assert by_path["paloma/macro_loss"].sets == "paloma, 2 sets"
    assert by_path["macro_loss"].sets == "paloma and uncheatable, 3 sets"
    assert "whole batch" in by_path["bpb"].definition
    assert by_path["paloma/bpb"].definition == ""


def test_a_set_without_targets_is_no_set_to_take_a_mean_over() -> None:
    empty = Sums(SUMS.targets * [1, 1, 0], SUMS.loss, SUMS.logged_bytes, SUMS.text_bytes)
    with pytest.raises(ValueError, match=r"\('uncheatable', 'c'\) has no targets"):
        found(empty)


def test_a_set_without_bytes_has_no_finite_bits_per_byte() -> None:
    none = Sums(SUMS.targets, SUMS.loss, SUMS.logged_bytes, SUMS.text_bytes * [0, 1, 1])
    assert math.isinf(found(none)["paloma/a/bits_per_byte"])
    assert math.isfinite(found(none)["paloma/micro_bits_per_byte"])
