"""lm-eval's tasks on a checkpoint of ours, its result kept with the run in lm-eval's own format.

    RUN/evals/lm-eval-TASKS-STEP.json              what `lm-eval run --output_path` writes: results, versions, configs,
                                                   n-shot, n-samples, seeds, task hashes, the harness's version; and a
                                                   few keys more, which say of which run at which step it is
    RUN/evals/lm-eval-TASKS-STEP-TASK.jsonl        one line a document with --log-samples, as its samples_*.jsonl

The packaged tasks (`evals/tasks`) need no network; any other is one of lm-eval's, and brings its data from the hub. Two
scores compare where task, version, few-shot setting, sample count and task hash agree: the hash is of all documents,
prompts and targets, whatever revision they came from.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval
import yaml
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable, hash_string, sanitize_list, sanitize_model_name

from evals.batching import parse_world
from evals.harness import NAME, TASKS, MarinJax
from evals.loading import LoadedRun, RouterBias, load_run
from evals.results import Evaluation, find_or_make
from repro import runs
from repro.errors import NoAnswerError, UsageError
from repro.files import write_atomically

SUITE = "lm-eval"
SEEDS = {"random_seed": 0, "numpy_random_seed": 1234, "torch_random_seed": 1234, "fewshot_random_seed": 1234}  # its own
ONE_PROCESS = "DISABLE_MULTIPROC"  # read by lm-eval
LONGEST_LABEL = 60  # characters of task names in a file's name

Json = dict[str, Any]


def evaluate_run(
    folder: Path,
    tasks: Sequence[str],
    *,
    step: int | None = None,
    tokenizer: str | Path | None = None,
    router_bias: RouterBias = "saved",
    limit: int | None = None,
    num_fewshot: int | None = None,
    mesh: str | None = None,
    log_samples: bool = False,
    force: bool = False,
) -> Evaluation:
    """Evaluate a checkpoint of a run on tasks, none named: the packaged ones; write and return the result.

    An evaluation of the same inputs that is there already is returned as it is, unless `force`. Raises UsageError for a
    task that is not known, NoAnswerError where its data cannot be had, and what `load_run` raises.
    """
    names = list(dict.fromkeys(tasks)) or packaged_tasks()
    run = load_run(folder, step=step, tokenizer=tokenizer, world=parse_world(mesh))
    inputs = _inputs(run, names, router_bias, limit, num_fewshot)
    label = _label(names, inputs)
    path = runs.evaluation_path(folder, label, run.steps_completed)

    def make() -> Json:
        result, samples = evaluate(run, names, router_bias=router_bias, limit=limit, num_fewshot=num_fewshot)
        if log_samples:
            run.world.first_does(lambda: _write_samples(path, samples))
        return {**_of_run(run), **result}

    def is_whole(result: Mapping[str, Any]) -> bool:
        return not log_samples or all(_samples_path(path, task).is_file() for task in result["results"])

    return find_or_make(run, label, inputs, make, force=force, is_whole=is_whole)


def evaluate(
    run: LoadedRun,
    tasks: Sequence[str],
    *,
    router_bias: RouterBias = "saved",
    limit: int | None = None,
    num_fewshot: int | None = None,
    manager: TaskManager | None = None,
) -> tuple[Json, dict[str, list[Json]]]:
    """lm-eval's result as JSON values, and the documents of each task. Raises as `evaluate_run`."""
    manager = manager or task_manager(tasks)
    check_tasks(tasks, manager)
    model = MarinJax(run, router_bias=router_bias)
    started = time.perf_counter()
    try:
        with redirect_stdout(sys.stderr), _one_process():  # it prints what it does
            found = lm_eval.simple_evaluate(
                model=model,
                tasks=list(tasks),
                limit=limit,
                num_fewshot=num_fewshot,
                batch_size="auto",
                log_samples=True,
                task_manager=manager,
                **SEEDS,
            )
    except (ConnectionError, FileNotFoundError) as error:  # what `datasets` makes of a hub that is away or refuses
        raise NoAnswerError(
            f"the data of {', '.join(tasks)}: {error}. Reach the hub once, so that it is kept; for gated data set "
            f"HF_TOKEN. The packaged tasks ({', '.join(packaged_tasks())}) need no network."
        ) from error
    assert found is not None  # of other ranks, of which there are none
    samples = found.pop("samples")
    found["config"] |= {"model": NAME, "model_args": {"pretrained": str(run.folder), "router_bias": router_bias}}
    found |= {
        "task_hashes": {task: _task_hash(documents) for task, documents in samples.items()},
        "model_source": NAME,
        "model_name": str(run.folder),
        "model_name_sanitized": sanitize_model_name(str(run.folder)),
        "total_evaluation_time_seconds": str(time.perf_counter() - started),
    }
    return _as_json(found), {task: _as_json(documents) for task, documents in samples.items()}


