"""Training a toy rung: killed runs resume to the same bits, and what must not go on stops with a reason.

Processes that really die run `toy_training.py`; they share a cache of compiled programs and compile without
optimisation, which is what takes the time.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_model.training import Batch, Metrics
from repro import runs
from repro.errors import OutputError, RecordError, TrainingError, UsageError
from repro.ladder import train as training
from repro.ladder.checkpoint import Saved, open_checkpoints
from repro.ladder.recipe import resolve_recipe

sys.path.insert(0, str(Path(__file__).parent))
from toy_training import SCALE, ToyData, toy_recipe

RATES = {"tokens_per_second", "mfu"}  # of a machine, not of a run
KILLED = -9
SAID = "said"  # beside a run: what its last process wrote to standard error

Process = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Process:
    """Run toy_training.py with these arguments in a process of its own."""
    cache = tmp_path_factory.mktemp("compiled")
    root = Path(__file__).parent.parent.parent
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_LOG_COMPILES": "1",
    }

    def start(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", str(Path(__file__).with_name("toy_training.py"))]
        return subprocess.run(
            [*command, *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
        )

    return start


@pytest.fixture(scope="module")
def whole(process: Process, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = process(out)
    assert done.returncode == 0, done.stderr
    (out.parent / SAID).write_text(done.stderr)
    return out


@pytest.fixture(scope="module")
def disturbed(process: Process, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, killed at three random steps and during a write, then asked to stop, then left in peace."""
    out = tmp_path_factory.mktemp("disturbed") / "run"
    kills = sorted(random.sample(range(1, 30), 3))
    mark = next(step for step in toy_recipe().evaluation_steps if step > kills[-1])
    expected = (*((KILLED, "--die-before-step", step) for step in kills), (KILLED, "--die-while-saving", mark))
    for number, (code, *how) in enumerate((*expected, (130, "--stop-after-step", mark), (0,))):
        done = process(out, *(["--resume"] if number else []), *how)
        assert done.returncode == code, (kills, how, done.stderr)
        (out.parent / SAID).write_text(done.stderr)
    return out


def final_state(run: Path) -> Saved:
    with open_checkpoints(run) as checkpoints:
        assert checkpoints.latest() == toy_recipe().steps
        return training._begin(toy_recipe(), checkpoints, 0)


def test_a_killed_run_resumes_to_the_same_bits(whole: Path, disturbed: Path) -> None:
    first, second = (jax.tree.leaves_with_path(final_state(run)) for run in (whole, disturbed))
    assert len(first) == len(second) > 60
    for (path, one), (_, other) in zip(first, second, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), path


def test_a_killed_run_has_the_same_metrics_and_evaluations(whole: Path, disturbed: Path) -> None:
    rows = [
        [{name: value for name, value in row.items() if name not in RATES} for row in runs.read_metrics(run)]
        for run in (whole, disturbed)
    ]
    assert [row["step"] for row in rows[0]] == list(range(toy_recipe().steps))
    assert rows[0] == rows[1]
    names = [sorted(path.name for path in (run / runs.EVALS).iterdir()) for run in (whole, disturbed)]
    assert names[0] == names[1] == [f"heldout-{step:08d}.json" for step in (7, 15, 22, 30, 37)]
    for name in names[0]:
        assert (whole / runs.EVALS / name).read_bytes() == (disturbed / runs.EVALS / name).read_bytes()


def test_nothing_is_compiled_between_steps(whole: Path, disturbed: Path) -> None:
    """One update, and one evaluation each way: for five evaluations, and for a session that resumes."""
    for run in (whole, disturbed):
        compiled = Counter(re.findall(r"Compiling (\S+) with global shapes", (run.parent / SAID).read_text()))
        assert (compiled["jit(step)"], compiled["jit(sums)"]) == (1, 2), (run, compiled)


def test_the_comparison_above_can_fail(whole: Path) -> None:
    """Two steps of one run differ, so equality says something."""
    with open_checkpoints(whole) as checkpoints:
        assert checkpoints.manager.all_steps() == [30, 37]  # the newest two are kept
        like = jax.eval_shape(lambda saved: saved, final := training._begin(toy_recipe(), checkpoints, 0))
        earlier = checkpoints.restore(30, like)
    assert not np.array_equal(earlier.state.params["output_proj"], final.state.params["output_proj"])


