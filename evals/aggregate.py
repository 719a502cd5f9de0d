"""Sums over batches and sets → the losses and bits a byte that are reported, under the names that upstream logs.

With W_jd targets, loss sum S_jd (nats) and logged bytes Y_jd of set d in batch j, text bytes Z_d of set d:

    loss             of a set  Σ_j S_jd / Σ_j W_jd          macro  mean over d      micro  Σ S / Σ W
    bpb              of a set  Σ_j W_jd (S_jd / max(Y_jd, 1) · log2 e) / Σ_j W_jd
                     macro  mean over d; micro  the sets' bpb, weighted by W_d; over everything  as of one set, with the
                     batch's own sums. A token-weighted mean of ratios: another batch, another value
    bits_per_byte    of a set  Σ_j S_jd · log2 e / Z_d      macro  mean over d      micro  Σ S · log2 e / Σ Z

Source: levanter's tagged evaluator (marin-levanter 0.2.227), which keeps its means in float32; here they are float64.
bits_per_byte is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evals.identity import BITS_PER_BYTE, BPB, LOSS, OVER_BATCHES, Average, sets_in_words

LOG2_E = float(np.log2(np.e))
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """Of J batches and D sets, [J, D] each."""

    targets: Floats  # scored, all of weight 1
    loss: Floats  # nats
    logged_bytes: Floats
    text_bytes: Floats


class Value(NamedTuple):
    """A named value: `path` is what follows "eval/" in upstream's log, `sets` which sets it is over."""

    path: str
    value: float
    name: str
    average: Average
    sets: str
    definition: str = ""  # where it is not the usual one of its name and average


def values(sums: Sums, sets: Sequence[tuple[str, str]], *, with_bytes: bool) -> Iterator[Value]:
    """Every value over `sets`, (suite, name) by place; bits a byte only `with_bytes`. ValueError for a set without
    targets."""
    targets, loss = sums.targets.sum(axis=0), sums.loss.sum(axis=0)  # [D]
    if not targets.all():
        raise ValueError(f"set {sets[int(np.argmin(targets))]} has no targets")
    by_name = {LOSS: loss / targets}
    if with_bytes:
        by_name[BPB] = _mean_of_ratios(sums.targets, sums.loss, sums.logged_bytes)
        by_name[BITS_PER_BYTE] = _ratio(loss, sums.text_bytes.sum(axis=0))
    suites = list(dict.fromkeys(suite for suite, _ in sets))
    for name, of_sets in by_name.items():
        for (suite, set_name), value in zip(sets, of_sets, strict=True):
            yield Value(f"{suite}/{set_name}/{name}", float(value), name, "set", f"{suite}/{set_name}")
        for suite in suites:
            inside = np.array([one == suite for one, _ in sets])
            which = sets_in_words([suite], int(inside.sum()))
            yield Value(f"{suite}/macro_{name}", float(of_sets[inside].mean()), name, "macro", which)
            yield Value(f"{suite}/{_MICRO[name]}", _micro(name, of_sets, sums, inside), name, "micro", which)
        which = sets_in_words(suites, len(sets))
        everything = np.ones(len(sets), bool)
        yield Value(f"macro_{name}", float(of_sets.mean()), name, "macro", which)
        if name == BPB:
            batches = (part.sum(axis=1, keepdims=True) for part in (sums.targets, sums.loss, sums.logged_bytes))
            value = float(_mean_of_ratios(*batches)[0])
            yield Value(name, value, name, "micro", which, OVER_BATCHES)
        else:
            yield Value(name, _micro(name, of_sets, sums, everything), name, "micro", which)


_MICRO = {LOSS: "micro_loss", BPB: "bpb", BITS_PER_BYTE: "micro_bits_per_byte"}  # bpb: as upstream calls it


def _micro(name: str, of_sets: Floats, sums: Sums, inside: npt.NDArray[np.bool_]) -> float:
    if name == BITS_PER_BYTE:
        return float(_ratio(sums.loss[:, inside].sum(), sums.text_bytes[:, inside].sum()))
    return float(np.average(of_sets[inside], weights=sums.targets.sum(axis=0)[inside]))


def _mean_of_ratios(targets: Floats, loss: Floats, logged: Floats) -> Floats:
    """[D] over batches of [J, D]."""
    return (targets * (loss / np.maximum(logged, 1) * LOG2_E)).sum(axis=0) / targets.sum(axis=0)


def _ratio(loss: Floats, size: Floats) -> Floats:
    """Total bits over total bytes; not finite where there are no bytes."""
    with np.errstate(divide="ignore"):
        return loss * LOG2_E / size
