"""The device mesh, and one table that says how every array of the model lies on it. No axis is spelled elsewhere.

Axes as the run had them: `replica` counts racks, each with a full copy of the weights, `data` x `expert` are the
devices of a rack; tokens lie over all three, whole sequences a device. The run's `model` and `context` axes had length
1 and are left out. The table follows the run's parameter specs; stacked arrays (`blocks.*`) carry a leading layer axis,
unsharded.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes

REPLICA, DATA, EXPERT = "replica", "data", "expert"
AXES = (REPLICA, DATA, EXPERT)
VIRTUAL = "virtual"  # of a `vmap` within a device: expert shards of which it holds several
RACK = (DATA, EXPERT)  # what one copy of the weights is spread over

TOKENS = PartitionSpec(AXES)  # leading axis of batches and of flattened tokens
EXPERTS = PartitionSpec(EXPERT)  # an expert bank as the transport uses it
REPLICATED = PartitionSpec()

_IN_SPREAD = PartitionSpec(RACK, None)  # [in, out], spread over in
_OUT_SPREAD = PartitionSpec(None, RACK)  # [in, out], spread over out
_TAPS = PartitionSpec(None, RACK)  # [kernel, channels]

# Leaf name without `blocks.` -> spec without the layer axis. Shared experts: one row for each matrix of all of them.
LEAF_SPECS: dict[str, PartitionSpec] = {
    "token_embed": REPLICATED,  # a local lookup, no collective
    "embed_norm.weight": REPLICATED,
    "embed_gated_norm.w_down": REPLICATED,
    "embed_gated_norm.w_up": REPLICATED,
    "output_proj": _IN_SPREAD,
    "rms_attn.weight": REPLICATED,
    "attn_gated_norm.w_down": REPLICATED,
    "attn_gated_norm.w_up": REPLICATED,
    "attn.w_q": _IN_SPREAD,
    "attn.w_k": _IN_SPREAD,
    "attn.w_v": _IN_SPREAD,
    "attn.w_o": _OUT_SPREAD,
    "attn.attn_gate": REPLICATED,
    "attn.sconv_k.weight": _TAPS,
    "sconv_attn.weight": _TAPS,
    "rms_mlp.weight": REPLICATED,
    "mlp_gated_norm.w_down": REPLICATED,
    "mlp_gated_norm.w_up": REPLICATED,
    "mlp.router": REPLICATED,
    "mlp.router_bias": REPLICATED,
    "mlp.expert_mlp.w_gate": PartitionSpec(EXPERT, DATA, None),
    "mlp.expert_mlp.w_up": PartitionSpec(EXPERT, DATA, None),
    "mlp.expert_mlp.w_down": PartitionSpec(EXPERT, None, DATA),
    "mlp.w_latent_down": _IN_SPREAD,
    "mlp.latent_norm.weight": REPLICATED,
    "mlp.w_latent_up": _OUT_SPREAD,
    "shared.w_gate": _IN_SPREAD,
    "shared.w_up": _IN_SPREAD,
    "shared.w_down": _OUT_SPREAD,
    "sconv_mlp.weight": _TAPS,
    "final_norm.weight": REPLICATED,
    "final_gated_norm.w_down": REPLICATED,
    "final_gated_norm.w_up": REPLICATED,
}


def make_mesh(*, replica: int = 1, data: int = 1, expert: int = 1) -> Mesh:
    """Mesh of replica x data x expert devices, taken in order. ValueError where fewer devices exist."""
    wanted, present = replica * data * expert, len(jax.devices())
    if wanted > present:
        raise ValueError(
            f"mesh: replica {replica} x data {data} x expert {expert} needs {wanted} devices, {present} exist. Use "
            f"virtual shards (no mesh) or, on a CPU, XLA_FLAGS=--xla_force_host_platform_device_count={wanted}."
        )
    shape = (replica, data, expert)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:wanted])


def make_abstract_mesh(*, replica: int = 1, data: int = 1, expert: int = 1) -> AbstractMesh:
    """The same mesh without devices: a program can be lowered over it, not compiled."""
    return AbstractMesh((replica, data, expert), AXES, axis_types=(AxisType.Auto,) * 3)


def leaf_spec(name: str) -> PartitionSpec:
    """Spec of the array with this flat name (`flops.parameter_shapes`). KeyError for a name the table does not have."""
    bare = name.removeprefix("blocks.")
    head, _, tail = bare.partition(".")
    if head.startswith("shared") and head.removeprefix("shared").isdigit():
        bare = f"shared.{tail}"
    spec = LEAF_SPECS[bare]
    return PartitionSpec(None, *spec) if name.startswith("blocks.") else spec


def whole_matrices(spec: PartitionSpec) -> PartitionSpec | None:
    """How a stack of matrices [n, in, out] lies if it is cut into whole ones, given a stored leaf's spec.

    Dense matrices of all layers go over a rack; the experts of a layer stay on their shards. None where every device
    has all matrices as it is.
    """
    cut = [axes for axes in spec if axes is not None]
    return PartitionSpec(cut[0]) if cut else None


def parameter_shardings(config: ModelConfig, mesh: Mesh | AbstractMesh) -> dict[str, NamedSharding]:
    """Flat name -> sharding of every stored array. ValueError where an axis of the mesh does not divide an array."""
    shardings = {}
    for name, shape in parameter_shapes(config).items():
        spec = leaf_spec(name)
        for size, axes in zip(shape, spec, strict=False):
            ways = axis_size(mesh, axes)
            if size % ways:
                raise ValueError(
                    f"sharding: {name} {list(shape)} cannot be cut {ways} ways over {axes}: {size} % {ways} != 0."
                )
        shardings[name] = NamedSharding(mesh, spec)
    return shardings


def tree_shardings(tree: Any, config: ModelConfig, mesh: Mesh | AbstractMesh) -> Any:
    """The same tree with a sharding at every leaf: a parameter's, where the leaf has its flat name in its path and its
    shape (weights, and the moments an optimizer keeps of them); else one copy a device. Errors as
    `parameter_shardings`."""
    shardings, shapes = parameter_shardings(config, mesh), parameter_shapes(config)

    def of_leaf(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = next((key.key for key in path if getattr(key, "key", None) in shapes), None)
        if name is not None and leaf.shape == shapes[name]:
            return shardings[name]
        return NamedSharding(mesh, REPLICATED)

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def axis_size(mesh: Mesh | AbstractMesh, axes: str | tuple[str, ...] | None) -> int:
    """Devices along one axis, or along several together; 1 for None."""
    if axes is None:
        return 1
    return prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))
