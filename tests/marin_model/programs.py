"""Looking into programs before they are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params


def largest_array(function: Callable[..., Any], *arguments: Any) -> int:
    """Elements of the largest intermediate array of a function, inside of loops and calls too."""
    return max(_sizes(jax.make_jaxpr(function)(*arguments).jaxpr))


def _sizes(jaxpr: Any) -> Iterator[int]:
    for equation in jaxpr.eqns:
        yield from (int(np.prod(out.aval.shape)) for out in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from _sizes(inner)
