"""Each relation with numbers whose outcome is known from elsewhere, and with digits that were rounded."""

from __future__ import annotations

from fractions import Fraction

import pytest

from audits.intervals import Interval, exact, overlap, read_number
from audits.quantities import QUANTITIES
from audits.relations import RELATIONS, STEP, Relation

E = exact


def number(text: str) -> Interval:
    return read_number(text, "printed")


# output, start of the name, inputs, a value that must be allowed, a value that must not
ROWS = [
    ("training.tokens_per_step", "tokens per step", (E(11264), E(4096)), E(46_137_344), E(46_137_345)),
    # job summary of issue 8435: 791 tokens a parameter, rounded to whole steps
    ("training.steps", "steps =", (E(791), E(22_762_487_808), E(46_137_344)), E(390_251), E(390_139)),
    ("training.steps", "last log step", (E(11420),), E(11419), E(11420)),
    ("training.tokens", "tokens = ", (E(390_251), E(46_137_344)), E(18_005_144_633_344), number("18.75T")),
    (
        "training.tokens_per_active_parameter",
        "tokens per active",
        (E(390_251), E(46_137_344), E(22_762_487_808)),
        E(791),
        number("792.5"),
    ),
    (
        "training.flops",
        "FLOPs = tokens × FLOPs per token, with the",
        (E(18_005_144_633_344), E(149_736_259_584)),
        number("2.7e24"),
        number("5e24"),
    ),
    ("hardware.gpus", "GPUs", (E(11), E(16), E(4)), E(704), E(792)),
    # W&B configuration of the run: optimizer.learning_rate, adam_lr, epsilon; model.initializer_std
    (
        "optimizer.muonh_learning_rate",
        "MuonH",
        (E(18_005_144_633_344), E(6144), E(46_137_344)),
        E(Fraction(0.003290470163258143)),
        number("0.003291"),
    ),
    (
        "optimizer.adam_learning_rate",
        "Adam",
        (E(18_005_144_633_344), E(6144), E(46_137_344)),
        E(Fraction(0.0007593392684441868)),
        number("0.000760"),
    ),
    ("optimizer.beta2", "beta2", (E(46_137_344),), E(Fraction(0.95)), number("0.703")),
    (
        "optimizer.epsilon",
        "epsilon",
        (E(18_005_144_633_344), E(46_137_344)),
        E(Fraction(6.044604247506697e-15)),
        number("6.05e-15"),
    ),
    ("shape.initializer_std", "initializer", (E(6144),), number("0.006379"), number("0.00640")),
    (
        "shape.shared_share",
        "shared share",
        tuple(map(E, (2, 3072, 6144, 8, 3072, 3072))),
        E(Fraction(1, 3)),
        E(Fraction(1, 5)),
    ),
    ("run.planned_days", "planned days", (E(3),), number("90"), number("100")),
    # the transport's write-up: 7.14% and 12.19% are 19.33%
    (
        "routing.drop_fraction",
        "dropped",
        (number("7.14%"), number("12.19%")),
        number("19.33%"),
        number("19.5%"),
    ),
    (
        "data.kept_tokens",
        "final pool = raw pool − removed",
        (number("25.6T"), number("2.494T")),
        number("23.106T"),
        number("23.30T"),
    ),
    (
        "data.kept_tokens",
        "final pool = raw pool − dedup",
        (number("25.25T"), number("2.13T"), number("13.66B")),
        number("23.11T"),
        number("23.25T"),
    ),
    (
        "progress.tokens",
        "tokens trained",
        (Interval(E(219_518).low, E(219_519).low), E(46_137_344)),
        number("10.128T"),
        number("10.20T"),
    ),
    (
        "progress.fraction",
        "progress = step",
        (Interval(E(219_518).low, E(219_519).low), E(390_251)),
        number("56.25%"),
        number("56.30%"),
    ),
    (
        "progress.fraction",
        "progress = tokens",
        (number("9.751958T"), E(18 * 10**12)),
        number("54.18%"),
        number("54.16%"),
    ),
    # W&B summary of the latest run: 26.351710571420867 % at 3,097,380.07 tokens a second
    (
        "throughput.mfu",
        "MFU",
        (E(149_736_259_584), E(Fraction(3097380.0690996116)), E(704), E(25 * 10**14)),
        number("26.3517%"),
        number("26.36%"),
    ),
]


def relation(output: str, start: str) -> Relation:
    (found,) = [one for one in RELATIONS if one.output == output and one.name.startswith(start)]
    return found


@pytest.mark.parametrize(("output", "start", "inputs", "allowed", "refused"), ROWS, ids=lambda one: str(one)[:20])
def test_a_relation_allows_what_is_right_and_refuses_what_is_not(
    output: str, start: str, inputs: tuple[Interval, ...], allowed: Interval, refused: Interval
) -> None:
    value = relation(output, start).function(*inputs)
    assert overlap(value, allowed)
    assert not overlap(value, refused)


def test_every_relation_has_a_row_above_or_is_the_same_in_another_convention() -> None:
    covered = {relation(output, start).output for output, start, *_ in ROWS}
    assert {one.output for one in RELATIONS} == covered


def test_reading_back_undoes_the_relation() -> None:
    steps = relation("training.steps", "steps =")
    assert steps.read_back is not None
    active = steps.read_back(E(390_251), E(791), E(46_137_344))
    assert steps.function(E(791), active, E(46_137_344)) == E(390_251)


@pytest.mark.parametrize("one", RELATIONS, ids=lambda one: one.name[:40])
def test_relations_speak_the_vocabulary_and_say_where_they_come_from(one: Relation) -> None:
    assert {one.output, *one.inputs} - {STEP} <= QUANTITIES.keys()
    assert not one.convention or one.convention in QUANTITIES[one.output].conventions
    assert one.source == "arithmetic" or one.source.startswith("https://")
    assert (one.read_back is None) == (not one.implied)
    assert not one.implied or one.implied in one.inputs
