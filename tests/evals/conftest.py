"""For the tests of evaluations: programs of tiny models are compiled quickly, not well, since each runs a moment."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

NAME = "jax_disable_most_optimizations"


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly() -> Iterator[None]:
    before = jax.config.read(NAME)
    jax.config.update(NAME, True)
    yield
    jax.config.update(NAME, before)
