"""One mixture-of-experts layer, forward and backward, against the machine's own matmul rate in the same run.

The layer is the model's feed-forward branch without its norm: router, top-k, combine weights, latent projections, routed
experts (dropless), two shared experts. Default shape: the hero's routing geometry (384 experts, 8 a token, latent half
of hidden) at hidden 256. Useful FLOPs are 3 x (routed + shared + router + latent) without padding or recomputation; the
rate to compare with is a float32 product of two 1024 x 1024 matrices. Routing is balanced as quantile balancing leaves
it: the bias comes from other inputs than those timed.

    python benchmarks/moe_layer.py [--json result.json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from marin_model.config import ModelConfig
from marin_model.flops import TRAINING_PASSES, forward_flops_per_token
from marin_model.transport import ExpertBank, Transport, transport_tokens

Params = dict[str, jax.Array]

MATMUL = 1024  # side of the reference product
COUNTED = ("routed_experts", "shared", "router", "latent")


@dataclass(frozen=True, kw_only=True)
class Result:
    """Rates are of the fastest repetition; the median is given beside it, since a shared machine is noisy."""

    device: str
    tokens: int
    matmul_gflops: float
    seconds: float
    seconds_median: float
    tokens_per_second: float
    useful_gflops: float
    share_of_matmul: float
    routed_seconds: float  # transport alone, forward and backward
    routed_share_of_matmul: float
    busiest_expert: float  # its load over the mean
    compile_seconds: float
    temporary_mib: float  # buffers of the compiled layer beside arguments and results
    peak_mib: float  # of the process


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=8192)
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--experts", type=int, default=384)
    options.add_argument("--chosen", type=int, default=8)
    options.add_argument("--expert-width", type=int, default=128)
    options.add_argument("--repeat", type=int, default=20)
    options.add_argument("--keep-memory", action="store_true", help="let malloc keep freed pages (glibc)")
    options.add_argument("--json", type=Path)
    asked = options.parse_args()
    if asked.keep_memory:
        keep_freed_memory()
    config = layer_config(asked.hidden, asked.experts, asked.chosen, asked.expert_width)
    result = measure(config, asked.tokens, asked.repeat)
    text = json.dumps(asdict(result), indent=2)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed memory instead of returning it: a page fault costs more than the work on its page."""
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_max = -1, -4  # malloc.h
    libc.mallopt(mmap_max, 0)
    libc.mallopt(trim_threshold, 2**31 - 1)


