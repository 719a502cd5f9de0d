"""`marin-repro train` as its user meets it: what it says, where it writes, and what it refuses before it begins.

The data and the loop are real; the compiled step is a stand-in (tests/ladder/test_train.py trains).
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from marin_model.training import Batch, Metrics, TrainState
from repro import runs
from repro.cli import main
from repro.ladder import train as training
from repro.ladder.checkpoint import Saved

SCALE = """
tokens_per_active_parameter = 0.2
sequences_per_rack = 4
shards_per_rack = 2
[model]
vocab_size = 258
max_seq_len = 16
sliding_window = 8
head_dim = 8
gated_norm_rank = 4
num_experts = 12
num_experts_per_token = 2
[rungs]
d768 = { hidden_dim = 16, num_layers = 2 }
[mixture]
block_size = 20
topics = 2
phases = [[1, 1], [2, 3]]
[evaluation]
marks = 3
tokens = 128
"""
STEPS = 15


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scale") / "toy.toml"
    path.write_text(SCALE)
    return path


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are made beside one synthetic store."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that counts, and reads its batch; a state of a few numbers."""

    def begin(recipe: Any, checkpoints: Any, seed: int, *_: Any) -> Saved:
        state = TrainState({"w": jnp.ones(2)}, (), jnp.zeros((2, 12)), jnp.zeros([], jnp.int32))
        like = Saved(state, {"w": jnp.ones(2)})
        latest = checkpoints.latest()
        return like if latest is None else checkpoints.restore(latest, like)

    def compiled(recipe: Any, state: Any, batch: Batch, *_: Any) -> Any:
        def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
            assert batch.tokens.shape == batch.loss_weight.shape == (recipe.batch_size, recipe.seq_len)
            one, counts, none = (
                jnp.float32(jnp.mean(batch.tokens)),
                jnp.ones((2, 12), jnp.int32),
                jnp.zeros(2, jnp.int32),
            )
            groups = dict.fromkeys(("adam", "adamh", "muonh"), one)
            measured = Metrics(one, one, one, one, groups, {"w": jnp.ones(2)}, groups, counts, none, none)
            return state._replace(step=state.step + 1), measured

        return step

    losses = {way: {"loss": 2.0, "drop_fraction": 0.25} for way in ("as_trained", "dropless")}
    monkeypatch.setattr(training, "_begin", begin)
    monkeypatch.setattr(training, "_compiled_step", compiled)
    monkeypatch.setattr(training, "make_evaluation", lambda *_: lambda params: losses)


