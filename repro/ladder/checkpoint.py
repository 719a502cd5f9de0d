"""Checkpoints of a run: everything that the next step needs, saved whole or not at all, restored to the same bits.

    checkpoints/STEPS     one folder a checkpoint, named by completed updates (Orbax); a folder under another name,
                          which a killed process leaves behind, is none

A save runs beside whatever comes next, and is waited for before the state's buffers are given to another step: on a CPU
they are the very memory that is being written. The newest few are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from marin_model.training import TrainState
from repro.errors import OutputError, RecordError

FOLDER = "checkpoints"
KEEP = 2  # so that one is whole while another is being written


class Saved(NamedTuple):
    """What a checkpoint holds. The data's position is a function of the step, and nothing else is random."""

    state: TrainState  # masters, optimizer with its counters, pending quantiles, completed updates
    sphere_norms: dict[str, jax.Array]  # at initialisation: what norms on spheres are held to


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, open for writing."""

    folder: Path
    manager: Any

    def save(self, saved: Saved) -> None:
        """Begin to save; the arrays must stay as they are until `wait` returns. Raises OutputError."""
        with _save_errors(self.folder):
            self.manager.save(int(saved.state.step), args=ocp.args.StandardSave(saved))

    def wait(self) -> None:
        """Return when what was begun is on disk, whole. Raises OutputError where it could not be written."""
        with _save_errors(self.folder):
            self.manager.wait_until_finished()

    def latest(self) -> int | None:
        """Completed updates of the newest whole checkpoint; None where there is none."""
        return self.manager.latest_step()

    def restore(self, steps_completed: int, like: Any) -> Saved:
        """A checkpoint's arrays, on the devices of `like`, a `Saved` of arrays or shapes. Raises RecordError."""
        try:
            restored = self.manager.restore(steps_completed, args=ocp.args.StandardRestore(like))
        except (OSError, ValueError, KeyError) as error:
            raise RecordError(
                f"{self.folder}/{steps_completed} cannot be read as a checkpoint of this run: {error}. Remove that "
                "folder to resume from an earlier one."
            ) from error
        return Saved(*restored)


@contextmanager
def open_checkpoints(run: Path, *, keep: int = KEEP) -> Iterator[Checkpoints]:
    """The checkpoints of a run's folder; leaving waits for a save that is still under way. Raises OutputError."""
    folder = (run / FOLDER).absolute()
    with _save_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
        manager = ocp.CheckpointManager(folder, options=options)
    try:
        yield Checkpoints(folder, manager)
        with _save_errors(folder):
            manager.wait_until_finished()
    finally:
        manager.close()


@contextmanager
def _save_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # TensorStore reports a full disk as ValueError
        raise OutputError(
            f"cannot write a checkpoint into {folder}: {error}. Make room or choose another --out; the last whole "
            "checkpoint is untouched, and --resume goes on from it."
        ) from error
