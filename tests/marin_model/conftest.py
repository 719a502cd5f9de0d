"""Full float32 products for every test of the model. Its eight CPU devices come from tests/conftest.py.

Programs of a training step are compiled quickly, not well: each runs a moment. Elsewhere, and where products are in
bfloat16, how XLA fuses decides roundings, so those tests compile as the goldens' program was compiled.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_default_matmul_precision", "float32")
QUICKLY = "jax_disable_most_optimizations"
MODULES = ("test_optimizer", "test_training", "test_properties")


@pytest.fixture(autouse=True)
def compiled_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    before, module = jax.config.read(QUICKLY), request.module.__name__.rpartition(".")[2]
    jax.config.update(QUICKLY, module in MODULES and "bf16" not in request.node.name)
    yield
    jax.config.update(QUICKLY, before)
