"""What a batch must be, checked on the host before anything is compiled. Errors name the numbers and their place.

Values can only be read outside of `jax.jit`: traced arrays pass with their shapes checked alone.
"""

from typing import Any

import jax
import numpy as np

from marin_model import sharding
from marin_model.config import ModelConfig


def check_batch(config: ModelConfig, tokens: Any, segment_ids: Any = None, loss_weight: Any = None) -> None:
    """ValueError unless tokens are [B, S] ids of the vocabulary and segment ids [B, S] contiguous runs."""
    if np.ndim(tokens) != 2 or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"tokens: {tokens.dtype} {list(np.shape(tokens))}, expected integers [batch, sequence].")
    for name, array in (("segment_ids", segment_ids), ("loss_weight", loss_weight)):
        if array is not None and np.shape(array) != np.shape(tokens):
            raise ValueError(f"{name}: shape {list(np.shape(array))}, but tokens have {list(np.shape(tokens))}.")
    if not isinstance(tokens, jax.core.Tracer):
        _check_ids(config.vocab_size, np.asarray(tokens))
    if segment_ids is not None and not isinstance(segment_ids, jax.core.Tracer):
        _check_runs(np.asarray(segment_ids))


def check_divides(sequences: int, mesh: jax.sharding.Mesh | None) -> None:
    """ValueError where whole sequences cannot be dealt evenly to the devices of the mesh."""
    if mesh is not None and sequences % sharding.axis_size(mesh, sharding.AXES):
        devices = " x ".join(f"{axis} {mesh.shape[axis]}" for axis in sharding.AXES)
        raise ValueError(f"batch: {sequences} sequences do not divide over the mesh ({devices}).")


def _check_ids(vocabulary: int, tokens: np.ndarray) -> None:
    outside = (tokens < 0) | (tokens >= vocabulary)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        more = f", and {outside.sum() - 1} more" if outside.sum() > 1 else ""
        raise ValueError(
            f"tokens: id {tokens[row, column]} at row {row}, position {column}{more}; "
            f"the vocabulary has ids 0 to {vocabulary - 1}."
        )


def _check_runs(segment_ids: np.ndarray) -> None:
    """Negative ids are padding, which may lie in several places; any other id is one run of its row."""
    for row, ids in enumerate(segment_ids):
        opens = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))  # first position of each run
        runs = ids[opens]
        seen, first = np.unique(runs, return_index=True)
        again = np.setdiff1d(np.arange(len(runs)), first)
        again = again[runs[again] >= 0]
        if again.size:
            one = again[0]
            before = opens[first[np.searchsorted(seen, runs[one])]]
            raise ValueError(
                f"segment_ids: document {runs[one]} of row {row} begins at position {before} and again at "
                f"{opens[one]}; a document must be one contiguous run."
            )
