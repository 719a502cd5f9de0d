"""Whole training steps, optimizer included, against the machine's own matmul rate and a stand-in in the same run.

Three shapes: `perf`, the one upstream's own step was timed with on a CPU (batch 8 x 512); `d128`, a narrow model with
the hero's 384 experts; and, where a GPU is found, `d768`, the ladder's first rung in bfloat16.

FLOPs are the launcher's (`marin_model.flops`): forward and backward with the LM head; norms, gates, convolutions,
balancing, recomputation and the optimizer are work that counts for nothing. The rate to compare with is a product of
two square matrices in the compute dtype.

The stand-in is the same step made as upstream's local CPU path makes it: every expert product a `jax.lax.ragged_dot`,
which on a CPU costs as many dense products as there are experts; attention over all pairs of positions with a mask;
each layer computed again in the backward pass. Its loss, norms, histogram and optimizer are ours, which flatters it.
Both are timed in turn, so that a neighbour's burst hits them alike. `--stand-in` adds it for `d128` too, which takes
minutes.

    python benchmarks/train_step.py perf d128 [--json result.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from marin_model import attention, grouped
from marin_model.config import ModelConfig
from marin_model.flops import training_flops_per_token
from marin_model.initial import init_arrays
from marin_model.optimizer import OptimizerConfig
from marin_model.training import Batch, TrainState, init_train_state, make_train_step
from repro.ladder.rungs import get_rung

# Upstream's own step, `perf` shape, on two cores of another machine (Xeon with AMX, JAX 0.11.2), tokens per second:
UPSTREAM_LOCAL = 1499.0  # one device, ragged product
UPSTREAM_TWO_DEVICES = 5144.0  # two host devices, pooled waves with drops

OPTIMIZER = OptimizerConfig(learning_rate=0.0158, adam_lr=0.00365, steps=10_000, beta2=0.95, epsilon=1e-15)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is trained, on how much at once."""

    config: ModelConfig
    batch: int
    seq_len: int
    dtype: str = "float32"
    remat: bool = False
    matmul: int = 1024  # side of the reference product

    @property
    def tokens(self) -> int:
        return self.batch * self.seq_len


@dataclass(frozen=True, kw_only=True)
class Result:
    """Rates are of the fastest repetition; the median is beside it, since a shared machine is noisy."""

    machine: str
    shape: str
    dtype: str
    tokens: int
    seconds: float
    seconds_median: float
    processor_seconds: float  # of all threads, the least of a repetition
    tokens_per_second: float
    matmul_gflops: float
    share_of_matmul: float
    compile_seconds: float
    peak_mib: float  # arguments, results and temporaries of the compiled step
    stand_in_seconds: float | None
    stand_in_processor_seconds: float | None
    stand_in_peak_mib: float | None
    times_stand_in: float | None  # tokens per second over the stand-in's


def main() -> None:
    shapes = known_shapes()
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("shapes", nargs="*", default=list(shapes), help=f"of {', '.join(shapes)}; default all")
    options.add_argument("--repeat", type=int, default=12)
    options.add_argument("--stand-in", action="store_true", help="time the stand-in for other shapes than perf too")
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    if unknown := set(asked.shapes) - set(shapes):
        options.error(f"unknown shape {', '.join(sorted(unknown))}; there are {', '.join(shapes)}")
    results = []
    for name in asked.shapes:
        stand_in = name == "perf" or asked.stand_in
        results.append(measure(name, shapes[name], repeat=asked.repeat, stand_in=stand_in))
        print_result(results[-1])
    if asked.json:
        asked.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")


def known_shapes() -> dict[str, Shape]:
    """By name; d768 only where a GPU is found."""
    shapes = {
        "perf": Shape(config=narrow(num_experts=32, chosen=4, layers=4), batch=8, seq_len=512),
        "d128": Shape(config=narrow(num_experts=384, chosen=8, layers=4), batch=8, seq_len=512),
    }
    if jax.default_backend() == "gpu":
        rung = get_rung("d768").model
        shapes["d768"] = Shape(config=rung, batch=8, seq_len=4096, dtype="bfloat16", remat=True, matmul=8192)
    return shapes


def narrow(*, num_experts: int, chosen: int, layers: int) -> ModelConfig:
    """Hidden 128, proportioned as upstream's timing was."""
    hidden = 128
    return ModelConfig(
        vocab_size=1024,
        hidden_dim=hidden,
        latent_dim=hidden // 2,
        intermediate_dim=hidden // 2,
        shared_expert_intermediate_dim=hidden // 2,
        num_shared_experts=2,
        num_experts=num_experts,
        num_experts_per_token=chosen,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        local_kv_heads=2,
        global_kv_heads=1,
        head_dim=32,
        max_seq_len=512,
        sliding_window=128,
        global_every=4,
        qb_hist_bins=1000,
        initializer_std=0.5 / hidden**0.5,
    )