def run(*arguments: object, columns: int = 200) -> Any:
    return CliRunner().invoke(main.app, ["train", *map(str, arguments)], env={"COLUMNS": str(columns)})


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main.exit_code(["train", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()[-1]


def test_a_rung_is_trained_on_the_synthetic_corpus_and_resumed(runs_folder: Path, scale: Path) -> None:
    out = runs_folder / "a"
    first = run("d768", "--scale", scale, "--out", out, "--steps", 7, "--json", "--tensorboard")
    assert first.exit_code == 0, first.exception
    result = json.loads(first.stdout)
    assert (result["steps_completed"], result["finished"], result["metrics"]["step"]) == (7, False, 6)
    assert f"{STEPS} steps" in first.stderr
    assert "entropy rate" in first.stderr
    assert "33%  held-out loss 2.0000 nats/token, 2.0000 as trained (25.0% dropped)" in first.stderr
    second = run("d768", "--scale", scale, "--out", out, "--resume", "--quiet")
    assert second.stdout == f"{out}: {STEPS} of {STEPS} steps, finished\n"
    assert second.stderr == ""
    assert [row["step"] for row in runs.read_metrics(out)] == list(range(STEPS))
    assert len(list(out.glob("tensorboard/events.*"))) == 1
    identity = runs.read_manifest(out).identity
    assert identity["record"]["name"] == "marin_535b"
    assert 0 < identity["entropy"]["rate"] < identity["entropy"]["unigram"]
    assert {"corpus", "tokenizer", "hidden width"} <= {one["what"] for one in identity["departures"]}
    assert (runs_folder / "harrier-synthetic-toy" / "manifest.json").is_file()


def test_a_store_of_ones_own_is_read(runs_folder: Path, scale: Path, tmp_path: Path) -> None:
    from repro.ladder.corpus import StoreSpec, build_store
    from repro.ladder.sources import text_files
    from repro.ladder.tokenizing import load_tokenizer

    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"Text number {number}. " * 20)
    spec = StoreSpec(
        sources={"own": text_files(sorted(tmp_path.glob("*.txt")))}, tokenizer=load_tokenizer("bytes"), held_out=0.2
    )
    build_store(spec, tmp_path / "store")
    own = tmp_path / "own.toml"
    own.write_text(SCALE + "\n")
    result = run("d768", "--scale", own, "--data", tmp_path / "store", "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.exception
    identity = runs.read_manifest(tmp_path / "run").identity
    assert identity["entropy"] is None
    assert identity["data"]["phases"][1]["weights"] == {"own": 1.0}


def test_the_default_folder_names_rung_and_scale(
    scale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_folder: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    store = runs_folder / "harrier-synthetic-toy"
    result = run("d768", "--scale", scale, "--data", store, "--steps", 1, "--quiet")
    assert result.stdout.startswith("runs/d768-toy: 1 of 15 steps, stopped, as asked; 14 left")
    assert (tmp_path / "runs" / "d768-toy" / runs.MANIFEST).is_file()


def test_what_cannot_be_trained_is_refused_and_nothing_is_written(
    scale: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out" / "run"
    assert "has steps 1 to 15" in refusal(capsys, "d768", "--scale", scale, "--steps", 0, "--out", out)
    assert "no scale is called 'smok'" in refusal(capsys, "d768", "--scale", "smok", "--out", out)
    assert "has no rung d2048" in refusal(capsys, "d2048", "--scale", scale, "--out", out)
    assert "is not a token store" in refusal(capsys, "d768", "--scale", scale, "--data", tmp_path, "--out", out)
    assert "Name the folder of a token store" in refusal(capsys, "d768", "--out", out)
    assert "is not a run" in refusal(capsys, "d768", "--scale", scale, "--out", out, "--resume")
    assert not (out / runs.MANIFEST).exists()


def test_a_store_of_another_tokenizer_is_refused(
    scale: Path, runs_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small.toml"
    small.write_text(SCALE.replace("vocab_size = 258", "vocab_size = 257"))
    store = runs_folder / "harrier-synthetic-toy"
    message = refusal(capsys, "d768", "--scale", small, "--data", store, "--out", tmp_path / "run")
    assert "bytes (258 ids, BOS 256, EOS 257)" in message
    assert "a vocabulary of 257" in message


def test_a_run_that_is_there_is_not_overwritten(
    scale: Path, runs_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "holds a run already" in refusal(capsys, "d768", "--scale", scale, "--out", runs_folder / "a")


def test_an_interrupt_leaves_with_130(
    scale: Path, runs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import signal

    monkeypatch.setattr(
        training, "make_evaluation", lambda *_: lambda params: os.kill(os.getpid(), signal.SIGINT) or {}
    )
    store, out = runs_folder / "harrier-synthetic-toy", tmp_path / "run"
    monkeypatch.setattr("repro.cli.train._evaluation_line", lambda result: "")
    arguments = ["train", "d768", "--scale", scale, "--data", store, "--out", out, "--quiet"]
    assert main.exit_code([*map(str, arguments)]) == 130
    assert runs.read_manifest(out).execution["sessions"][0]["outcome"] == "KeyboardInterrupt"
    assert [row["step"] for row in runs.read_metrics(out)] == [0, 1, 2, 3, 4]
    assert run(*arguments[1:-1], "--resume", "--steps", 5, "--quiet").exit_code == 0  # step 5 was saved


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['jax'] = None\n"
        "from repro.cli.main import run\n"
        "run(['train', 'd768', '--scale', 'smoke', '--out', '/nonexistent/run'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'marin-repro[train]'" in done.stderr, done.stderr


def test_the_example_of_the_help_is_a_call_that_parses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = run("--help").stdout
    example = next(line for line in text.splitlines() if "Example:" in line)
    program, command, *arguments = shlex.split(example.split("Example:")[1].strip(" │"))
    assert (program, command) == ("marin-repro", "train")
    monkeypatch.chdir(tmp_path)
    assert run(*arguments, "--steps", "1000").exception.args[0].startswith("--steps 1000: a run of d768")
