"""Eight CPU devices and full float32 products for every test of the model."""

from __future__ import annotations

import os

# Read by XLA when its first device is made, so it must stand before any test touches JAX.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import jax

jax.config.update("jax_default_matmul_precision", "float32")
