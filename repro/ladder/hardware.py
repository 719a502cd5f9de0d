"""Accelerators by their data sheets, and how long a recipe takes on so many of them. Arithmetic, no JAX.

    peak        dense bfloat16 FLOPs a second of one device; data sheets that print sparse figures print the double
    bandwidth   bytes a second: of the device's memory; of its links to the devices of its domain and of its network
                card to all others, in one direction (data sheets print the links' both)

Times at a share of the peak (MFU) count FLOPs as the launcher does, LM head included and without recomputation, so that
a share published by the run means the same here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from repro.errors import UsageError
from repro.ladder.recipe import Recipe
from repro.ladder.rungs import RUNGS

# Bytes a parameter that a step holds at least: float32 master, momentum and gradient, and the bfloat16 copy.
BYTES_PER_PARAMETER = 4 + 4 + 4 + 2
# Shares of the peak that the run published, by rung: issue 8435, job summary (d2048, median); W&B summary of
# hero-fa4sm100-nomask-step146k at step 219,518. For the other rungs, which have none, d2048's.
PUBLISHED_MFU: Mapping[str, float] = MappingProxyType({"d2048": 0.136, "d6144": 0.2635})


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator."""

    name: str
    kinds: tuple[str, ...]  # how JAX calls it (`device_kind`)
    peak_flops: float
    memory: float  # bytes
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    domain: int  # devices that the links join
    source: str  # what the maker prints
    read_in: tuple[str, ...]  # where: other people's pages and filings, but see DEVICES


# The maker's own sheets could not be opened from here. Each figure was read in at least one of the pages named, all of
# others, on 2026-12-02; MLCommons' are filings, NVIDIA's own for the H200. They differ in two places: verda.com prints
# 2.25 PFLOPS and 7.7 TB/s for the GB200, and 192 GB of a B200 is what the part has, 180 GB what a DGX offers. Only the
# kind of a GB200's network cards was found, one ConnectX-7 a GPU; their 400 Gb/s are those of the B200's.
LOCKWOOD, MLCOMMONS = "https://glennklockwood.com/garden/processors/", "https://github.com/mlcommons/inference_results_"

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            Device(
                name="H100",
                kinds=("NVIDIA H100 80GB HBM3",),
                peak_flops=989.4e12,
                memory=80e9,
                memory_bandwidth=3.35e12,
                link_bandwidth=450e9,
                network_bandwidth=50e9,
                domain=8,
                source="NVIDIA H100 data sheet, SXM: 1,979 TFLOPS sparse, 900 GB/s both ways; DGX H100: 400 Gb/s a GPU",
                read_in=(
                    f"{LOCKWOOD}h100",  # 989.4 TFLOPS, 80 GB, 3.35 TB/s, 900 GB/s
                    f"{MLCOMMONS}v3.1: closed/Dell/systems/XE9680_H100_SXM_80GBx8_TRT.json",  # 8 cards of 400 Gb/s
                ),
            ),
            Device(
                name="H200",
                kinds=("NVIDIA H200",),
                peak_flops=989.4e12,
                memory=141e9,
                memory_bandwidth=4.8e12,
                link_bandwidth=450e9,
                network_bandwidth=50e9,
                domain=8,
                source="NVIDIA H200 data sheet, SXM: 1,979 TFLOPS sparse, 900 GB/s both ways; DGX H200: 400 Gb/s a GPU",
                read_in=(
                    f"{LOCKWOOD}h100",  # the chip of the H100: 989.4 TFLOPS
                    "https://aiwiki.ai/wiki/nvidia_h200",  # 141 GB, 4.8 TB/s
                    f"{MLCOMMONS}v4.1: closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json",  # 900 GB/s, 400 Gb/s
                ),
            ),
            Device(
                name="B200",
                kinds=("NVIDIA B200",),
                peak_flops=2.25e15,
                memory=180e9,
                memory_bandwidth=8e12,
                link_bandwidth=900e9,
                network_bandwidth=50e9,
                domain=8,
                source="NVIDIA HGX B200 data sheet: 4.5 PFLOPS sparse, 1.8 TB/s both ways; DGX B200: 400 Gb/s a GPU",
                read_in=(
                    f"{LOCKWOOD}B200",  # 2,250 TFLOPS at 1,000 W
                    "https://brent-newsom-nvidia.github.io/AIPS-Boom/wiki/NVIDIA-DGX-B200",  # of 8: 1.44 TB, 64 TB/s
                    f"{MLCOMMONS}v6.0: closed/Nebius/systems/nebius_b200_n1.json",  # 180 GB, 8 cards of 400 Gb/s
                ),
            ),
            Device(
                name="GB200",
                kinds=("NVIDIA GB200",),
                peak_flops=2.5e15,
                memory=186e9,
                memory_bandwidth=8e12,
                link_bandwidth=900e9,
                network_bandwidth=50e9,
                domain=72,
                source="NVIDIA GB200 NVL72 data sheet: 360 PFLOPS sparse, 13.4 TB and 576 TB/s of 72 GPUs, 1.8 TB/s "
                "both ways; DGX GB200: 400 Gb/s a GPU",
                read_in=(
                    f"{LOCKWOOD}B200",  # 2,500 TFLOPS at 1,200 W, 8 TB/s, 900 GB/s each way
                    "https://aiwiki.ai/wiki/nvidia_gb200_nvl72",  # 72 GPUs: 13.4 TB, 1.8 TB/s each
                    f"{MLCOMMONS}v6.1: closed/Crusoe/systems/GB200-NVL72_GB200-186GB_aarch64x16_Dynamo.json",  # 186 GB
                ),
            ),
        )
    }
)


