"""Two numbers are compared only where they are numbers of one thing."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from evals.identity import (
    BITS_PER_BYTE,
    BPB,
    DEFINITIONS,
    DENOMINATORS,
    LOSS,
    Metric,
    MetricIdentity,
    compare,
    difference,
    metric_from_json,
)
from repro.errors import UsageError

IDENTITY = MetricIdentity(
    name=LOSS,
    average="macro",
    sets="paloma, 16 sets",
    dispatch="pooled_wave, 64 shards, 3 waves, sender 1.15, receiver 1.15",
    router_bias="saved",
    context=4096,
    batch=(704, 4096),
    tokenizer="a" * 64,
    byte_denominator="none",
    level="published",
    data="allenai/paloma at 65cd6fc, val",
)
OTHERS: dict[str, Any] = {
    "name": BPB,
    "average": "micro",
    "sets": "paloma and uncheatable, 23 sets",
    "dispatch": "dropless",
    "router_bias": "pending",
    "context": 128,
    "batch": (64, 4096),
    "tokenizer": "b" * 64,
    "byte_denominator": "characters",
    "level": "miniature",
    "data": "another",
}


def test_values_of_one_definition_have_a_difference() -> None:
    assert difference(Metric(2.5, IDENTITY), Metric(2.25, IDENTITY)) == -0.25


def test_every_field_is_tried() -> None:
    assert set(OTHERS) == {field.name for field in fields(MetricIdentity)}


@pytest.mark.parametrize("field", OTHERS)
def test_a_difference_in_any_field_is_refused_by_name(field: str) -> None:
    other = replace(IDENTITY, **{field: OTHERS[field]})
    found = compare(Metric(2.5, IDENTITY), Metric(2.5, other))
    assert (found.verdict, found.difference) == ("definition differs", None)
    assert [pair.field for pair in found.differing] == [field]
    with pytest.raises(UsageError, match=f"different definition: {field.replace('_', ' ')} "):
        difference(Metric(2.5, IDENTITY), Metric(2.5, other))


def test_what_is_not_known_of_one_side_cannot_be_told_and_is_no_agreement() -> None:
    found = compare(Metric(2.5, replace(IDENTITY, tokenizer=None)), Metric(2.5, IDENTITY))
    assert (found.verdict, found.difference) == ("cannot tell", None)
    assert [pair.field for pair in found.unknown] == ["tokenizer"]
    with pytest.raises(UsageError, match="tokenizer not known and aaaaaaaaaaaa…"):
        difference(Metric(2.5, replace(IDENTITY, tokenizer=None)), Metric(2.5, IDENTITY))


def test_the_batch_moves_no_dropless_loss_but_every_loss_with_drops_and_every_bpb() -> None:
    def of(name: str, dispatch: str) -> str:
        first = replace(IDENTITY, name=name, dispatch=dispatch)
        found = compare(Metric(1.0, first), Metric(2.0, replace(first, batch=(8, 4096))))
        assert [pair.field for pair in (*found.differing, *found.immaterial)] == ["batch"]  # named in any case
        return found.verdict

    assert of(LOSS, "dropless") == of(BITS_PER_BYTE, "dropless") == "same definition"
    assert of(BPB, "dropless") == of(LOSS, "pooled_wave") == of(BITS_PER_BYTE, "pooled_wave") == "definition differs"


def test_bits_a_byte_of_text_may_be_compared_across_tokenizers_and_losses_may_not() -> None:
    # https://github.com/marin-community/marin/issues/5821
    def verdict(name: str) -> str:
        first = replace(IDENTITY, name=name, byte_denominator=DENOMINATORS[name])
        return compare(Metric(1.0, first), Metric(1.0, replace(first, tokenizer="b" * 64))).verdict

    assert verdict(BITS_PER_BYTE) == "same definition"
    assert verdict(LOSS) == verdict(BPB) == "definition differs"


def test_a_metric_survives_its_file_and_brings_its_definition() -> None:
    written = Metric(2.5, IDENTITY).as_json()
    assert written["definition"] == DEFINITIONS[LOSS, "macro"]
    assert metric_from_json({**written, "identity": {**written["identity"], "batch": [704, 4096]}}) == (2.5, IDENTITY)
