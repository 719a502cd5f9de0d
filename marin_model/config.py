"""The shape of one Marin mixture-of-experts model: its fields, their rules, and what follows from them.

Plain arithmetic, no JAX: the planner and the auditor need these numbers and must start light. Field names are those of
the published run configuration (W&B config of hero-12d8b6f0-dee637, `model.*`), so that a configuration read from the
record is a `ModelConfig` without renaming.

Letters used in the docstrings of this package: B batch, S sequence, T = B·S tokens, D hidden, N query heads, M stored
KV heads, H head width, E experts, K experts chosen a token, L latent width, I expert width, V vocabulary.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

CONV_SITES = ("k", "attn", "mlp")  # job summary of issue 8435: the value site was dropped before launch
QB_ESTIMATORS = ("hist", "topk")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding of the sliding-window layers: base of the frequencies; scaling is not used."""

    theta: float = 10_000.0
    scaling_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Every number that the forward pass depends on. Checked when made; a broken rule is a ValueError.

    `attention_implementation`, `moe_implementation`, `remat_mode` and `expert_chunks` name how upstream computed, not
    what; they are kept so that a published configuration survives a round trip.
    """

    vocab_size: int
    hidden_dim: int
    intermediate_dim: int
    shared_expert_intermediate_dim: int
    num_shared_experts: int
    num_experts: int
    num_experts_per_token: int
    latent_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int  # stored in every layer; a layer uses the first local_ or global_kv_heads of them
    local_kv_heads: int
    global_kv_heads: int
    head_dim: int
    max_seq_len: int
    sliding_window: int  # keys a query sees, itself included
    global_every: int  # every so many layers one is full-causal; the last layer always is
    qb_estimator: str = "hist"
    qb_hist_bins: int = 10_000
    capacity_factor: float = 1.15  # receiver
    pooled_transport_capacity_factor: float | None = 1.15  # sender; None: the receiver's
    num_expert_waves: int = 3
    layer_norm_eps: float = 1e-5
    initializer_std: float
    qk_mult: float = 1.3
    sconv: bool = True
    sconv_kernel: int = 4
    sconv_sites: tuple[str, ...] = CONV_SITES
    rope: Rope = Rope()
    rope_fused: bool = True
    gated_norm_rank: int = 128
    routing_renorm_sum: float = 2.5
    attention_implementation: str = "gpu_fa4_cute"
    moe_implementation: str = "fixed_pooled_wave_all_to_all"
    expert_chunks: int = 1
    report_capacity_overflow: bool = True
    remat_mode: str = "recompute_all"

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type == "int" and not isinstance(getattr(self, field.name), int):
                _refuse(f"{field.name} must be a whole number, not {getattr(self, field.name)!r}")
            if field.type in ("int", "float") and not getattr(self, field.name) > 0:
                _refuse(f"{field.name} must be positive, not {getattr(self, field.name)}")
        for kv in ("num_kv_heads", "local_kv_heads", "global_kv_heads"):
            if self.num_heads % getattr(self, kv):
                _refuse(f"num_heads ({self.num_heads}) is not a multiple of {kv} ({getattr(self, kv)})")
        if self.num_kv_heads != max(self.local_kv_heads, self.global_kv_heads):
            _refuse(
                f"num_kv_heads ({self.num_kv_heads}) must be the larger of local_kv_heads ({self.local_kv_heads}) "
                f"and global_kv_heads ({self.global_kv_heads}), since that many are stored"
            )
        if self.num_experts_per_token >= self.num_experts:
            _refuse(
                f"num_experts_per_token ({self.num_experts_per_token}) must be below num_experts "
                f"({self.num_experts}): routing reads one score more than it chooses"
            )
        if self.latent_dim > self.hidden_dim:
            _refuse(f"latent_dim ({self.latent_dim}) must not exceed hidden_dim ({self.hidden_dim})")
        if self.head_dim % 4:
            _refuse(f"head_dim ({self.head_dim}) must be a multiple of 4: half of it rotates, in pairs")
        if self.sliding_window > self.max_seq_len:
            _refuse(f"sliding_window ({self.sliding_window}) must not exceed max_seq_len ({self.max_seq_len})")
        if self.qb_estimator not in QB_ESTIMATORS:
            _refuse(f"qb_estimator ({self.qb_estimator!r}) must be one of {', '.join(QB_ESTIMATORS)}")
        if set(self.sconv_sites) - set(CONV_SITES):
            _refuse(f"sconv_sites ({', '.join(self.sconv_sites)}) may name only {', '.join(CONV_SITES)}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Make a configuration from its published fields. An unknown or missing field is a ValueError that names it."""
        known = {field.name: field for field in fields(cls)}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                _refuse(f"unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        missing = [name for name, field in known.items() if field.default is MISSING and name not in values]
        if missing:
            _refuse(f"missing {', '.join(missing)}")
        given = dict(values)
        if isinstance(given.get("rope"), Mapping):
            given["rope"] = Rope(**given["rope"])
        if "sconv_sites" in given:
            given["sconv_sites"] = tuple(given["sconv_sites"])
        if isinstance(given.get("qb_estimator"), str):
            given["qb_estimator"] = given["qb_estimator"].lower()  # W&B prints HIST, the launcher hist
        return cls(**given)

    @property
    def long_layers(self) -> tuple[int, ...]:
        """Zero-based full-causal layers without RoPE: every `global_every`-th one, and the last in any case."""
        last = self.num_layers - 1
        return tuple(i for i in range(self.num_layers) if (i + 1) % self.global_every == 0 or i == last)

    @property
    def sender_capacity_factor(self) -> float:
        """Factor of the sender's slots; the receiver's where none is given."""
        factor = self.pooled_transport_capacity_factor
        return self.capacity_factor if factor is None else factor


def _refuse(why: str) -> None:
    raise ValueError(f"model configuration: {why}.")
