"""One mixture-of-experts layer, forward and backward, against the machine's own matmul rate in the same run.

The layer is the model's own (`marin_model.experts.mixture`, dropless): router, top-k, combine weights, next bias,
latent projections and norm, routed experts, two shared experts. Default shape: the hero's routing geometry (384
experts, 8 a token, latent half of hidden) at hidden 256. Useful FLOPs are 3 x (routed + shared + router + latent)
without padding or recomputation; the rate to compare with is a float32 product of two 1024 x 1024 matrices. Routing is
balanced as quantile balancing leaves it: the bias was measured on other inputs than those timed.

Beside it, in the same run, a stand-in of upstream's method on a CPU: a ragged product (`jax.lax.ragged_dot`), which
there multiplies every row with every expert. Its cost a token does not depend on the number of tokens, so it is timed
on few.

    python benchmarks/moe_layer.py [--json result.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from marin_model import experts, router
from marin_model.config import ModelConfig
from marin_model.flops import TRAINING_PASSES, forward_flops_per_token, parameter_shapes
from marin_model.grouped import ExpertBank, ragged_swiglu
from marin_model.transport import Transport, transport_tokens

MATMUL = 1024  # side of the reference product
MATMULS = 5  # of them a round
COUNTED = ("routed_experts", "shared", "router", "latent")
DROPLESS = Transport.dropless()
BALANCING_ROUNDS = 8

Weights = dict[str, jax.Array]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Rates are of the fastest repetition; the median is given beside it, since a shared machine is noisy."""

    machine: str
    tokens: int
    matmul_gflops: float
    seconds: float
    seconds_median: float
    tokens_per_second: float
    useful_gflops: float
    share_of_matmul: float  # useful FLOP/s of the layer over the matmul's
    routed_seconds: float  # transport alone, forward and backward
    routed_share_of_matmul: float
    busiest_expert: float  # its load over the mean
    compile_seconds: float
    temporary_mib: float  # buffers of the compiled layer beside arguments and results
    peak_mib: float  # of the process, before the stand-in runs
    ragged_tokens: int  # the stand-in, routed part alone
    ragged_tokens_per_second: float
    ragged_share_of_matmul: float
    times_ragged: float  # routed tokens per second, ours over the stand-in's


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=8192)
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--experts", type=int, default=384)
    options.add_argument("--chosen", type=int, default=8)
    options.add_argument("--expert-width", type=int, default=128)
    options.add_argument("--repeat", type=int, default=20)
    options.add_argument("--ragged-tokens", type=int, default=64)
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    config = layer_config(asked.hidden, asked.experts, asked.chosen, asked.expert_width)
    result = measure(config, asked.tokens, asked.repeat, asked.ragged_tokens)
    text = json.dumps(asdict(result), indent=2)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")


def layer_config(hidden: int, num_experts: int, chosen: int, expert_width: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=1024,
        hidden_dim=hidden,
        latent_dim=hidden // 2,
        intermediate_dim=expert_width,
        shared_expert_intermediate_dim=hidden // 2,
        num_shared_experts=2,
        num_experts=num_experts,
        num_experts_per_token=chosen,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        local_kv_heads=2,
        global_kv_heads=1,
        head_dim=64,
        max_seq_len=512,
        sliding_window=128,
        global_every=4,
        initializer_std=0.5 / hidden**0.5,
    )


def draw_weights(config: ModelConfig) -> Weights:
    """The layer's arrays by name: matrices normal, gains one, bias zero."""
    random = np.random.RandomState(0)
    weights = {}
    for name, (_, *shape) in parameter_shapes(config).items():
        layer, _, bare = name.partition(".")
        if layer == "blocks" and bare.startswith(("mlp.", "shared")):
            drawn = config.initializer_std * random.randn(*shape) if len(shape) > 1 else np.ones(shape)
            weights[bare] = jnp.asarray(0 * drawn if bare == "mlp.router_bias" else drawn, jnp.float32)
    return weights


def balanced_bias(config: ModelConfig, weights: Weights, u: jax.Array, valid: jax.Array) -> jax.Array:
    """The router's bias after a few steps on u. [E]"""

    @jax.jit
    def step(bias: jax.Array) -> jax.Array:
        routed = router.route(u, weights["mlp.router"], bias, valid, config=config)
        return router.router_bias(router.qb_betas(routed.margins, valid, config=config))

    bias = weights["mlp.router_bias"]
    for _ in range(BALANCING_ROUNDS):
        bias = step(bias)
    return bias


