"""A rung on paper: what its training step needs of memory, links and time on a mesh that nobody here has.

    memory          by shapes and shardings, exact; activations saved between the passes as the lowered program says
    communication   dispatch and combine as the lowered program says; weights, dense gradients and the optimizer's
                    by closed formulas, since XLA inserts those collectives when it compiles: what it inserts is shown
                    beside them where the step is compiled (`partitioned`)
    time            a bound for each resource: products over peak, bytes over bandwidth. A step takes at least the
                    longest of them, and their sum where nothing overlaps

A bound holds back nothing for launch, imbalance, low-precision casts, norms or kernels below the peak: what a measured
step takes beyond it is the distance to what the hardware could do.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from marin_model import sharding
from marin_model.flops import parameter_shapes
from marin_model.model import BLOCKS
from marin_model.optimizer import MUONH, parameter_group
from repro.errors import UsageError
from repro.ladder.compiled_step import Compiled
from repro.ladder.hardware import Device, mfu
from repro.ladder.lowering import (
    Lowered,
    attention_trips,
    closed_flops,
    lower_step,
    newton_schulz_flops,
    transport_bytes,
)
from repro.ladder.meshes import check_mesh
from repro.ladder.recipe import Recipe

DEVICES_PER_HOST = 4  # issue 8435, job summary: 176 hosts of 4 GPUs


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device."""

    parameters: int  # float32 masters
    optimizer_state: int
    gradients: int  # float32, as large as the masters
    compute_copy: int  # of the weights, in the compute dtype
    activations: int  # saved from the forward pass for the backward pass; what is alive within a layer comes on top

    @property
    def total(self) -> int:
        """All of them at once."""
        return sum(asdict(self).values())


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Bytes that leave one device in a step, each over the slowest link it takes."""

    dispatch_combine: int  # all-to-all between the shards of a rack, both passes
    dispatch_combine_without_latent: int  # the same, had tokens travelled at full width
    expert_gradients: int  # summed between racks
    weights: int  # gathered in a rack, once a pass that reads them; experts too where the data axis cuts them
    gradients: int  # summed in a rack
    optimizer: int  # dense matrices dealt whole to the rack's devices for Newton-Schulz, and back; float32
    optimizer_experts: int  # expert matrices made whole for it, where the data axis cuts them; float32
    gradients_between_racks: int  # dense ones; one shard of each

    @property
    def in_rack(self) -> int:
        """Over the links of a rack."""
        return self.dispatch_combine + self.weights + self.gradients + self.optimizer + self.optimizer_experts

    @property
    def between_racks(self) -> int:
        """Over the network between racks."""
        return self.expert_gradients + self.gradients_between_racks

    def elements(self, dtype: str) -> dict[str, int]:
        """What is gathered and what is exchanged, in elements, the way a compiled program is counted. `dtype`: of the
        compute copy. Sums are left out: XLA makes a scatter of some, on some hardware."""
        item = jnp.dtype(dtype).itemsize
        return {
            "all-gather": self.weights // item + self.optimizer_experts // 4,
            "all-to-all": self.dispatch_combine // item + self.optimizer // 4,
        }


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds of a step that one resource of a device needs at the least."""

    device: Device
    compute: float
    memory: float
    links: float
    network: float

    @property
    def overlapped(self) -> float:
        """Where everything happens at once."""
        return max(self.compute, self.memory, self.links, self.network)

    @property
    def in_turn(self) -> float:
        """Where nothing overlaps."""
        return self.compute + self.memory + self.links + self.network


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A recipe on a mesh."""

    recipe: Recipe
    mesh: dict[str, int]
    remat: bool
    memory: Memory
    communication: Communication
    device_flops: dict[str, float]  # of one device and step, by what they are for
    program_characters: int
    compiled: Compiled | None = None

    @property
    def devices(self) -> int:
        """Of the mesh."""
        return prod(self.mesh.values())

    def roofline(self, device: Device) -> Roofline:
        """Bounds on one kind of hardware."""
        memory, sent = self.memory, self.communication
        passes = 3 + self.remat
        rack = self.mesh["data"] * self.mesh["expert"]
        beyond = max(0, rack - device.domain) / max(1, rack - 1)  # share of a device's peers that no link reaches
        traffic = 2 * (memory.parameters + memory.optimizer_state) + memory.gradients  # read and written; read
        traffic += (1 + passes) * memory.compute_copy + 2 * memory.activations
        return Roofline(
            device=device,
            compute=sum(self.device_flops.values()) / device.peak_flops,
            memory=traffic / device.memory_bandwidth,
            links=(1 - beyond) * sent.in_rack / device.link_bandwidth,
            network=(sent.between_racks + beyond * sent.in_rack) / device.network_bandwidth,
        )

    def memory_json(self) -> dict[str, Any]:
        """`memory_per_device` of the command-line contract. Bytes."""
        parts = {**asdict(self.memory), "total": self.memory.total}
        return {
            "mesh": self.mesh,
            "devices": self.devices,
            "remat": self.remat,
            **parts,
            "per_host": {"devices": DEVICES_PER_HOST, **{n: DEVICES_PER_HOST * b for n, b in parts.items()}},
            "compiled_for_cpu": self.compiled.memory if self.compiled else None,
        }

    def communication_json(self) -> dict[str, Any]:
        """`communication_per_step` of the command-line contract. Bytes that leave one device."""
        sent = self.communication
        return {
            **asdict(sent),
            "latent_share": sent.dispatch_combine / sent.dispatch_combine_without_latent,
            "in_rack": sent.in_rack,
            "between_racks": sent.between_racks,
            "elements": sent.elements(self.recipe.compute_dtype),
            "elements_compiled_for_cpu": self.compiled.sent if self.compiled else None,
        }

    def time_json(self, devices: list[Device]) -> dict[str, Any]:
        """FLOPs of a device and bounds on its step, by kind of hardware."""
        flops = sum(self.device_flops.values())
        bounds = {}
        for device in devices:
            bound = self.roofline(device)
            parts = ("compute", "memory", "links", "network", "overlapped", "in_turn")
            bounds[device.name] = {
                **{f"{part}_seconds": getattr(bound, part) for part in parts},
                "mfu_at_most": mfu(self.recipe, device, self.devices, bound.overlapped),
                "fits": self.memory.total <= device.memory,
                "source": device.source,
            }
        return {
            "flops_per_device": self.device_flops,
            "executed_over_launcher": flops * self.devices / self.recipe.flops_per_step_with_lm_head,
            "bounds": bounds,
        }


def put_on_paper(recipe: Recipe, mesh: dict[str, int], *, remat: bool) -> Paper:
    """Lower the step of a recipe over an abstract mesh and add up. Raises UsageError where they do not divide."""
    check_mesh(recipe, mesh)
    abstract = sharding.make_abstract_mesh(**mesh)
    try:
        lowered = lower_step(recipe, abstract, remat=remat)
    except ValueError as error:
        raise UsageError(f"{recipe.rung} at scale {recipe.scale} on this mesh: {error}") from error
    return Paper(
        recipe=recipe,
        mesh=mesh,
        remat=remat,
        memory=_memory(recipe, abstract, lowered),
        communication=_communication(recipe, abstract, lowered, remat=remat),
        device_flops=_device_flops(recipe, abstract, remat=remat),
        program_characters=lowered.size,
    )


def _memory(recipe: Recipe, mesh: AbstractMesh, lowered: Lowered) -> Memory:
    parameters = _held(lowered.state.params)
    item = jnp.dtype(recipe.compute_dtype).itemsize
    return Memory(
        parameters=parameters,
        optimizer_state=_held(lowered.state.optimizer),
        gradients=parameters,
        compute_copy=parameters * item // 4,
        activations=lowered.carried // sharding.axis_size(mesh, sharding.AXES),
    )


def _held(tree: Any) -> int:
    """Bytes that one device holds of a tree of shapes with shardings."""
    return sum(prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _communication(recipe: Recipe, mesh: AbstractMesh, lowered: Lowered, *, remat: bool) -> Communication:
    """A ring or a switch: of n members each sends (n - 1)/n of the whole to gather or to scatter it, twice to sum."""
    shards, devices = sharding.axis_size(mesh, sharding.EXPERT), sharding.axis_size(mesh, sharding.AXES)
    rack, racks = sharding.axis_size(mesh, sharding.RACK), sharding.axis_size(mesh, sharding.REPLICA)
    sent = lowered.counts.collectives.get(("all_to_all", (sharding.EXPERT,)), 0)
    wide = transport_bytes(recipe, devices, remat=remat, width=recipe.model.hidden_dim)
    banks = lowered.counts.collectives.get(("psum", (sharding.REPLICA, sharding.DATA)), 0)
    item = jnp.dtype(recipe.compute_dtype).itemsize
    spread = copied = gathered = dealt = 0
    for name, shape in parameter_shapes(recipe.model).items():
        if "expert_mlp" in name:
            continue
        size, is_product = prod(shape) * item, name.startswith(BLOCKS) and "sconv" not in name
        if sharding.whole_matrices(sharding.leaf_spec(name)):
            spread += size
            gathered += (2 + (remat and is_product)) * size  # forward, backward, and forward again
            if parameter_group(name, len(shape)) == MUONH:
                dealt += 2 * -(-shape[0] // rack) * prod(shape[1:]) * 4  # float32, there and back
        else:
            copied += size
    data = sharding.axis_size(mesh, sharding.DATA)
    return Communication(
        dispatch_combine=sent * (shards - 1) // shards,
        dispatch_combine_without_latent=wide * (shards - 1) // shards,
        expert_gradients=2 * banks // data * (racks - 1) // racks,
        weights=gathered * (rack - 1) // rack + 2 * banks * (data - 1) // data,
        gradients=(spread + 2 * copied) * (rack - 1) // rack + banks * (data - 1) // data,
        optimizer=dealt * (rack - 1) // rack,
        optimizer_experts=4 * banks // item * (data - 1) // data,
        gradients_between_racks=2 * (spread + copied) // rack * (racks - 1) // racks,
    )


def _device_flops(recipe: Recipe, mesh: AbstractMesh, *, remat: bool) -> dict[str, float]:
    """Of one device: tokens are spread over all devices, the optimizer's work over those of a rack."""
    devices = sharding.axis_size(mesh, sharding.AXES)
    closed = closed_flops(recipe, mesh, remat=remat)  # what the lowered program multiplies, asserted there
    trips = attention_trips(recipe.model)
    plain = {name: flops / devices for name, flops in closed["plain"].items()}
    plain["Newton-Schulz"] = newton_schulz_flops(recipe.model, mesh, of_device=True)
    attention = {name: flops * trips / devices for name, flops in closed["attention_trip"].items()}
    return {**plain, **closed["shards"], **attention}
