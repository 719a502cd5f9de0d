"""One program on a mesh: every process reads its own rows, all meshes give one run, and a dead process is noticed.

Processes run `toy_training.py` over loopback at the scale of `toy_mesh.toml`: two racks of four expert shards. What
they must measure stands in `toy_mesh_losses.json`, made on one device:

    python tests/ladder/test_world.py
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from repro import runs
from repro.errors import UsageError
from repro.ladder.meshes import parse_mesh
from repro.ladder.world import ALONE, World, join_arguments, make_world

sys.path.insert(0, str(Path(__file__).parent))
from toy_training import ToyData, toy_recipe

SCALE = Path(__file__).with_name("toy_mesh.toml")
LOSSES = Path(__file__).with_name("toy_mesh_losses.json")
RECIPE = toy_recipe(SCALE, "d1024")
MESHES = ("2x1x4", "1x2x4", "1x1x4", "1x1x2", "2x1x1", "1x1x1")
KILLED, FATAL = -9, -6  # XLA ends a process whose peer is dead by SIGABRT


def start(out: Path, *arguments: object, devices: int = 1) -> subprocess.Popen[str]:
    """A training process with so many CPU devices."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
    }
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("toy_training.py")), str(out)]
    command += ["--scale", str(SCALE), "--rung", "d1024", *map(str, arguments)]
    return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env=environment)


def start_all(out: Path, mesh: str, processes: int, *arguments: object, last: tuple[object, ...] = ()) -> list[Any]:
    """All processes of a mesh; `last` are further arguments of the last one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    devices = int(np.prod(list(parse_mesh(mesh).values()))) // processes
    of_all = ("--mesh", mesh, "--coordinator", address, "--processes", processes, *arguments)
    return [
        start(out, *of_all, "--process", i, *(last if i == processes - 1 else ()), devices=devices)
        for i in range(processes)
    ]


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code, and what it said on standard error."""
    _, said = process.communicate(timeout=400)
    return process.returncode, said


def measured(run: Path) -> dict[str, list[float]]:
    """Losses and drops by step."""
    names = ("loss", "sender_drop_fraction", "receiver_drop_fraction")
    return {name: [row[name] for row in runs.read_metrics(run)] for name in names}


def assert_like_one_device(run: Path, steps: int) -> None:
    """Equal drops, and losses to rounding: sums over devices are made in another order."""
    found, expected = measured(run), json.loads(LOSSES.read_text())
    assert len(found["loss"]) == steps
    for name in ("sender_drop_fraction", "receiver_drop_fraction"):
        assert found[name] == expected[name][:steps]
    np.testing.assert_allclose(found["loss"], expected["loss"][:steps], rtol=0, atol=1e-5)


def test_two_processes_train_as_one_device_does_and_notice_when_one_is_killed(tmp_path: Path) -> None:
    first, second = start_all(tmp_path / "run", "2x1x2", 2, "--save-every", 0, last=("--die-before-step", 3))
    assert end(second)[0] == KILLED
    code, said = end(first)
    assert code == FATAL, said
    assert "marin-repro: another process of the run is gone" in said
    assert "with --resume" in said
    assert_like_one_device(tmp_path / "run", 3)
    (session,) = runs.read_manifest(tmp_path / "run").execution["sessions"]
    assert (session["processes"], session["mesh"]) == (2, {"replica": 2, "data": 1, "expert": 2})
    assert any((tmp_path / "run" / "checkpoints" / str(step)).is_dir() for step in (2, 3))


@pytest.mark.slow
def test_four_processes_and_eight_devices_make_one_run(tmp_path: Path) -> None:
    """Four processes of two devices are broken off, and one of eight resumes on a mesh of another shape."""
    out = tmp_path / "run"
    processes = start_all(out, "2x1x4", 4, last=("--die-before-step", 6))
    assert [end(one)[0] for one in processes] == [FATAL, FATAL, FATAL, KILLED]
    code, said = end(start(out, "--mesh", "1x2x4", "--resume", devices=8))
    assert code == 0, said
    assert_like_one_device(out, RECIPE.steps)
    assert end(start(tmp_path / "alone")) == (0, "")
    assert_like_one_device(tmp_path / "alone", RECIPE.steps)
    for found, expected in zip(
        *(runs.read_evaluations(run, runs.HELD_OUT) for run in (out, tmp_path / "alone")), strict=True
    ):
        for way in ("as_trained", "dropless"):
            assert found[way]["drop_fraction"] == expected[way]["drop_fraction"]
            assert found[way]["loss"] == pytest.approx(expected[way]["loss"], abs=1e-5)


@pytest.mark.parametrize("mesh", MESHES)
def test_every_device_gets_the_rows_of_its_racks_and_shards_once(mesh: str) -> None:
    world, data = make_world(RECIPE, parse_mesh(mesh)), ToyData(RECIPE)
    read: list[tuple[int, int]] = []

    def rows(span: tuple[int, int]) -> Any:
        read.append(span)
        return data.batch(5, *span)

    batch = world.place(RECIPE, rows, RECIPE.batch_size)
    numbers = [row for first, count in read for row in range(first, first + count)]
    assert sorted(numbers) == list(range(RECIPE.batch_size))
    np.testing.assert_array_equal(batch.tokens, np.asarray(data.batch(5).tokens)[numbers])
    # A device's rows are those of its part of the shards, in each rack it holds.
    sizes = parse_mesh(mesh)
    racks = RECIPE.racks // (sizes["replica"] * sizes["data"])
    by_device = np.reshape(numbers, (-1, sizes["expert"], racks, RECIPE.batch_size // RECIPE.racks // sizes["expert"]))
    shard_rows = RECIPE.batch_size // RECIPE.gpus
    for (row, column, rack, _), number in np.ndenumerate(by_device):
        assert number // (shard_rows * 4) == row * racks + rack
        assert number // shard_rows % 4 // (4 // sizes["expert"]) == column


def test_one_device_is_a_world_in_which_nothing_happens() -> None:
    assert make_world(RECIPE, None) == ALONE == World()
    assert ALONE.any_says(True, False) == (True, False)
    assert ALONE.first_does(lambda: 3) == 3
    assert ALONE.whole() is None
    (where,) = jax.tree.leaves(ALONE.shardings({"w": jax.ShapeDtypeStruct((2,), np.float32)}, RECIPE))
    assert where.device_set == {jax.devices()[0]}


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ("1x3", "d1024 at scale .* has 2 x 4 expert shards: a mesh of 1 replica x 1 data x 3 expert cannot hold"),
        ("4x2", "Replicas x data must divide 2, expert 4"),
    ],
)
def test_a_mesh_that_cannot_hold_the_shards_is_refused(mesh: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_world(RECIPE, parse_mesh(mesh))


def test_a_mesh_larger_than_the_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="needs 128 devices, 8 exist"):
        make_world(toy_recipe(Path("full"), "d1024"), parse_mesh("2x64"))


def test_processes_are_named_by_all_three_options_or_none() -> None:
    assert join_arguments(None, None, None) is None
    assert join_arguments("a:1", 2, 1) == {"coordinator_address": "a:1", "num_processes": 2, "process_id": 1}
    for given in (("a:1", None, None), ("a:1", 2, 2), (None, 2, 0), ("a:1", 2, -1)):
        with pytest.raises(UsageError, match="go together"):
            join_arguments(*given)


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp/toy_mesh_run")
    assert end(start(out))[0] == 0
    LOSSES.write_text(json.dumps(measured(out), indent=1) + "\n")