def layer_gradients(config: ModelConfig, weights: Weights, u: jax.Array, valid: jax.Array, d_out: jax.Array) -> Any:
    """Gradients to weights and u, and what the layer measured on the way: all that a train step takes from it."""

    def loss(weights: Weights, u: jax.Array) -> tuple[jax.Array, Any]:
        out, _, stats = experts.mixture(u, weights, valid, config=config, transport=DROPLESS)
        return jnp.vdot(out, d_out), stats

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(weights, u)


def routed_gradients(product: Callable[..., jax.Array], z: jax.Array, routes: router.Routed, bank: ExpertBank) -> Any:
    def loss(z: jax.Array, weights: jax.Array, bank: ExpertBank) -> jax.Array:
        return jnp.sum(product(z, routes.selected, weights, bank) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(z, routes.weights, bank)


def transported(z: jax.Array, selected: jax.Array, weights: jax.Array, bank: ExpertBank) -> jax.Array:
    return transport_tokens(z, selected, weights, bank, transport=DROPLESS).out


def measure(config: ModelConfig, tokens: int, repeat: int, ragged_tokens: int) -> Result:
    random = np.random.RandomState(1)
    earlier, u, d_out = (jnp.asarray(random.randn(tokens, config.hidden_dim), jnp.float32) for _ in range(3))
    valid = jnp.ones(tokens, bool)
    weights = draw_weights(config)
    weights["mlp.router_bias"] = balanced_bias(config, weights, earlier, valid)
    routes = jax.jit(
        lambda u: router.route(u, weights["mlp.router"], weights["mlp.router_bias"], valid, config=config)
    )(u)
    bank = ExpertBank(*(weights[f"mlp.expert_mlp.{name}"] for name in ("w_gate", "w_up", "w_down")))
    z = u[:, : config.latent_dim]

    started = time.perf_counter()
    layer = jax.jit(layer_gradients, static_argnums=0).lower(config, weights, u, valid, d_out).compile()
    compiled = time.perf_counter() - started
    routed = jax.jit(routed_gradients, static_argnums=0)
    square = jnp.asarray(random.randn(MATMUL, MATMUL), jnp.float32)
    product = jax.jit(jnp.matmul)

    def matmul() -> jax.Array:
        return product(square, square)

    # Timed in turn, so that a neighbour's burst hits them alike; the short one more often.
    times = interleave(
        [
            *[matmul] * MATMULS,
            lambda: layer(weights, u, valid, d_out),
            lambda: routed(transported, z, routes, bank),
        ],
        repeat,
    )
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    few = jax.tree.map(lambda x: x[:ragged_tokens], (z, routes))
    ragged_times = interleave([matmul, lambda: routed(ragged_swiglu, *few, bank)], 3)

    *_, whole, part = (min(taken) for taken in times)
    ragged = min(ragged_times[1])
    peak = 2 * MATMUL**3 / min(min(taken) for taken in (*times[:MATMULS], ragged_times[0]))
    parts = {name: TRAINING_PASSES * flops for name, flops in forward_flops_per_token(config).items()}
    useful = tokens * sum(parts[name] for name in COUNTED)
    loads = jnp.bincount(routes.selected.reshape(-1), length=config.num_experts)
    return Result(
        machine=machine(),
        tokens=tokens,
        matmul_gflops=peak / 1e9,
        seconds=whole,
        seconds_median=sorted(times[MATMULS])[repeat // 2],
        tokens_per_second=tokens / whole,
        useful_gflops=useful / whole / 1e9,
        share_of_matmul=useful / whole / peak,
        routed_seconds=part,
        routed_share_of_matmul=tokens * parts["routed_experts"] / part / peak,
        busiest_expert=float(loads.max() / loads.mean()),
        compile_seconds=compiled,
        temporary_mib=layer.memory_analysis().temp_size_in_bytes / 2**20,
        peak_mib=peak_mib,
        ragged_tokens=ragged_tokens,
        ragged_tokens_per_second=ragged_tokens / ragged,
        ragged_share_of_matmul=ragged_tokens * parts["routed_experts"] / ragged / peak,
        times_ragged=(tokens / part) / (ragged_tokens / ragged),
    )


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


def interleave(calls: list[Callable[[], Any]], repeat: int) -> list[list[float]]:
    """Seconds of every call, `repeat` times each, taken in turn after one warm-up of each."""
    for call in calls:
        jax.block_until_ready(call())
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeat):
        for call, taken in zip(calls, times, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(call())
            taken.append(time.perf_counter() - started)
    return times


if __name__ == "__main__":
    main()
