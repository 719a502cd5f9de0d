"""What a published or measured number is a number of, and when two of them may be compared.

A loss without its definition is no result: the public record has the same sixteen sets with and without drops, averaged
over sets and over tokens, and bits a byte that depend on the batch. A `Metric` is a value with its `MetricIdentity`;
`compare` gives a difference only where nothing differs that could move the value, and otherwise says what does.

    average         "set": over the tokens of one set.  "macro": plain mean over sets.  "micro": over all their tokens
    dispatch        "dropless", or the transport whose capacities drop assignments
    level           how far the texts can be told to be the same: the published revision, a folder known by its digest,
                    or the built-in miniature; with a limit, only the beginning of each set
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

from repro.errors import UsageError
from repro.ladder.recipe import Recipe

LOSS, BPB, BITS_PER_BYTE = "loss", "bpb", "bits_per_byte"
DROPLESS = "dropless"
Average = Literal["set", "macro", "micro"]

LOGGED_BYTES = "upstream's table of ids: 0 for special tokens, else the UTF-8 length of what the id decodes to alone"
TEXT_BYTES = "UTF-8 bytes of the text that the scored targets stand for"
DENOMINATORS: Mapping[str, str] = {LOSS: "none", BPB: LOGGED_BYTES, BITS_PER_BYTE: TEXT_BYTES}

_PER_BATCH = "sum over batches of weight · (loss sum / max(bytes, 1) · log2 e) over the sum of weights"
DEFINITIONS: Mapping[tuple[str, Average], str] = {
    (LOSS, "set"): "sum of cross-entropies over the number of scored targets of the set; nats a token",
    (LOSS, "macro"): "plain mean over the sets of each set's loss; nats a token",
    (LOSS, "micro"): "sum of cross-entropies over the number of scored targets of all sets; nats a token",
    (BPB, "set"): f"{_PER_BATCH}, each of the set's part of the batch; depends on the batch; bits a byte",
    (BPB, "macro"): "plain mean over the sets of each set's bpb; depends on the batch; bits a byte",
    (
        BPB,
        "micro",
    ): "mean over the sets of each set's bpb, weighted by scored targets; depends on the batch; bits a byte",
    (BITS_PER_BYTE, "set"): "total bits over total bytes of the set; bits a byte",
    (BITS_PER_BYTE, "macro"): "plain mean over the sets of each set's bits_per_byte; bits a byte",
    (BITS_PER_BYTE, "micro"): "total bits of all sets over their total bytes; bits a byte",
}
OVER_BATCHES = f"{_PER_BATCH}, each of a whole batch, whatever its sets; depends on the batch; bits a byte"


@dataclass(frozen=True, kw_only=True)
class MetricIdentity:
    """All that decides what a value means; None: not known. The model is not part of it."""

    name: str  # loss, bpb, bits_per_byte
    average: Average
    sets: str  # which, and how many
    dispatch: str | None
    router_bias: str | None  # saved, pending
    context: int | None  # tokens of a window
    batch: tuple[int, int] | None  # sequences, tokens of each
    tokenizer: str | None  # its digest
    byte_denominator: str | None  # one of DENOMINATORS
    level: str | None
    data: str | None  # which texts


class Metric(NamedTuple):
    """A value and what it is a value of."""

    value: float
    identity: MetricIdentity

    def as_json(self, definition: str = "") -> dict[str, Any]:
        """The metric as a result file has it."""
        identity = self.identity
        words = definition or DEFINITIONS[identity.name, identity.average]
        return {"value": self.value, "definition": words, "identity": asdict(identity)}


class Differing(NamedTuple):
    """A field of the identity in which two metrics differ, or of which one is not known."""

    field: str
    first: Any
    second: Any


class Comparison(NamedTuple):
    """Two metrics beside each other. `difference` is second less first, only where they have one definition."""

    verdict: Literal["same definition", "definition differs", "cannot tell"]
    difference: float | None
    differing: tuple[Differing, ...]
    unknown: tuple[Differing, ...]
    immaterial: tuple[Differing, ...]  # differ, and cannot move the value


def compare(first: Metric, second: Metric) -> Comparison:
    """Hold two metrics against each other; their difference where both are of one definition."""
    names = [field.name for field in fields(MetricIdentity)]
    pairs = [Differing(name, getattr(first.identity, name), getattr(second.identity, name)) for name in names]
    unlike = [pair for pair in pairs if pair.first != pair.second]
    free = _immaterial(first.identity) & _immaterial(second.identity)
    immaterial = tuple(pair for pair in unlike if pair.field in free)
    material = [pair for pair in unlike if pair.field not in free]
    unknown = tuple(pair for pair in material if pair.first is None or pair.second is None)
    differing = tuple(pair for pair in material if pair not in unknown)
    if differing:
        return Comparison("definition differs", None, differing, unknown, immaterial)
    if unknown:
        return Comparison("cannot tell", None, (), unknown, immaterial)
    return Comparison("same definition", second.value - first.value, (), (), immaterial)


def difference(first: Metric, second: Metric) -> float:
    """Second less first. Raises UsageError that names what differs where they are not of one definition."""
    comparison = compare(first, second)
    if comparison.difference is None:
        what = "; ".join(in_words(pair) for pair in (*comparison.differing, *comparison.unknown))
        raise UsageError(f"{first.identity.name} of {first.identity.sets}: two values of different definition: {what}.")
    return comparison.difference


def in_words(pair: Differing) -> str:
    """ "context 4096 and 128"."""
    first, second = map(_short, (pair.first, pair.second))
    return f"{pair.field.replace('_', ' ')} {first} and {second}"


def as_trained_dispatch(recipe: Recipe) -> str:
    """The transport that a run evaluates with as trained, in words that are equal for equal drops."""
    model = recipe.model
    return (
        f"pooled_wave, {recipe.gpus // recipe.racks} shards, {model.num_expert_waves} waves, "
        f"sender {model.sender_capacity_factor}, receiver {model.capacity_factor}"
    )


def sets_in_words(suites: Sequence[str], count: int) -> str:
    """Which sets a mean is over."""
    return f"{' and '.join(suites)}, {count} sets"


def metric_from_json(entry: Mapping[str, Any]) -> Metric:
    """The metric that `as_json` wrote."""
    identity = dict(entry["identity"])
    if identity["batch"] is not None:
        identity["batch"] = tuple(identity["batch"])
    return Metric(entry["value"], MetricIdentity(**identity))


def _short(value: Any) -> str:
    text = "not known" if value is None else str(value)
    return f"{text[:12]}…" if re.fullmatch(r"[0-9a-f]{64}", text) else text


def _immaterial(identity: MetricIdentity) -> set[str]:
    """Fields that cannot move the value: the batch where nothing is dropped and no ratio is of a batch; the tokenizer
    where bits and bytes are both of the text."""
    free = set()
    if identity.dispatch == DROPLESS and identity.name != BPB:
        free.add("batch")
    if identity.name == BITS_PER_BYTE:
        free.add("tokenizer")
    return free