def measure(name: str, shape: Shape, *, repeat: int, stand_in: bool) -> Result:
    ours = compiled_step(shape, remat=shape.remat)
    other = as_upstream(lambda: compiled_step(shape, remat=True)) if stand_in else None
    square = jnp.asarray(np.random.RandomState(0).randn(shape.matmul, shape.matmul), shape.dtype)
    product = jax.jit(jnp.matmul)
    calls = [lambda: product(square, square), ours.again, *([other.again] if other else [])]
    times, processor_times = interleave(calls, repeat)
    matmul, fastest, *fastest_other = (min(taken) for taken in times)
    peak = 2 * shape.matmul**3 / matmul
    flops = shape.tokens * training_flops_per_token(shape.config, lm_head=True)
    return Result(
        machine=machine(),
        shape=name,
        dtype=shape.dtype,
        tokens=shape.tokens,
        seconds=fastest,
        seconds_median=sorted(times[1])[repeat // 2],
        processor_seconds=min(processor_times[1]),
        tokens_per_second=shape.tokens / fastest,
        matmul_gflops=peak / 1e9,
        share_of_matmul=flops / fastest / peak,
        compile_seconds=ours.compile_seconds,
        peak_mib=ours.peak_mib,
        stand_in_seconds=fastest_other[0] if other else None,
        stand_in_processor_seconds=min(processor_times[2]) if other else None,
        stand_in_peak_mib=other.peak_mib if other else None,
        times_stand_in=fastest_other[0] / fastest if other else None,
    )


class CompiledStep:
    """A step and the state it has reached: steps donate their state, so each call goes on from the last."""

    def __init__(self, step: Callable[..., Any], state: TrainState, batch: Batch, compile_seconds: float) -> None:
        self.step, self.state, self.batch, self.compile_seconds = step, state, batch, compile_seconds

    def again(self) -> Any:
        self.state, metrics = self.step(self.state, self.batch)
        return self.state, metrics

    @property
    def peak_mib(self) -> float:
        """The state's buffers are given and returned, and counted once."""
        m = self.step.memory_analysis()  # type: ignore[attr-defined]
        used = m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes
        return used / 2**20


def compiled_step(shape: Shape, *, remat: bool) -> CompiledStep:
    config = shape.config
    state = init_train_state(init_arrays(config, jax.random.key(0)), OPTIMIZER)
    tokens = np.random.RandomState(0).randint(0, config.vocab_size, (shape.batch, shape.seq_len))
    batch = Batch(jnp.asarray(tokens, jnp.int32), jnp.ones(tokens.shape).at[:, -1].set(0))
    step = make_train_step(config, OPTIMIZER, compute_dtype=jnp.dtype(shape.dtype), remat=remat)
    started = time.perf_counter()
    compiled = step.lower(state, batch).compile()
    return CompiledStep(compiled, state, batch, time.perf_counter() - started)


def as_upstream(make: Callable[[], CompiledStep]) -> CompiledStep:
    """Make a step with upstream's ways in place of ours for experts and attention."""
    with (
        mock.patch.object(grouped, "_blocked_swiglu", grouped.ragged_swiglu),
        mock.patch.object(attention, "attend_blocks", attention.attend_dense),
    ):
        return make()


def interleave(calls: list[Callable[[], Any]], repeat: int) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds and processor seconds of every call, `repeat` times each, taken in turn after one warm-up of each."""
    for call in calls:
        jax.block_until_ready(call())
    times: list[list[float]] = [[] for _ in calls]
    processor_times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat):
        for i, call in enumerate(calls):
            started, processor_started = time.perf_counter(), time.process_time()
            jax.block_until_ready(call())
            times[i].append(time.perf_counter() - started)
            processor_times[i].append(time.process_time() - processor_started)
    return times, processor_times


def machine() -> str:
    """The accelerator, or the processors as Linux names them."""
    device = jax.devices()[0].device_kind
    listed = Path("/proc/cpuinfo")
    if device != "cpu" or not listed.exists():
        return f"{platform.machine()} {device}"
    names = [
        line.partition(":")[2].strip() for line in listed.read_text().splitlines() if line.startswith("model name")
    ]
    return f"{len(names)} x {names[0] if names else platform.machine()}"


def print_result(r: Result) -> None:
    print(f"{r.shape}, {r.dtype}, {r.tokens:,} tokens a step, on {r.machine}")
    print(f"  {r.tokens_per_second:,.0f} tokens/s: {r.seconds:.3f} s a step, median {r.seconds_median:.3f}")
    print(f"  {r.share_of_matmul:.1%} of this run's matmul rate, {r.matmul_gflops:.1f} GFLOP/s")
    print(f"  {r.compile_seconds:.1f} s to compile, {r.peak_mib:,.0f} MiB, {r.processor_seconds:.2f} processor seconds")
    if r.stand_in_seconds is not None:
        print(
            f"  {r.times_stand_in:.1f} times the stand-in's tokens/s ({r.tokens / r.stand_in_seconds:,.0f}; "
            f"{r.stand_in_peak_mib:,.0f} MiB, {r.stand_in_processor_seconds:.2f} processor seconds)"
        )
    if r.shape == "perf":
        print(
            f"  upstream on another machine: {UPSTREAM_LOCAL:,.0f} tokens/s on one device, "
            f"{UPSTREAM_TWO_DEVICES:,.0f} on two host devices"
        )


if __name__ == "__main__":
    main()