def test_the_manifest_says_what_the_run_is_and_how_it_went(whole: Path, disturbed: Path) -> None:
    first, second = runs.read_manifest(whole), runs.read_manifest(disturbed)
    assert first.identity == second.identity
    assert first.identity["departures"][-1] == {"what": "corpus", "published": "store_81e7e39a", "here": "toy"}
    assert first.identity["recipe"]["steps"] == 37
    assert str(SCALE.parent) not in json.dumps(first.identity)  # a path is not what a run is
    assert [one["outcome"] for one in first.execution["sessions"]] == ["finished"]
    outcomes = [one["outcome"] for one in second.execution["sessions"]]
    assert outcomes == ["running"] * 4 + ["KeyboardInterrupt", "finished"]


def test_other_code_is_another_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = toy_recipe()
    assert training._identity(recipe, ToyData(recipe), None, 0)["code"] == training.code_digest()
    (tmp_path / "train.py").write_text(Path(training.__file__).read_text() + "# a comment\n")
    before = training.code_digest()
    monkeypatch.setattr(training, "__file__", str(tmp_path / "train.py"))
    assert training.code_digest() != before


def test_another_seed_is_another_run_and_a_departure() -> None:
    recipe = toy_recipe()
    published, other = (training._identity(recipe, ToyData(recipe), None, seed) for seed in (0, 3))
    assert (published["seed"], other["seed"]) == (0, 3)
    assert other["departures"][-1] == {"what": "seed of weights and data order", "published": 0, "here": 3}
    assert other["departures"][:-1] == published["departures"]


def test_each_step_is_measured(whole: Path) -> None:
    recipe, rows = toy_recipe(), runs.read_metrics(whole)
    model = recipe.model
    for row in rows:
        assert row["tokens"] == (row["step"] + 1) * recipe.tokens_per_step
        assert row["loss"] == pytest.approx(row["ce"] + row["z_loss"], rel=1e-6)
        assert row["grad_norm"] ** 2 == pytest.approx(sum(norm**2 for norm in row["grad_norms"].values()), rel=1e-5)
        assert 0 < row["router_entropy"] <= np.log(model.num_experts) + 1e-12
        assert 1 <= row["router_max_load"] <= model.num_experts
        assert row["sphere_norm_drift"] < 1e-5
        assert 0 <= row["sender_drop_fraction"] + row["receiver_drop_fraction"] < 0.5
        assert row["qb_range"] > 0
    assert rows[0]["lr"]["muonh"] == pytest.approx(recipe.muonh_learning_rate)
    assert any(row["receiver_drop_fraction"] > 0 for row in rows)
    assert rows[-1]["ce"] < rows[0]["ce"] - 0.3


def test_evaluations_carry_what_a_fit_needs(whole: Path) -> None:
    recipe, found = toy_recipe(), runs.read_evaluations(whole, runs.HELD_OUT)
    for one in found:
        assert one["step"] == one["steps_completed"] - 1
        assert one["flops_without_lm_head"] == one["steps_completed"] * recipe.flops_per_step_without_lm_head
        assert one["dropless"]["drop_fraction"] == 0
        assert one["scored_tokens"] == 8 * 15
    assert found[-1]["fraction"] == 1
    assert any(one["as_trained"]["drop_fraction"] > 0 for one in found)
    assert found[-1]["dropless"]["loss"] < found[0]["dropless"]["loss"]


# Refusals: none of these compiles anything


def refuse_to_begin(*_: Any) -> Any:
    raise AssertionError("it began to train")


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_begin", refuse_to_begin)


def test_a_folder_with_a_run_is_not_overwritten(whole: Path, idle: None) -> None:
    before = (whole / runs.MANIFEST).read_bytes()
    with pytest.raises(UsageError, match="holds a run already"):
        training.train(toy_recipe(), ToyData(toy_recipe()), whole)
    assert (whole / runs.MANIFEST).read_bytes() == before


def test_a_resume_at_another_scale_names_what_differs(whole: Path, idle: None) -> None:
    other = resolve_recipe("d768", "smoke")
    with pytest.raises(UsageError, match=r"scale is 'toy' there and would be 'smoke' now"):
        training.train(other, ToyData(other), whole, resume=True)


def test_a_resume_with_other_data_names_what_differs(whole: Path, idle: None) -> None:
    data = ToyData(toy_recipe())
    data.identity = {"source": "another"}  # type: ignore[misc]
    with pytest.raises(UsageError, match=r"data\.source is 'toy' there and would be 'another' now"):
        training.train(toy_recipe(), data, whole, resume=True)