def get_device(name: str) -> Device:
    """The accelerator of that name, in any case of letters. An unknown one is a UsageError that lists all."""
    if name.upper() in DEVICES:
        return DEVICES[name.upper()]
    raise UsageError(f"no device is called {name!r}. There are {', '.join(DEVICES)}.")


def peak_flops(kind: str) -> float | None:
    """Peak of the device that JAX calls so; None where no data sheet was read."""
    return next((device.peak_flops for device in DEVICES.values() if kind in device.kinds), None)


def mfu(recipe: Recipe, device: Device, count: int, step_seconds: float) -> float:
    """Share of the peak that a measured step reaches: launcher's FLOPs a step, over seconds and all devices' peak."""
    return recipe.flops_per_step_with_lm_head / step_seconds / (count * device.peak_flops)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How long and how much, at an assumed share of the peak."""

    device: Device
    count: int
    mfu: float
    mfu_source: str
    step_seconds: float
    tokens_per_second: float
    hours: float  # of the run
    device_hours: float
    hours_at_peak: float  # nothing is faster
    state_bytes_per_device: float  # at least: spread evenly, without activations
    cost: float | None  # in whatever the price was given in

    def as_json(self) -> dict[str, Any]:
        """For `plan --json`, under "estimate"."""
        return {
            "device": self.device.name,
            "count": self.count,
            "source": self.device.source,
            "read_in": list(self.device.read_in),
            **{name: value for name, value in vars(self).items() if name not in ("device", "count")},
            "memory_of_device": self.device.memory,
        }


def estimate(
    recipe: Recipe, device: Device, count: int, *, share: float | None = None, price: float | None = None
) -> Estimate:
    """What a recipe takes on `count` devices at this share of the peak; None: the published one.

    `price` is that of one device for an hour. Raises UsageError for numbers that cannot be meant.
    """
    if count < 1:
        raise UsageError(f"--count {count}: at least one device is needed.")
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"--mfu {share}: a share of the peak, between 0 and 1.")
    measured = recipe.rung if recipe.rung in PUBLISHED_MFU else tuple(RUNGS)[-2]
    step = recipe.flops_per_step_with_lm_head / (count * device.peak_flops)
    reached = PUBLISHED_MFU[measured] if share is None else share
    hours = recipe.steps * step / reached / 3600
    return Estimate(
        device=device,
        count=count,
        mfu=reached,
        mfu_source="given" if share is not None else f"published for {measured} on GB200",
        step_seconds=step / reached,
        tokens_per_second=recipe.tokens_per_step * reached / step,
        hours=hours,
        device_hours=hours * count,
        hours_at_peak=hours * reached,
        state_bytes_per_device=recipe.total_parameters * BYTES_PER_PARAMETER / count,
        cost=None if price is None else hours * count * price,
    )
