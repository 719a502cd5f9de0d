"""Full float32 products for every test of the model. Its eight CPU devices come from tests/conftest.py."""

from __future__ import annotations

import jax

jax.config.update("jax_default_matmul_precision", "float32")
