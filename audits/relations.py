"""Relations: what must hold between quantities, on intervals. One declaration a relation, in order of derivation.

A relation takes the record's best value of each input, in the scope that is looked at, and says what its output must be
if they are right: a `Derived`. Where an input is contradicted, the relation is tried with the other value too; such a
derived *alternative* convicts nobody, but shows which claim follows from which.

No relation knows a run, a rung, a claim or an expected value. The published laws live in `repro.ladder.laws`, where
their sources stand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from audits.claims import Scope
from audits.intervals import Interval, image
from repro.ladder import laws

STEP = "step of the scope"  # an input that is read from the scope: zero-based log step s stands for s to s + 1 updates
WITH_HEAD, WITHOUT_HEAD = "with the LM head", "without the LM head"


@dataclass(frozen=True, kw_only=True)
class Relation:
    """`output` = function of `inputs`, each an Interval."""

    name: str  # the formula in words
    output: str
    inputs: tuple[str, ...]
    function: Callable[..., Interval]
    source: str
    recipe: str = ""  # the recipe whose law it is; empty: it holds for every run
    only_checks: bool = False  # follows from its own output's other relations, so no relation takes it as an input
    convention: str = ""  # of the output
    input_conventions: Mapping[str, str] = field(default_factory=dict)  # where not the default one
    as_printed: frozenset[str] = frozenset()  # inputs taken at the number as printed, not at what its digits allow
    implied: str = ""  # the input that a claimed output is read back to
    read_back: Callable[..., Interval] | None = None  # of the output and the other inputs, in order


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The parts that one source states, each in a scope of its own `key`, add up: to `whole`, or else to 1."""

    name: str
    part: str
    key: str
    whole: str = ""  # empty: the parts are shares, and each is what the others leave of 1


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many things a source gives one name, each in a scope of its own `key`, is `total`."""

    name: str
    part: str
    value: str
    key: str
    total: str


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What a relation, or a table of the record, says that a quantity must be."""

    quantity: str
    scope: Scope
    convention: str = ""
    value: Interval | str
    printed: str
    relation: str
    source: str  # of the relation
    arithmetic: str  # spelled out, with the inputs' values
    inputs: tuple[str, ...]  # ids of claims, or what the record's tables were read for
    roots: tuple[str, ...] = ()  # ids of the claims that it rests on in the end, through derived inputs too
    rank: int  # of the worst input; see claims.RANKS
    only_checks: bool = False
    alternative: str = ""  # what it was tried with instead of the best input; empty where all inputs are the best
    from_claims: bool = True  # whether the alternative is a claim that another finding is about


def _of(function: Callable[..., object]) -> Callable[..., Interval]:
    """A function of numbers, monotone in each, as one of intervals."""
    return lambda *arguments: image(function, *arguments)


def _within_half_a_step(steps: Interval) -> Interval:
    return Interval(steps.low - Fraction(1, 2), steps.high + Fraction(1, 2))


ARITHMETIC = "arithmetic"
MARIN = "marin"  # record.toml, [run] recipe
LAUNCHER = "https://github.com/marin-community/marin/tree/12d8b6f09f96ad4f0277445765c1a00dbc81d5be/experiments/grug/moe_hero_ep"
SUMMARY = "https://github.com/marin-community/marin/issues/8435#issuecomment-5335872267"