def layer_config(hidden: int, experts: int, chosen: int, expert_width: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=1024,
        hidden_dim=hidden,
        latent_dim=hidden // 2,
        intermediate_dim=expert_width,
        shared_expert_intermediate_dim=hidden // 2,
        num_shared_experts=2,
        num_experts=experts,
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


def draw_layer(config: ModelConfig, key: jax.Array) -> Params:
    c = config
    shapes = {
        "router": (c.hidden_dim, c.num_experts),
        "latent_down": (c.hidden_dim, c.latent_dim),
        "latent_gain": (c.latent_dim,),
        "latent_up": (c.latent_dim, c.hidden_dim),
        "w_gate": (c.num_experts, c.latent_dim, c.intermediate_dim),
        "w_up": (c.num_experts, c.latent_dim, c.intermediate_dim),
        "w_down": (c.num_experts, c.intermediate_dim, c.latent_dim),
    }
    for j in range(c.num_shared_experts):
        shapes[f"shared{j}_gate"] = shapes[f"shared{j}_up"] = (c.hidden_dim, c.shared_expert_intermediate_dim)
        shapes[f"shared{j}_down"] = (c.shared_expert_intermediate_dim, c.hidden_dim)
    keys = jax.random.split(key, len(shapes))
    return {
        name: c.initializer_std * jax.random.normal(k, shape)
        for (name, shape), k in zip(shapes.items(), keys, strict=True)
    }


def route(config: ModelConfig, router: jax.Array, bias: jax.Array, u: jax.Array) -> tuple[jax.Array, ...]:
    """u [T, D] -> scores [T, E], selected [T, K], combine weights [T, K], the (K+1)-th biased score [T, 1]."""
    scores = u @ router
    # The barrier keeps XLA's fast top-k on CPU: a slice fused into it falls back to a full sort.
    values, ids = lax.optimization_barrier(
        lax.top_k(lax.stop_gradient(scores + bias[None]), config.num_experts_per_token + 1)
    )
    selected = ids[:, :-1]
    p = jax.nn.sigmoid(jnp.take_along_axis(scores, selected, axis=1))
    return scores, selected, config.routing_renorm_sum * p / (p.sum(1, keepdims=True) + 1e-9), values[:, -1:]


def balanced_bias(config: ModelConfig, router: jax.Array, u: jax.Array) -> jax.Array:
    """Quantile balancing, a few rounds: each expert's margin that a fraction K/E of the tokens exceeds. [E]"""
    rank = max(1, u.shape[0] * config.num_experts_per_token // config.num_experts)
    bias = jnp.zeros(config.num_experts)
    for _ in range(8):
        scores, _, _, last = route(config, router, bias, u)
        beta = jnp.sort(scores - last, axis=0)[-rank]
        bias = beta.mean() - beta
    return bias


def moe_layer(config: ModelConfig, params: Params, bias: jax.Array, u: jax.Array) -> jax.Array:
    """u [T, D] float32 -> [T, D]."""
    _, selected, weights, _ = route(config, params["router"], bias, u)
    z = u @ params["latent_down"]
    z = z * lax.rsqrt(jnp.mean(z * z, axis=1, keepdims=True) + config.layer_norm_eps) * params["latent_gain"][None]
    bank = ExpertBank(params["w_gate"], params["w_up"], params["w_down"])
    out = transport_tokens(z, selected, weights, bank, transport=Transport.dropless()).out @ params["latent_up"]
    for j in range(config.num_shared_experts):
        out = (
            out
            + (jax.nn.silu(u @ params[f"shared{j}_gate"]) * (u @ params[f"shared{j}_up"])) @ params[f"shared{j}_down"]
        )
    return out


def measure(config: ModelConfig, tokens: int, repeat: int) -> Result:
    keys = jax.random.split(jax.random.key(0), 4)
    params = draw_layer(config, keys[0])
    earlier, u, d_out = (jax.random.normal(k, (tokens, config.hidden_dim)) for k in keys[1:])
    bias = balanced_bias(config, params["router"], earlier)

    def layer_gradients(params: Params, u: jax.Array) -> tuple[Params, jax.Array]:
        return jax.grad(lambda p, x: jnp.vdot(moe_layer(config, p, bias, x), d_out), argnums=(0, 1))(params, u)

    _, selected, weights, _ = route(config, params["router"], bias, u)
    bank = ExpertBank(params["w_gate"], params["w_up"], params["w_down"])
    z, d_z = u[:, : config.latent_dim], d_out[:, : config.latent_dim]

    def routed_gradients(z: jax.Array, weights: jax.Array, bank: ExpertBank) -> Any:
        def loss(z: jax.Array, weights: jax.Array, bank: ExpertBank) -> jax.Array:
            return jnp.vdot(transport_tokens(z, selected, weights, bank, transport=Transport.dropless()).out, d_z)

        return jax.value_and_grad(loss, argnums=(0, 1, 2))(z, weights, bank)

    square = jax.random.normal(keys[0], (MATMUL, MATMUL))
    product = jax.jit(jnp.matmul)
    started = time.perf_counter()
    layer = jax.jit(layer_gradients).lower(params, u).compile()
    compiled = time.perf_counter() - started
    routed = jax.jit(routed_gradients)
    # The three are timed in turn, so that a neighbour's burst hits them alike.
    times = interleave(
        [lambda: product(square, square), lambda: layer(params, u), lambda: routed(z, weights, bank)], repeat
    )
    matmul, whole, part = (min(t) for t in times)
    peak = 2 * MATMUL**3 / matmul
    parts = forward_flops_per_token(config)
    useful = TRAINING_PASSES * tokens * sum(parts[name] for name in COUNTED)
    loads = jnp.bincount(selected.reshape(-1), length=config.num_experts)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Result(
        device=jax.devices()[0].device_kind,
        tokens=tokens,
        matmul_gflops=peak / 1e9,
        seconds=whole,
        seconds_median=sorted(times[1])[repeat // 2],
        tokens_per_second=tokens / whole,
        useful_gflops=useful / whole / 1e9,
        share_of_matmul=useful / whole / peak,
        routed_seconds=part,
        routed_share_of_matmul=TRAINING_PASSES * tokens * parts["routed_experts"] / part / peak,
        busiest_expert=float(loads.max() / loads.mean()),
        compile_seconds=compiled,
        temporary_mib=layer.memory_analysis().temp_size_in_bytes / 2**20,
        peak_mib=rss / (2**20 if sys.platform == "darwin" else 2**10),
    )


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