@contextmanager
def _one_process() -> Iterator[None]:
    """Have lm-eval resample its scores in this process: it would fork others, which JAX's threads may lock for ever."""
    before = os.environ.get(ONE_PROCESS)
    os.environ[ONE_PROCESS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ONE_PROCESS]
        else:
            os.environ[ONE_PROCESS] = before


def packaged_tasks() -> list[str]:
    """Names of the tasks that need no network."""
    return [yaml.load(path.read_text(), _Names)["task"] for path in sorted(TASKS.glob("*.yaml"))]


def task_manager(tasks: Sequence[str]) -> TaskManager:
    """lm-eval's index of tasks: of the packaged ones alone where no other is named, since the whole takes seconds."""
    return TaskManager(include_path=str(TASKS), include_defaults=not set(tasks) <= set(packaged_tasks()))


def check_tasks(tasks: Sequence[str], manager: TaskManager) -> None:
    """Raise UsageError for the first name that is no task, group or tag, with those of lm-eval that are like it."""
    for name in tasks:
        if name not in manager.task_index:
            near = difflib.get_close_matches(name, manager.all_tasks, n=5)
            near += [one for one in manager.all_tasks if name in one and one not in near][: 5 - len(near)]
            raise UsageError(
                f"--tasks {name}: lm-eval {version('lm_eval')} has no such task."
                + (f" Did you mean {', '.join(near)}?" if near else "")
                + f" Packaged are {', '.join(packaged_tasks())}; marin-lm-eval ls tasks lists all."
            )


class _Names(yaml.SafeLoader):
    """Reads a task's file without the functions that it names."""


_Names.add_constructor("!function", lambda loader, node: None)


def _of_run(run: LoadedRun) -> Json:
    return {
        "suite": SUITE,
        "rung": run.recipe.rung,
        "scale": Path(run.recipe.scale).stem,
        "step": run.steps_completed - 1,  # zero-based, as upstream logs it
        "steps_completed": run.steps_completed,
        "fraction": run.steps_completed / run.recipe.steps,
    }


def _inputs(run: LoadedRun, tasks: Sequence[str], router_bias: str, limit: int | None, num_fewshot: int | None) -> Json:
    """All that decides the values, whatever the machine; of hub data, only its name."""
    packaged = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(TASKS.glob("*.[jy]*"))))
    return {
        "run": run.identity_digest,
        "steps_completed": run.steps_completed,
        "tokenizer": run.tokenizer_digest,
        "tasks": list(tasks),
        "packaged_tasks": packaged.hexdigest(),
        "harness": version("lm_eval"),
        "router_bias": router_bias,
        "limit": limit,
        "num_fewshot": num_fewshot,
        "seeds": SEEDS,
    }


def _label(tasks: Sequence[str], inputs: Mapping[str, Any]) -> str:
    """The result's name before its step: what may stand side by side has names of its own."""
    names = "+".join(tasks)
    if len(names) > LONGEST_LABEL or not all(part.isalnum() for part in "".join(names.split("_")).split("+")):
        names = f"{len(tasks)}-tasks.{hashlib.sha256(names.encode()).hexdigest()[:8]}"
    bias = "" if inputs["router_bias"] == "saved" else f".{inputs['router_bias']}"
    limited = "" if inputs["limit"] is None else f".first{inputs['limit']}"
    shots = "" if inputs["num_fewshot"] is None else f".{inputs['num_fewshot']}shot"
    return f"{SUITE}-{names}{bias}{limited}{shots}"


def _write_samples(path: Path, samples: Mapping[str, Sequence[Json]]) -> None:
    for task, documents in samples.items():
        write_atomically(_samples_path(path, task), "".join(map(_sample_line, documents)))


def _samples_path(path: Path, task: str) -> Path:
    return path.with_name(f"{path.stem}-{task}.jsonl")


def _task_hash(documents: Sequence[Mapping[str, Any]]) -> str:
    """lm-eval's own: of all documents, prompts and targets."""
    return hash_string("".join(one["doc_hash"] + one["prompt_hash"] + one["target_hash"] for one in documents))


def _sample_line(document: Mapping[str, Any]) -> str:
    """A line as lm-eval's tracker writes it: arguments by name, answers as text."""
    arguments = {
        f"gen_args_{request}": {f"arg_{place}": value for place, value in enumerate(given)}
        for request, given in enumerate(document["arguments"])
    }
    line = {
        **document,
        "arguments": arguments,
        "resps": sanitize_list(document["resps"]),
        "filtered_resps": sanitize_list(document["filtered_resps"]),
        "target": str(document["target"]),
    }
    return json.dumps(line, ensure_ascii=False) + "\n"


def _as_json(value: Any) -> Any:
    """As lm-eval writes it, but numbers that are not finite as text, so that the file is strict JSON."""

    def strict(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strict(part) for key, part in value.items()}
        if isinstance(value, list):
            return [strict(part) for part in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return strict(json.loads(json.dumps(value, default=handle_non_serializable)))
