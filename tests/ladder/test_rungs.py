"""The five published rungs: the shapes that were launched, and the message for a rung that does not exist."""

from __future__ import annotations

import dataclasses

import pytest

from repro.errors import UsageError
from repro.ladder.rungs import RUNGS, get_rung

# W&B config of hero-12d8b6f0-dee637, model.*, as resolved at launch (fudan-chen/pretrain, meta.json @02cd59b0).
HERO_MODEL = {
    "attention_implementation": "gpu_fa4_cute",
    "capacity_factor": 1.15,
    "expert_chunks": 1,
    "global_every": 4,
    "global_kv_heads": 6,
    "head_dim": 128,
    "hidden_dim": 6144,
    "initializer_std": 0.0063788795384978605,
    "intermediate_dim": 3072,
    "latent_dim": 3072,
    "layer_norm_eps": 1e-05,
    "local_kv_heads": 12,
    "max_seq_len": 4096,
    "moe_implementation": "fixed_pooled_wave_all_to_all",
    "num_expert_waves": 3,
    "num_experts": 384,
    "num_experts_per_token": 8,
    "num_heads": 48,
    "num_kv_heads": 12,
    "num_layers": 48,
    "num_shared_experts": 2,
    "pooled_transport_capacity_factor": 1.15,
    "qb_estimator": "hist",
    "qb_hist_bins": 10000,
    "qk_mult": 1.3,
    "remat_mode": "recompute_all",
    "report_capacity_overflow": True,
    "rope": {"scaling_factor": None, "theta": 10000.0},
    "rope_fused": True,
    "sconv": True,
    "sconv_kernel": 4,
    "sconv_sites": ("k", "attn", "mlp"),
    "shared_expert_intermediate_dim": 3072,
    "sliding_window": 2048,
    "vocab_size": 128256,
}

# SMALL_SHAPES of small_scale_abl_launch.py and the docstring of launch_scaling_ladder.py; init std as resolved.
SHAPES = {  # layers, heads, local, global, stored KV heads, expert width, long layers, init std, racks, batch, GPUs
    "d768": (8, 6, 1, 1, 1, 384, (3, 7), 0.018042195912175808, 1, 1024, 64),
    "d1024": (12, 8, 2, 1, 2, 512, (3, 7, 11), 0.015625, 2, 2048, 128),
    "d1536": (16, 12, 3, 1, 3, 768, (3, 7, 11, 15), 0.012757759076995721, 6, 6144, 384),
    "d2048": (22, 16, 4, 2, 4, 1024, (3, 7, 11, 15, 19, 21), 0.011048543456039804, 11, 11264, 704),
    "d6144": (48, 48, 12, 6, 12, 3072, tuple(range(3, 48, 4)), 0.0063788795384978605, 11, 11264, 704),
}


def test_the_hero_has_the_resolved_configuration_of_its_run() -> None:
    model = dataclasses.asdict(RUNGS["d6144"].model)
    assert {name: model[name] for name in HERO_MODEL} == HERO_MODEL
    assert set(model) - set(HERO_MODEL) == {"gated_norm_rank", "routing_renorm_sum"}  # constants upstream, no fields


@pytest.mark.parametrize("name", SHAPES)
def test_a_rung_has_its_published_shape(name: str) -> None:
    rung, m = RUNGS[name], RUNGS[name].model
    assert (
        m.num_layers,
        m.num_heads,
        m.local_kv_heads,
        m.global_kv_heads,
        m.num_kv_heads,
        m.intermediate_dim,
        m.long_layers,
        m.initializer_std,
        rung.racks,
        rung.batch_size,
        rung.gpus,
    ) == SHAPES[name]
    assert m.latent_dim == m.shared_expert_intermediate_dim == m.intermediate_dim == m.hidden_dim // 2
    assert m.num_heads * m.head_dim == m.hidden_dim


def test_every_gpu_sees_65536_tokens_a_step_on_every_rung() -> None:
    assert {rung.tokens_per_step // rung.gpus for rung in RUNGS.values()} == {65_536}


def test_rungs_stand_in_order_of_size_under_their_own_names() -> None:
    assert list(RUNGS) == list(SHAPES)
    assert [rung.name for rung in RUNGS.values()] == list(RUNGS)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("d7686", "d768"), ("D1536", "d1536"), ("1024", "d1024"), ("d800", "d768"), ("d9000", "d6144"), ("d2", "d768")],
)
def test_an_unknown_rung_is_told_the_nearest_and_all(wrong: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        get_rung(wrong)
    message = str(caught.value)
    assert repr(wrong) in message
    assert f"Did you mean {meant}?" in message
    assert "d768, d1024, d1536, d2048, d6144" in message


@pytest.mark.parametrize("wrong", ["", "hero", "d0", "résumé"])
def test_a_name_near_to_none_is_told_all_rungs_and_offered_none(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"d768, d1024, d1536, d2048, d6144 \(the last is the hero\)") as caught:
        get_rung(wrong)
    assert "Did you mean" not in str(caught.value)


def test_the_table_of_rungs_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        RUNGS["d1"] = RUNGS["d768"]  # type: ignore[index]
