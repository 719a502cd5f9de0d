"""Checkpoints: whole or not there, few, and the same bits; a disk that takes no more leaves the last one."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from marin_model.training import TrainState
from repro.errors import OutputError, RecordError
from repro.ladder.checkpoint import FOLDER, Saved, open_checkpoints


def state(step: int, size: int = 8) -> Saved:
    """Arrays of the kinds a state has, whose bits are no round numbers."""
    values = jnp.asarray(np.random.default_rng(step).standard_normal(size), jnp.float32)
    optimizer = {"count": jnp.asarray(step, jnp.int32), "momentum": values * 1e-30}
    return Saved(TrainState({"w": values}, optimizer, values[None], jnp.asarray(step, jnp.int32)), {"w": values[:1]})


def test_what_is_restored_has_the_same_bits(tmp_path: Path) -> None:
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(3))
    with open_checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() == 3
        found = checkpoints.restore(3, state(0))
    wanted = state(3)
    assert type(found.state) is TrainState
    assert (
        np.asarray(found.state.optimizer["momentum"]).tobytes()
        == np.asarray(wanted.state.optimizer["momentum"]).tobytes()
    )
    assert int(found.state.step) == int(found.state.optimizer["count"]) == 3


def test_the_newest_are_kept(tmp_path: Path) -> None:
    with open_checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest() is None
        for step in (1, 2, 30):
            checkpoints.save(state(step))
            checkpoints.wait()
    assert sorted(int(path.name) for path in (tmp_path / FOLDER).iterdir()) == [2, 30]


def test_a_half_written_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(1))
    (tmp_path / FOLDER / "2.orbax-checkpoint-tmp-0").mkdir()
    with open_checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax drops its other reads
def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(1))
        checkpoints.wait()
        with pytest.raises(RecordError, match="cannot be read as a checkpoint of this run"):
            checkpoints.restore(1, state(0, size=9))
    gc.collect()  # what Orbax drops is to be heard here, not in another test


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax drops its other reads
def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state(1))
    for path in (tmp_path / FOLDER / "1" / "default").rglob("*"):
        if path.parent.name == "d":
            path.write_bytes(path.read_bytes()[:-5])
    with open_checkpoints(tmp_path) as checkpoints, pytest.raises(RecordError, match="Remove that folder"):
        checkpoints.restore(1, state(0))
    gc.collect()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_checkpoint import state
from repro.errors import OutputError
from repro.ladder.checkpoint import open_checkpoints

run = Path({run!r})
with open_checkpoints(run) as checkpoints:
    checkpoints.save(state(1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open_checkpoints(run) as checkpoints:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
        checkpoints.save(state(2, size=2**20))
        checkpoints.wait()
except OutputError as error:
    print(error)
"""


def test_a_full_disk_is_a_clear_error_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the write fails half way in the same place."""
    code = FULL_DISK.format(here=str(Path(__file__).parent), run=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "cannot write a checkpoint into" in done.stdout, done.stderr
    with open_checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() == 1
        checkpoints.restore(1, state(0))


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write a checkpoint"), open_checkpoints(tmp_path / "file"):
        pass
