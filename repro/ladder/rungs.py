"""The five published rungs of the scaling ladder as rows of data; d6144 is the hero.

Sources, all of marin-community/marin unless said otherwise:
    widths, depths, heads    experiments/grug/moe_hero_ep/small_scale_abl_launch.py, SMALL_SHAPES (narrow rungs);
                             W&B config of marin_moe/hero-12d8b6f0-dee637, model.* (hero)
    racks                    launch_scaling_ladder.py, the table of its docstring; issue 8435, job summary
    shared model fields      W&B config of the hero, model.*; that of rav-ladder-d1536 holds the same
A new rung is a new row of `_ROWS`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from marin_model.config import ModelConfig
from repro.errors import UsageError
from repro.ladder import laws

GPUS_PER_RACK = 64  # of the 72 in a GB200 NVL72 rack; issue 8435, job summary: 176 nodes of 4 GPUs on 11 racks
SEQUENCES_PER_RACK = 1024  # launch_scaling_ladder.py: 16 sequences a GPU on every rung (weak scaling)
SEQUENCE_LENGTH = 4096  # issue 8435, job summary


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One published run: the model's shape and the machines it was given; all other numbers follow from these."""

    name: str
    model: ModelConfig
    racks: int
    wandb_run: str  # project marin-community/marin_moe; for the hero, the first of its seven runs
    resolved: str  # where the resolved numbers of this very rung were read
    gpus_per_rack: int = GPUS_PER_RACK
    sequences_per_rack: int = SEQUENCES_PER_RACK  # a step

    @property
    def gpus(self) -> int:
        """GPUs that train, one expert shard each."""
        return self.racks * self.gpus_per_rack

    @property
    def batch_size(self) -> int:
        """Sequences a step."""
        return self.racks * self.sequences_per_rack

    @property
    def seq_len(self) -> int:
        """Tokens a sequence."""
        return self.model.max_seq_len

    @property
    def tokens_per_step(self) -> int:
        """Tokens a step, padding and masked positions included."""
        return self.batch_size * self.seq_len


@dataclass(frozen=True)
class _Row:
    hidden: int
    layers: int
    heads: int  # of width 128
    local_kv_heads: int  # heads // 4, at least 1
    global_kv_heads: int  # heads // 8, at least 1
    racks: int
    wandb_run: str
    resolved: str


_ROWS = (
    _Row(768, 8, 6, 1, 1, 1, "rav-ladder-d768-v2", "W&B config of rav-ladder-d768-v2"),
    _Row(1024, 12, 8, 2, 1, 2, "rav-ladder-d1024", "W&B config of rav-ladder-d1024"),
    _Row(1536, 16, 12, 3, 1, 6, "rav-ladder-d1536", "W&B config of rav-ladder-d1536"),
    _Row(2048, 22, 16, 4, 2, 11, "rav-ladder-d2048-v3", "computed; W&B config of rav-ladder-d2048-v3 not seen"),
    _Row(6144, 48, 48, 12, 6, 11, "hero-12d8b6f0-dee637", "W&B config of hero-12d8b6f0-dee637"),
)


def _rung(row: _Row) -> Rung:
    half = row.hidden // 2  # experts, shared experts and the latent path share one width on every rung
    model = ModelConfig(
        vocab_size=128_256,
        hidden_dim=row.hidden,
        intermediate_dim=half,
        shared_expert_intermediate_dim=half,
        num_shared_experts=2,
        num_experts=384,
        num_experts_per_token=8,
        latent_dim=half,
        num_layers=row.layers,
        num_heads=row.heads,
        num_kv_heads=max(row.local_kv_heads, row.global_kv_heads),
        local_kv_heads=row.local_kv_heads,
        global_kv_heads=row.global_kv_heads,
        head_dim=128,
        max_seq_len=SEQUENCE_LENGTH,
        sliding_window=2048,
        global_every=4,
        initializer_std=laws.initializer_std(hidden_dim=row.hidden),
    )
    return Rung(name=f"d{row.hidden}", model=model, racks=row.racks, wandb_run=row.wandb_run, resolved=row.resolved)


RUNGS: Mapping[str, Rung] = MappingProxyType({rung.name: rung for rung in map(_rung, _ROWS)})


def get_rung(name: str) -> Rung:
    """The rung of that name. An unknown one is a UsageError that offers the nearest and lists all."""
    if name in RUNGS:
        return RUNGS[name]
    near = _nearest(name)
    offer = f" Did you mean {near}?" if near else ""
    raise UsageError(f"no rung is called {name!r}.{offer} The rungs are {', '.join(RUNGS)} (the last is the hero).")


def _nearest(name: str) -> str | None:
    """The rung that a slip of the finger meant, else the one whose width is nearest as a ratio, else none."""
    if slip := difflib.get_close_matches(name.lower(), RUNGS, n=1, cutoff=0.75):
        return slip[0]
    digits = re.search(r"[1-9][0-9]{0,8}", name)
    if digits is None:
        return None
    width = int(digits.group())
    return min(RUNGS, key=lambda known: abs(math.log(RUNGS[known].model.hidden_dim / width)))
