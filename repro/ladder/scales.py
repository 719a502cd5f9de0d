"""At which size the ladder is run: `full`, `mini`, `smoke`, or a TOML file of one's own.

A scale names what it changes of the published recipe; what it does not name is as published, so `full` names nothing.
`repro/ladder/smoke.toml` shows every field. Widths of experts, shared experts and latent path are half the model's, KV
heads a quarter and an eighth of the query heads where that divides, and learning rates come from the published laws:
none of these can be set. What follows from a scale is worked out in `recipe` and compared in `departures`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from marin_model.config import ModelConfig
from repro.errors import UsageError
from repro.ladder import laws, mixture
from repro.ladder.rungs import GPUS_PER_RACK, RUNGS, SEQUENCES_PER_RACK, Rung, get_rung

SCALES = ("full", "mini", "smoke")
HERO = tuple(RUNGS)[-1]
MAX_REMAINDER = 0.02  # of a block; a coarser mixture than that is another mixture
DTYPES = ("bfloat16", "float32")
# Fields of the model that a scale may set; per rung it sets hidden_dim and num_layers.
MODEL_FIELDS = (
    *("vocab_size", "max_seq_len", "sliding_window", "head_dim", "gated_norm_rank", "num_experts"),
    *("num_experts_per_token", "num_expert_waves"),
)


@dataclass(frozen=True, kw_only=True)
class ScaleMixture:
    """A mixture of topics by qualities, coarse enough for a small block; all topics weigh the same."""

    block_size: int  # sequences
    topics: int
    phases: tuple[tuple[float, ...], ...]  # a phase's weight of each quality, low to high; main, then cooldown

    def weights(self) -> tuple[dict[str, float], ...]:
        """Weight of each cell c00q0, c00q1, … in each phase; a phase's weights sum to 1."""
        return tuple(
            {
                f"c{topic:02}q{quality}": weight / (self.topics * sum(phase))
                for topic in range(self.topics)
                for quality, weight in enumerate(phase)
            }
            for phase in self.phases
        )


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a scale changes of the published recipe; the defaults are the published values."""

    name: str  # as it was asked for
    rungs: Mapping[str, Rung]
    tokens_per_active_parameter: float = laws.TOKENS_PER_ACTIVE_PARAMETER
    compute_dtype: str = "bfloat16"  # of the forward and backward pass; masters are float32 (W&B config of the hero)
    newton_schulz_dtype: str = "bfloat16"  # grugmuon_hero.py
    mixture: ScaleMixture | None = None  # None: the record's 200 cells
    evaluation_marks: int | None = None  # evenly over the run; None: intervals as published
    evaluation_tokens: int | None = None  # of held-out data; None: all

    def rung(self, name: str) -> Rung:
        """That rung at this scale. UsageError where there is none."""
        get_rung(name)
        if name not in self.rungs:
            raise UsageError(f"scale {self.name} has no rung {name}; it has {', '.join(self.rungs)}.")
        return self.rungs[name]


def get_scale(name: str) -> Scale:
    """The scale of that name, or the one in that TOML file. UsageError names the file and the field at fault."""
    if name == "full":
        return Scale(name=name, rungs=RUNGS)
    if name in SCALES:
        return parse_scale(resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"), name)
    if not name.endswith(".toml"):
        near = difflib.get_close_matches(name.lower(), SCALES, n=1)
        offer = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"no scale is called {name!r}.{offer} There are {', '.join(SCALES)}, or name a TOML file.")
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read scale {name!r}: {error}. A scale is {', '.join(SCALES)} or a TOML file."
        ) from error
    return parse_scale(text, name)


def parse_scale(text: str, name: str) -> Scale:
    """A scale from the text of its file. UsageError that names the field at fault."""
    try:
        root = _Table(tomllib.loads(text), name)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"scale {name} is not TOML: {error}.") from error
    model = {field: value for field, value in root.table("model").all_of(int, MODEL_FIELDS).items()}
    shards = root.number("shards_per_rack", int, GPUS_PER_RACK)
    sequences = root.number("sequences_per_rack", int, SEQUENCES_PER_RACK)
    if sequences % shards:
        root.refuse("sequences_per_rack", f"{sequences} do not divide over {shards} shards; each takes whole sequences")
    rungs = root.table("rungs")
    shapes = {key: rungs.table(key).all_of(int, ("hidden_dim", "num_layers")) for key in RUNGS if key in rungs.content}
    rungs.refuse_unknown(RUNGS)
    scaled = {
        key: replace(
            RUNGS[key],
            model=_scaled_model(key, {**model, **shapes.get(key, {})}, name),
            gpus_per_rack=shards,
            sequences_per_rack=sequences,
            resolved=f"scale {name}",
        )
        for key in shapes or RUNGS
    }
    for rung in scaled.values():
        _check_transport(rung, root)
    evaluation = root.table("evaluation")
    tokens = evaluation.number("tokens", int, None)
    scale = Scale(
        name=name,
        rungs=scaled,
        tokens_per_active_parameter=root.number("tokens_per_active_parameter", float, laws.TOKENS_PER_ACTIVE_PARAMETER),
        compute_dtype=root.choice("compute_dtype", DTYPES, "bfloat16"),
        newton_schulz_dtype=root.choice("newton_schulz_dtype", DTYPES, "bfloat16"),
        mixture=_mixture(root.table("mixture")) if "mixture" in root.content else None,
        evaluation_marks=evaluation.number("marks", int, None),
        evaluation_tokens=tokens,
    )
    evaluation.refuse_unknown(("marks", "tokens"))
    root.refuse_unknown(
        (
            *("tokens_per_active_parameter", "sequences_per_rack", "shards_per_rack", "compute_dtype"),
            *("newton_schulz_dtype", "model", "rungs", "mixture", "evaluation"),
        )
    )
    return scale


def _scaled_model(rung: str, given: dict[str, Any], scale: str) -> ModelConfig:
    """The rung's model with the given fields, and those that follow from them by the recipe's ratios."""
    published = RUNGS[rung].model
    hidden = given.get("hidden_dim", published.hidden_dim)
    heads = max(1, round(hidden / given.get("head_dim", published.head_dim)))
    local, whole = (_largest_divisor(heads, heads // share) for share in (4, 8))
    try:
        return replace(
            published,
            **given,
            intermediate_dim=hidden // 2,
            shared_expert_intermediate_dim=hidden // 2,
            latent_dim=hidden // 2,
            num_heads=heads,
            num_kv_heads=max(local, whole),
            local_kv_heads=local,
            global_kv_heads=whole,
            initializer_std=laws.initializer_std(hidden_dim=hidden),
        )
    except ValueError as error:
        raise UsageError(f"scale {scale}, rung {rung}: {error}") from error


def _largest_divisor(heads: int, at_most: int) -> int:
    return next((kv for kv in range(at_most, 0, -1) if heads % kv == 0), 1)


def _check_transport(rung: Rung, root: _Table) -> None:
    model = rung.model
    if model.num_experts % rung.gpus_per_rack:
        root.refuse("shards_per_rack", f"{model.num_experts} experts do not divide over {rung.gpus_per_rack} shards")
    local = model.num_experts // rung.gpus_per_rack
    if local % model.num_expert_waves:
        root.refuse("shards_per_rack", f"{local} experts a shard are no multiple of {model.num_expert_waves} waves")


def _mixture(table: _Table) -> ScaleMixture:
    phases: Any = table.content.get("phases")
    if not isinstance(phases, list) or len(phases) != 2 or not all(_is_weights(phase, phases[0]) for phase in phases):
        table.refuse("phases", "must be two lists of one positive weight a quality: the main phase, then the cooldown")
    made = ScaleMixture(
        block_size=table.number("block_size", int, mixture.BLOCK_SIZE),
        topics=table.number("topics", int, 40),
        phases=tuple(tuple(float(weight) for weight in phase) for phase in phases),
    )
    table.refuse_unknown(("block_size", "topics", "phases"))
    for number, weights in enumerate(made.weights()):
        remainder = mixture.block_remainder(weights, made.block_size)
        if remainder > MAX_REMAINDER * made.block_size:
            table.refuse(
                "block_size",
                f"phase {number} cannot be laid out in blocks of {made.block_size}: after whole sequences of each cell "
                f"{remainder} are left, {remainder / made.block_size:.1%} of the block, and {MAX_REMAINDER:.0%} is the "
                "most. Take a larger block or fewer cells",
            )
    return made


def _is_weights(phase: Any, first: Any) -> bool:
    return (
        isinstance(phase, list)
        and len(phase) == len(first) > 0
        and all(type(weight) in (int, float) and 0 < weight < 1e9 for weight in phase)
    )


class _Table:
    """A table of the file: takes typed values out of it, and refuses by the field's full name."""

    def __init__(self, content: dict[str, Any], scale: str, path: str = "") -> None:
        self.content, self.scale, self.path = content, scale, path

    def table(self, key: str) -> _Table:
        """The table under a key; an empty one where there is none."""
        value = self.content.get(key, {})
        if not isinstance(value, dict):
            self.refuse(key, f"must be a table, not {value!r}")
        return _Table(value, self.scale, f"{self.path}{key}.")

    def number(self, key: str, kind: type, default: Any) -> Any:
        """The positive number under a key."""
        value = self.content.get(key, default)
        if value is default:
            return value
        if (type(value) is not int and (kind is int or type(value) is not float)) or not 0 < value < 1e15:
            self.refuse(key, f"must be a positive {'whole number' if kind is int else 'number'}, not {value!r}")
        return value

    def choice(self, key: str, names: tuple[str, ...], default: str) -> str:
        """The name under a key, one of a few."""
        value = self.content.get(key, default)
        if value not in names:
            self.refuse(key, f"must be {' or '.join(names)}, not {value!r}")
        return value

    def all_of(self, kind: type, keys: tuple[str, ...]) -> dict[str, Any]:
        """Those of the keys that are there; any other is refused."""
        self.refuse_unknown(keys)
        return {key: self.number(key, kind, None) for key in keys if key in self.content}

    def refuse_unknown(self, known: Any) -> None:
        """Refuse a key that is none of the known, offering the nearest."""
        for key in self.content:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                offer = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                self.refuse(key, f"is no field of a scale; {offer}")

    def refuse(self, key: str, why: str) -> Any:
        """Raise UsageError for a field."""
        raise UsageError(f"scale {self.scale}, field {self.path}{key}: {why}.")