RELATIONS: tuple[Relation, ...] = (
    Relation(
        name="tokens per step = batch size × sequence length",
        output="training.tokens_per_step",
        inputs=("training.batch_size", "shape.sequence_length"),
        function=_of(lambda batch, length: batch * length),
        source=ARITHMETIC,
    ),
    Relation(
        name="steps = round(tokens per active parameter × active parameters ÷ tokens per step)",
        output="training.steps",
        convention="completed steps",
        inputs=("training.tokens_per_active_parameter", "parameters.active", "training.tokens_per_step"),
        function=_of(lambda ratio, active, per_step: round(ratio * active / per_step)),
        source=LAUNCHER,
        implied="parameters.active",
        read_back=_of(lambda steps, ratio, per_step: round(steps * per_step / ratio)),
    ),
    Relation(
        name="last log step = completed steps − 1",
        output="training.steps",
        convention="zero-based log step",
        inputs=("training.steps",),
        function=_of(lambda steps: steps - 1),
        source=ARITHMETIC,
    ),
    Relation(
        name="tokens = steps × tokens per step",
        output="training.tokens",
        inputs=("training.steps", "training.tokens_per_step"),
        function=_of(lambda steps, per_step: steps * per_step),
        source=ARITHMETIC,
        implied="training.steps",
        read_back=_of(lambda tokens, per_step: round(tokens / per_step)),
    ),
    Relation(
        name="tokens per active parameter = tokens ÷ active parameters, within half a step",
        output="training.tokens_per_active_parameter",
        inputs=("training.steps", "training.tokens_per_step", "parameters.active"),
        function=lambda steps, per_step, active: image(
            lambda s, p, a: s * p / a, _within_half_a_step(steps), per_step, active
        ),
        source=ARITHMETIC,
        only_checks=True,
    ),
    *(
        Relation(
            name=f"FLOPs = tokens × FLOPs per token, {convention}",
            output="training.flops",
            convention=convention,
            inputs=("training.tokens", "shape.flops_per_token"),
            input_conventions={"shape.flops_per_token": convention},
            function=_of(lambda tokens, per_token: tokens * per_token),
            source=LAUNCHER,
            implied="training.tokens",
            read_back=_of(lambda flops, per_token: round(flops / per_token)),
        )
        for convention in (WITH_HEAD, WITHOUT_HEAD)
    ),
    Relation(
        name="GPUs = racks × nodes used per rack × GPUs per node",
        output="hardware.gpus",
        inputs=("hardware.racks", "hardware.nodes_per_rack", "hardware.gpus_per_node"),
        function=_of(lambda racks, nodes, gpus: racks * nodes * gpus),
        source=ARITHMETIC,
        implied="hardware.nodes_per_rack",
        read_back=_of(lambda gpus, racks, per_node: gpus / racks / per_node),
    ),
    Relation(
        name="MuonH peak learning rate = 13/3 × Adam's law (tokens, hidden width, tokens per step)",
        output="optimizer.muonh_learning_rate",
        recipe=MARIN,
        inputs=("training.tokens", "shape.hidden_dim", "training.tokens_per_step"),
        function=_of(
            lambda tokens, hidden, per_step: laws.muonh_learning_rate(
                tokens=float(tokens), hidden_dim=float(hidden), tokens_per_step=float(per_step)
            )
        ),
        source=SUMMARY,
    ),
    Relation(
        name="Adam peak learning rate = 0.087571 × tokens^-0.3461 × hidden^-0.3448 × √(tokens per step)",
        output="optimizer.adam_learning_rate",
        recipe=MARIN,
        inputs=("training.tokens", "shape.hidden_dim", "training.tokens_per_step"),
        function=_of(
            lambda tokens, hidden, per_step: laws.adam_learning_rate(
                tokens=float(tokens), hidden_dim=float(hidden), tokens_per_step=float(per_step)
            )
        ),
        source=SUMMARY,
    ),
    Relation(
        name="beta2 = 0.999^(tokens per step ÷ 131,072), held to 0.95 … 0.9999",
        output="optimizer.beta2",
        recipe=MARIN,
        inputs=("training.tokens_per_step",),
        function=_of(lambda per_step: laws.beta2(tokens_per_step=float(per_step))),
        source=LAUNCHER,
    ),
    Relation(
        name="epsilon = 9.676e-18 × √(tokens ÷ tokens per step)",
        output="optimizer.epsilon",
        recipe=MARIN,
        inputs=("training.tokens", "training.tokens_per_step"),
        function=_of(lambda tokens, per_step: laws.epsilon(tokens=float(tokens), tokens_per_step=float(per_step))),
        source=LAUNCHER,
    ),
    Relation(
        name="initializer standard deviation = 0.5 ÷ √(hidden width)",
        output="shape.initializer_std",
        recipe=MARIN,
        inputs=("shape.hidden_dim",),
        function=_of(lambda hidden: laws.initializer_std(hidden_dim=int(hidden))),
        source=LAUNCHER,
    ),
    Relation(
        name="shared share = shared weights ÷ (shared + chosen routed weights)",
        output="shape.shared_share",
        inputs=(
            "shape.shared_experts",
            "shape.shared_width",
            "shape.hidden_dim",
            "shape.experts_per_token",
            "shape.expert_width",
            "shape.latent_dim",
        ),
        function=_of(lambda n, width, d, k, expert, latent: n * width * d / (n * width * d + k * expert * latent)),
        source=ARITHMETIC,
    ),
    Relation(
        name="dropped = dropped by senders + dropped by receivers",
        output="routing.drop_fraction",
        inputs=("routing.sender_drop_fraction", "routing.receiver_drop_fraction"),
        function=_of(lambda sender, receiver: sender + receiver),
        source=ARITHMETIC,
    ),
    Relation(
        name="final pool = raw pool − removed",
        output="data.kept_tokens",
        inputs=("data.raw_tokens", "data.removed_tokens"),
        function=_of(lambda raw, removed: raw - removed),
        source=ARITHMETIC,
    ),
    Relation(
        name="final pool = raw pool − deduplicated − decontaminated",
        output="data.kept_tokens",
        inputs=("data.raw_tokens", "data.deduplicated_tokens", "data.decontaminated_tokens"),
        function=_of(lambda raw, duplicates, contaminated: raw - duplicates - contaminated),
        source=ARITHMETIC,
    ),
    Relation(
        name="planned days = planned months × 28 to 31 days",
        output="run.planned_days",
        inputs=("run.planned_months",),
        function=lambda months: image(
            lambda count, length: count * length, months, Interval(Fraction(28), Fraction(31))
        ),
        source=ARITHMETIC,
        only_checks=True,
    ),
    Relation(
        name="tokens trained = completed steps × tokens per step",
        output="progress.tokens",
        inputs=(STEP, "training.tokens_per_step"),
        function=_of(lambda step, per_step: step * per_step),
        source=ARITHMETIC,
    ),
    Relation(
        name="progress = step ÷ planned steps",
        output="progress.fraction",
        convention="of the planned steps",
        inputs=(STEP, "training.steps"),
        function=_of(lambda step, steps: step / steps),
        source=ARITHMETIC,
    ),
    Relation(
        name="progress = tokens trained ÷ planned tokens as printed",
        output="progress.fraction",
        convention="of the planned tokens as printed",
        inputs=("progress.tokens", "training.tokens"),
        as_printed=frozenset({"training.tokens"}),
        function=_of(lambda trained, planned: trained / planned),
        source=ARITHMETIC,
    ),
    Relation(
        name="MFU = FLOPs per token × tokens per second ÷ (GPUs × peak of one)",
        output="throughput.mfu",
        inputs=("shape.flops_per_token", "throughput.tokens_per_second", "hardware.gpus", "hardware.peak_flops"),
        function=_of(lambda flops, rate, gpus, peak: flops * rate / (gpus * peak)),
        source=ARITHMETIC,
        implied="hardware.gpus",
        read_back=_of(lambda mfu, flops, rate, peak: flops * rate / (mfu * peak)),
    ),
)

COUNTS: tuple[Count, ...] = (
    Count(
        name="finished rungs = rungs that the source calls finished",
        part="ladder.state",
        value="finished",
        key="rung",
        total="ladder.finished_rungs",
    ),
)

SUMS: tuple[Sum, ...] = (
    Sum(
        name="training tokens = sum over the phases",
        part="training.phase_tokens",
        key="phase",
        whole="training.tokens",
    ),
    Sum(
        name="training tokens = sum over the mixture's stages",
        part="mixture.stage_tokens",
        key="stage",
        whole="training.tokens",
    ),
    Sum(
        name="reference budget = sum over the mixture's phases",
        part="mixture.reference_phase_tokens",
        key="phase",
        whole="mixture.reference_tokens",
    ),
    Sum(name="shares of the phases sum to 1", part="training.phase_fraction", key="phase"),
)
