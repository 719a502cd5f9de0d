"""An evaluation by two processes over loopback, each with two devices, is that of one process on one device."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.evals.toy_run import write_run

PROGRAM = Path(sys.executable).with_name("marin-repro")
TASKS = ("marin_cloze", "marin_patterns")
OPTIONS = ("--suite", "paloma,lm-eval", "--limit", "2", "--json", "--quiet", "--tasks", ",".join(TASKS))


def start(run: Path, *arguments: object, devices: int = 1) -> subprocess.Popen[str]:
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    }
    command = [str(PROGRAM), "eval", str(run), *OPTIONS, *map(str, arguments)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def together(run: Path, *last: object) -> list[tuple[int, str, str]]:
    """Exit codes, outputs and errors of two processes on a mesh of 2 x 2; `last`: further arguments of the second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    of_all = ("--mesh", "2x2", "--coordinator", address, "--processes", 2)
    return list(map(end, [start(run, *of_all, "--process", i, *(last if i else ()), devices=2) for i in range(2)]))


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, said = process.communicate(timeout=300)
    return process.returncode, out, said


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "toy", context=128)


def values(result: Any, place: str = "") -> dict[str, float]:
    """Every number of a result, by its place."""
    if isinstance(result, dict):
        return {name: n for key, one in result.items() for name, n in values(one, f"{place}/{key}").items()}
    return {place: float(result)} if isinstance(result, (int, float)) else {}


def test_two_processes_evaluate_as_one_device_does(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(run, alone)
    (first, out, said), (second, nothing, error) = together(run)
    assert (first, second) == (0, 0), said + error
    assert nothing == ""
    code, expected, said = end(start(alone))
    assert code == 0, said
    for found, of_one in zip(json.loads(out)["evaluations"], json.loads(expected)["evaluations"], strict=True):
        key = "metrics" if "metrics" in of_one["result"] else "results"
        numbers, ours = values(of_one["result"][key]), values(found["result"][key])
        assert len(numbers) > 3
        assert ours == {name: pytest.approx(value, rel=1e-5, abs=1e-5) for name, value in numbers.items()}
        assert found["result"]["inputs"] == of_one["result"]["inputs"]
        assert json.loads(Path(found["path"]).read_text()) == found["result"]
    (first, out, said), _ = together(run)
    assert first == 0, said
    assert [one["unchanged"] for one in json.loads(out)["evaluations"]] == [True, True]


def test_processes_that_were_told_different_things_all_refuse(run: Path) -> None:
    for code, out, said in together(run, "--router-bias", "pending"):
        assert (code, out) == (2, "")
        assert "The inputs of the evaluation are not the same in all processes" in said
        assert "Traceback" not in said
