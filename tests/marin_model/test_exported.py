"""Reading released checkpoints: a file under the export's names becomes the model it was written from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import marin_model
from marin_model import exported
from tests.marin_model.tiny import CONFIG, params


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    """The tiny model as the exporter writes it, name by name."""
    p = {name: np.asarray(value) for name, value in params().items()}
    out = {
        "model.embed_tokens.weight": p["token_embed"],
        "model.embed_norm.weight": p["embed_norm.weight"],
        "model.embed_gated_norm.down_proj.weight": p["embed_gated_norm.w_down"].T,
        "model.embed_gated_norm.up_proj.weight": p["embed_gated_norm.w_up"].T,
        "model.norm.weight": p["final_norm.weight"],
        "model.final_gated_norm.down_proj.weight": p["final_gated_norm.w_down"].T,
        "model.final_gated_norm.up_proj.weight": p["final_gated_norm.w_up"].T,
        "lm_head.weight": p["output_proj"].T,
    }
    for i in range(CONFIG.num_layers):
        b = {name.removeprefix("blocks."): value[i] for name, value in p.items() if name.startswith("blocks.")}
        layer = {
            "input_layernorm.weight": b["rms_attn.weight"],
            "post_attention_layernorm.weight": b["rms_mlp.weight"],
            "self_attn.attn_gate.weight": b["attn.attn_gate"].T,
            "self_attn.sconv_k.weight": b["attn.sconv_k.weight"],
            "sconv_attn.weight": b["sconv_attn.weight"],
            "sconv_mlp.weight": b["sconv_mlp.weight"],
            "mlp.router.weight": b["mlp.router"].T,
            "mlp.router.bias": b["mlp.router_bias"],
            "mlp.latent_down_proj.weight": b["mlp.w_latent_down"].T,
            "mlp.latent_norm.weight": b["mlp.latent_norm.weight"],
            "mlp.latent_up_proj.weight": b["mlp.w_latent_up"].T,
        }
        layer |= {f"self_attn.{x}_proj.weight": b[f"attn.w_{x}"].T for x in "qkvo"}
        for x in ("gate", "up", "down"):
            layer[f"mlp.experts.{x}_proj.weight"] = b[f"mlp.expert_mlp.w_{x}"].swapaxes(1, 2)  # [E, out, in]
            layer |= {f"shared_experts.{j}.{x}_proj.weight": b[f"shared{j}.w_{x}"].T for j in (0, 1)}
        for norm in ("attn_gated_norm", "mlp_gated_norm"):
            layer |= {f"{norm}.{x}_proj.weight": b[f"{norm}.w_{x}"].T for x in ("down", "up")}
        out |= {f"model.layers.{i}.{name}": value for name, value in layer.items()}
    return {name: np.ascontiguousarray(value) for name, value in out.items()}


def hold(model: marin_model.Model, expected: dict[str, Any]) -> None:
    found = marin_model.to_named_arrays(model)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == jnp.float32
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_one_file_is_the_model(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    hold(marin_model.read_exported(CONFIG, tmp_path / "model.safetensors"), params())
    hold(marin_model.read_exported(CONFIG, tmp_path), params())


def test_a_folder_with_an_index_and_bfloat16(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    names = list(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name].astype(ml_dtypes.bfloat16) for name in part}, tmp_path / file)
    save_file({"other": np.zeros(1)}, tmp_path / "optimizer.safetensors")  # not in the index, so not read
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (tmp_path / exported.INDEX).write_text(json.dumps(index))
    rounded = {name: np.asarray(value, ml_dtypes.bfloat16).astype(np.float32) for name, value in params().items()}
    hold(marin_model.read_exported(CONFIG, tmp_path), rounded)


def test_every_export_name_is_known(tensors: dict[str, np.ndarray]) -> None:
    assert exported.exported_names(CONFIG).keys() == tensors.keys()


def test_what_does_not_fit_is_named(tensors: dict[str, np.ndarray], tmp_path: Path) -> None:
    router = "model.layers.3.mlp.router.weight"
    with pytest.raises(ValueError, match=rf"missing {router}\."):
        exported.from_exported(CONFIG, {name: value for name, value in tensors.items() if name != router})
    with pytest.raises(ValueError, match=r"'model.layers.3.mlp.rooter' \[16, 64\] has no place"):
        exported.from_exported(CONFIG, {**tensors, "model.layers.3.mlp.rooter": tensors[router]})
    with pytest.raises(ValueError, match=rf"{router}' \[64, 16\] does not fit blocks.mlp.router \[64, 16\]"):
        exported.from_exported(CONFIG, {**tensors, router: tensors[router].T})
    with pytest.raises(ValueError, match=r"no \.safetensors file"):
        marin_model.read_exported(CONFIG, tmp_path)
    (tmp_path / exported.INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(ValueError, match=r"names gone\.safetensors"):
        marin_model.read_exported(CONFIG, tmp_path)
