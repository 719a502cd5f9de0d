"""A small model with everything that a pass in pieces could get wrong: both kinds of layer, a window, several KV heads.

All arrays are drawn, also gains, taps and biases, which start as constants in training: a forgotten one shows.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from marin_model import model
from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes
from marin_model.transport import Transport

CONFIG = ModelConfig(
    vocab_size=258,
    hidden_dim=32,
    latent_dim=16,
    intermediate_dim=16,
    shared_expert_intermediate_dim=16,
    num_shared_experts=2,
    num_experts=8,
    num_experts_per_token=2,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    local_kv_heads=2,
    global_kv_heads=1,
    head_dim=8,
    max_seq_len=64,
    sliding_window=16,
    global_every=2,
    gated_norm_rank=8,
    initializer_std=0.1,
)


@cache
def params() -> dict[str, jax.Array]:
    draw = np.random.default_rng(0)
    arrays = {}
    for name, shape in parameter_shapes(CONFIG).items():
        noise = draw.standard_normal(shape).astype(np.float32)
        gain = name.endswith("norm.weight") or "rms_" in name
        arrays[name] = jnp.asarray(
            1 + 0.2 * noise if gain else noise / np.sqrt(max(shape[-2], 8)) if len(shape) > 1 else 0.2 * noise
        )
    return arrays


def random_tokens(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, length)).astype(np.int32)


@jax.jit
def _hidden(params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
    return model.transformer(params, tokens, None, config=CONFIG, transport=Transport.dropless()).hidden


def hidden_states(tokens: np.ndarray) -> np.ndarray:
    """Hidden states [B, S, D] of rows of one document each, by the model's own pass."""
    return np.asarray(_hidden(params(), jnp.asarray(tokens)))


def log_probabilities(tokens: np.ndarray) -> np.ndarray:
    """[B, S, V] float64: log-probability of each token of the vocabulary behind each position."""
    logits = hidden_states(tokens).astype(np.float64) @ np.asarray(params()["output_proj"], np.float64)
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
