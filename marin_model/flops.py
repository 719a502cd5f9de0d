"""Parameters and FLOPs of a model, counted in closed form, one named function a convention.

The public record mixes conventions: "535.3B" counts matrices only, the checkpoint holds 535,477,106,688 leaves;
"2.7e24" includes the LM head, the forecast's compute axis leaves it out. Each has its own function here, so that a
number can always be traced to the convention it was counted by. All results are exact integers.

Sources: the launcher's `_active_params` and `_compute_flops` (experiments/grug/moe_hero_ep at the run commit
12d8b6f0), and the total quoted in marin-community/marin#9277.
"""

from __future__ import annotations

from math import prod

from marin_model.config import ModelConfig

ATTENTION_SOFTMAX_FLOPS = 3  # a score: scale, exponential, sum (launcher's `_compute_flops`)
TRAINING_PASSES = 3  # forward, and a backward of twice its cost; recomputation is not counted


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every stored array by its flat name; `blocks.*` carry a leading layer axis. Matrices are [in, out]."""
    c = config
    d, latent, kv = c.hidden_dim, c.latent_dim, c.num_kv_heads * c.head_dim
    gated = {"w_down": (d, c.gated_norm_rank), "w_up": (c.gated_norm_rank, d)}
    block: dict[str, tuple[int, ...]] = {
        "rms_attn.weight": (d,),
        **{f"attn_gated_norm.{name}": shape for name, shape in gated.items()},
        "attn.w_q": (d, c.num_heads * c.head_dim),
        "attn.w_k": (d, kv),
        "attn.w_v": (d, kv),
        "attn.w_o": (c.num_heads * c.head_dim, d),
        "attn.attn_gate": (d, c.num_heads),
        "rms_mlp.weight": (d,),
        **{f"mlp_gated_norm.{name}": shape for name, shape in gated.items()},
        "mlp.router": (d, c.num_experts),
        "mlp.router_bias": (c.num_experts,),
        "mlp.expert_mlp.w_gate": (c.num_experts, latent, c.intermediate_dim),
        "mlp.expert_mlp.w_up": (c.num_experts, latent, c.intermediate_dim),
        "mlp.expert_mlp.w_down": (c.num_experts, c.intermediate_dim, latent),
        "mlp.w_latent_down": (d, latent),
        "mlp.latent_norm.weight": (latent,),
        "mlp.w_latent_up": (latent, d),
    }
    for j in range(c.num_shared_experts):
        block[f"shared{j}.w_gate"] = (d, c.shared_expert_intermediate_dim)
        block[f"shared{j}.w_up"] = (d, c.shared_expert_intermediate_dim)
        block[f"shared{j}.w_down"] = (c.shared_expert_intermediate_dim, d)
    if c.sconv:
        taps = {"k": ("attn.sconv_k.weight", kv), "attn": ("sconv_attn.weight", d), "mlp": ("sconv_mlp.weight", d)}
        for site in c.sconv_sites:
            name, channels = taps[site]
            block[name] = (c.sconv_kernel, channels)
    return {
        "token_embed": (c.vocab_size, d),
        "embed_norm.weight": (d,),
        **{f"embed_gated_norm.{name}": shape for name, shape in gated.items()},
        "output_proj": (d, c.vocab_size),
        **{f"blocks.{name}": (c.num_layers, *shape) for name, shape in block.items()},
        "final_norm.weight": (d,),
        **{f"final_gated_norm.{name}": shape for name, shape in gated.items()},
    }


def total_parameters(config: ModelConfig) -> int:
    """Every stored number of the checkpoint's weights: 535,477,106,688 for the hero (marin-community/marin#9277)."""
    return sum(prod(shape) for shape in parameter_shapes(config).values())


def active_parameters(config: ModelConfig) -> int:
    """Parameters a token multiplies with, by the launcher's rule, which sets the token horizon.

    Counted: Q, K, V, O with all stored KV heads, router, chosen experts, latent projections, shared experts. Left out:
    embedding, LM head, GatedNorms, head gates, convolutions, norm gains, router bias.
    """
    return config.num_layers * _matrices_per_layer(config, config.num_experts_per_token)


def matrix_parameters(config: ModelConfig) -> int:
    """The published "535.3B": matrices of the active rule with all experts, plus embedding and LM head."""
    vocabulary = 2 * config.vocab_size * config.hidden_dim
    return config.num_layers * _matrices_per_layer(config, config.num_experts) + vocabulary


def _matrices_per_layer(c: ModelConfig, experts: int) -> int:
    attention = 2 * c.hidden_dim * c.head_dim * (c.num_heads + c.num_kv_heads)
    router = c.hidden_dim * c.num_experts
    routed = experts * 3 * c.latent_dim * c.intermediate_dim
    latent = 2 * c.hidden_dim * c.latent_dim
    shared = c.num_shared_experts * 3 * c.hidden_dim * c.shared_expert_intermediate_dim
    return attention + router + routed + latent + shared


def forward_flops_per_token(config: ModelConfig, *, seq_len: int | None = None) -> dict[str, int]:
    """Forward FLOPs of one token by part; their sum is the launcher's figure.

    Conventions of the launcher: full spans without causal halving or document masks; `num_layers // global_every`
    full-causal layers (which counts 5 of d2048's 6); embedding lookup, norms, gates, convolutions and QB left out.
    """
    c = config
    seq = c.max_seq_len if seq_len is None else seq_len
    long = c.num_layers // c.global_every
    local = c.num_layers - long
    d, width = c.hidden_dim, c.num_heads * c.head_dim

    def attend(span: int) -> int:
        return 4 * span * width + ATTENTION_SOFTMAX_FLOPS * span * c.num_heads

    def qkv(kv_heads: int) -> int:
        return 2 * d * (width + 2 * kv_heads * c.head_dim)

    return {
        "routed_experts": c.num_layers * 6 * c.latent_dim * c.intermediate_dim * c.num_experts_per_token,
        "shared": c.num_layers * 6 * d * c.shared_expert_intermediate_dim * c.num_shared_experts,
        "router": c.num_layers * 2 * d * c.num_experts,
        "latent": c.num_layers * 4 * d * c.latent_dim,
        "o_proj": c.num_layers * 2 * width * d,
        "qkv": long * qkv(c.global_kv_heads) + local * qkv(c.local_kv_heads),
        "attn_scores": long * attend(seq) + local * attend(min(seq, c.sliding_window)),
        "lm_head": 2 * d * c.vocab_size,
    }


def training_flops_per_token(config: ModelConfig, *, lm_head: bool) -> int:
    """FLOPs of one token, forward and backward, with or without the LM head. The forecast's axis is without."""
    parts = forward_flops_per_token(config)
    return TRAINING_PASSES * (sum(parts.values()) - (0 if lm_head else parts["lm_head"]))
