"""Read a released checkpoint: safetensors under the names of the Hugging Face export, schema 2.

The export keeps one tensor a layer where we stack layers, and stores linear maps as [out, in] where we store [in, out];
expert banks are [E, out, in]. Norm gains, convolution taps, the router bias and the embedding are stored as they are.
A checkpoint is a `.safetensors` file, or a folder with several and, usually, their `model.safetensors.index.json`.

Source: the exporter in experiments/grug/moe_hero_ep/model.py of marin-community/marin.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array
from safetensors import safe_open

from marin_model.arrays import Model, from_named_arrays
from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes
from marin_model.model import BLOCKS

INDEX = "model.safetensors.index.json"

TOP_NAMES = {
    "token_embed": "model.embed_tokens.weight",
    "embed_norm.weight": "model.embed_norm.weight",
    "embed_gated_norm.w_down": "model.embed_gated_norm.down_proj.weight",
    "embed_gated_norm.w_up": "model.embed_gated_norm.up_proj.weight",
    "output_proj": "lm_head.weight",
    "final_norm.weight": "model.norm.weight",
    "final_gated_norm.w_down": "model.final_gated_norm.down_proj.weight",
    "final_gated_norm.w_up": "model.final_gated_norm.up_proj.weight",
}
LAYER_NAMES = {  # below `model.layers.<i>.`; shared experts follow their number
    "rms_attn.weight": "input_layernorm.weight",
    "attn_gated_norm.w_down": "attn_gated_norm.down_proj.weight",
    "attn_gated_norm.w_up": "attn_gated_norm.up_proj.weight",
    "attn.w_q": "self_attn.q_proj.weight",
    "attn.w_k": "self_attn.k_proj.weight",
    "attn.w_v": "self_attn.v_proj.weight",
    "attn.w_o": "self_attn.o_proj.weight",
    "attn.attn_gate": "self_attn.attn_gate.weight",
    "attn.sconv_k.weight": "self_attn.sconv_k.weight",
    "sconv_attn.weight": "sconv_attn.weight",
    "rms_mlp.weight": "post_attention_layernorm.weight",
    "mlp_gated_norm.w_down": "mlp_gated_norm.down_proj.weight",
    "mlp_gated_norm.w_up": "mlp_gated_norm.up_proj.weight",
    "mlp.router": "mlp.router.weight",
    "mlp.router_bias": "mlp.router.bias",
    "mlp.expert_mlp.w_gate": "mlp.experts.gate_proj.weight",
    "mlp.expert_mlp.w_up": "mlp.experts.up_proj.weight",
    "mlp.expert_mlp.w_down": "mlp.experts.down_proj.weight",
    "mlp.w_latent_down": "mlp.latent_down_proj.weight",
    "mlp.latent_norm.weight": "mlp.latent_norm.weight",
    "mlp.w_latent_up": "mlp.latent_up_proj.weight",
    "sconv_mlp.weight": "sconv_mlp.weight",
}
SHARED_NAMES = {"w_gate": "gate_proj.weight", "w_up": "up_proj.weight", "w_down": "down_proj.weight"}
AS_STORED = ("token_embed", "mlp.router_bias")  # and every name that ends in `.weight`: gains and taps


class Place(NamedTuple):
    """Where an exported tensor goes: an array of ours, and its layer if that one is stacked."""

    name: str
    layer: int | None
    transposed: bool


def exported_names(config: ModelConfig) -> dict[str, Place]:
    """Every tensor of the export by its name."""
    places = {}
    for name in parameter_shapes(config):
        bare = name.removeprefix(BLOCKS)
        transposed = not (bare.endswith(".weight") or bare in AS_STORED)
        if name == bare:
            places[TOP_NAMES[name]] = Place(name, None, transposed)
            continue
        head, _, leaf = bare.partition(".")
        below = LAYER_NAMES.get(bare)
        if below is None:
            below = f"shared_experts.{head.removeprefix('shared')}.{SHARED_NAMES[leaf]}"
        for layer in range(config.num_layers):
            places[f"model.layers.{layer}.{below}"] = Place(name, layer, transposed)
    return places


def read_exported(config: ModelConfig, path: str | Path) -> Model:
    """The model in a `.safetensors` file or a folder of them, as float32 masters.

    ValueError that names tensors which are missing, unknown or of another shape.
    """
    return from_named_arrays(config, _gather(config, _tensors(Path(path)), str(path)))


def from_exported(config: ModelConfig, tensors: Mapping[str, Any]) -> Model:
    """The same from tensors in memory by exported name."""
    return from_named_arrays(config, _gather(config, tensors.items(), "exported tensors"))


def _gather(config: ModelConfig, tensors: Iterable[tuple[str, Any]], where: str) -> dict[str, np.ndarray]:
    shapes, places = parameter_shapes(config), exported_names(config)
    arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
    missing = dict(places)
    for name, tensor in tensors:
        if name not in places:
            raise ValueError(f"{where}: tensor {name!r} {list(tensor.shape)} has no place in this configuration.")
        place = missing.pop(name)
        ours = arrays[place.name] if place.layer is None else arrays[place.name][place.layer]
        value = np.asarray(tensor, np.float32)
        value = np.swapaxes(value, -1, -2) if place.transposed else value
        if value.shape != ours.shape:
            raise ValueError(
                f"{where}: tensor {name!r} {list(tensor.shape)} does not fit {place.name} {list(ours.shape)}."
            )
        ours[...] = value
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"{where}: missing {', '.join(list(missing)[:3])}{more}.")
    return arrays


def _tensors(path: Path) -> Iterator[tuple[str, Array]]:
    for file in _files(path):
        with safe_open(file, framework="flax") as opened:  # numpy has no bfloat16
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    index = path / INDEX
    if index.is_file():
        files = sorted({path / name for name in json.loads(index.read_text())["weight_map"].values()})
        if absent := [file.name for file in files if not file.is_file()]:
            raise ValueError(f"{path}: {INDEX} names {', '.join(absent)}, which the folder does not hold.")
        return files
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{path}: no .safetensors file there.")
    return files