def test_there_is_nothing_to_resume_in_an_empty_folder(tmp_path: Path, idle: None) -> None:
    with pytest.raises(RecordError, match="is not a run"):
        training.train(toy_recipe(), ToyData(toy_recipe()), tmp_path, resume=True)


@pytest.mark.parametrize("steps", [0, -1, 38])
def test_steps_outside_of_the_run_are_refused(steps: int, tmp_path: Path, idle: None) -> None:
    with pytest.raises(UsageError, match="has steps 1 to 37"):
        training.train(toy_recipe(), ToyData(toy_recipe()), tmp_path / "run", steps=steps)
    assert not (tmp_path / "run").exists()


def test_a_second_process_is_refused(whole: Path, idle: None) -> None:
    with runs.hold_run(whole), pytest.raises(OutputError, match="is being written by process"):
        training.train(toy_recipe(), ToyData(toy_recipe()), whole, resume=True)


# A step that goes wrong; the step is a stand-in, the loop is real


class Fake:
    """Metrics of a step that changes nothing but the step count."""

    def __init__(self, **at_step_3: Any) -> None:
        self.at_step_3 = at_step_3

    def __call__(self, recipe: Any, state: Any, batch: Batch, *_: Any) -> Any:
        one, norms = jnp.float32(1.0), {"w": jnp.ones(2)}
        groups = dict.fromkeys(("adam", "adamh", "muonh"), one)
        counts, none = jnp.ones((2, 12), jnp.int32), jnp.zeros(2, jnp.int32)
        good = Metrics(one, one, one, one, groups, norms, groups, counts, none, none)

        def step(state: Any, batch: Batch) -> Any:
            bad = good._replace(**self.at_step_3) if int(state.step) == 3 else good
            return state._replace(step=state.step + 1), bad

        return step


def begin_small(recipe: Any, checkpoints: Any, seed: int, *_: Any) -> Saved:
    from marin_model.training import TrainState

    assert checkpoints.latest() is None
    state = TrainState({"w": jnp.ones(2)}, (), jnp.zeros((2, 12)), jnp.zeros([], jnp.int32))
    return Saved(state, {"w": jnp.ones(2)})


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"loss": jnp.float32(jnp.nan)}, "the loss is nan"),
        ({"grad_norm": jnp.float32(jnp.inf)}, "the gradient norm inf"),
        ({"sphere_norms": {"w": jnp.array([1, 1.001])}}, "holds fixed has moved by 1.00e-03, above"),
    ],
)
def test_a_fault_stops_the_run_names_the_step_and_keeps_the_last_checkpoint(
    fault: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_begin", begin_small)
    monkeypatch.setattr(training, "_compiled_step", Fake(**fault))
    monkeypatch.setattr(training, "make_evaluation", lambda *_: lambda params: {})
    out = tmp_path / "run"
    with pytest.raises(TrainingError, match="step 3 of d768") as caught:
        training.train(toy_recipe(), ToyData(toy_recipe()), out, save_every=0)
    assert words in str(caught.value)
    assert "The checkpoint after 3 updates is kept" in str(caught.value)
    failure = json.loads((out / training.FAILURE).read_text())
    assert (failure["step"], failure["last_checkpoint"]) == (3, 3)
    assert [row["step"] for row in runs.read_metrics(out)] == [0, 1, 2]
    with open_checkpoints(out) as checkpoints:
        assert checkpoints.latest() == 3
    assert runs.read_manifest(out).execution["sessions"][0]["outcome"] == "TrainingError"


def test_a_batch_that_cannot_be_is_refused_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_begin", begin_small)
    monkeypatch.setattr(training, "_compiled_step", Fake())
    monkeypatch.setattr(training, "make_evaluation", lambda *_: lambda params: {})
    data = ToyData(toy_recipe())
    tokens, *others = data.batch(0)
    foreign = np.array(tokens)
    foreign[1, 2] = toy_recipe().model.vocab_size
    monkeypatch.setattr(ToyData, "batch", lambda self, step: (foreign, *others))
    with pytest.raises(TrainingError, match=r"batch of step 0 of d768: tokens: id \d+ at row 1, position 2"):
        training.train(toy_recipe(), data, tmp_path / "run")
