"""Log-likelihood requests a second: lm-eval through `marin_jax`, against one request at a time by the model's own pass.

    python benchmarks/eval.py [RUN] [--questions 256] [--repeats 3]

Requests are those of multiple-choice tasks: questions of mixed lengths with few-shot examples before them, four answers
each. Both ways answer all of them in one process, by turns; compiling comes before the clock starts, and answers are
held equal. The naive loop is what one writes first: each request alone, padded to the context, so that one program
serves them all; beside it stands a loop whose rows are as long as the bucket of the request.

Without RUN the model is drawn: the smoke scale's d768, with a context of 1,024 tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from evals.batching import bucket, place
from evals.loading import load_run
from evals.loglikelihood import Answer, Request, log_likelihoods
from marin_model import model
from marin_model.config import ModelConfig
from marin_model.flops import parameter_shapes
from marin_model.transport import Transport
from repro.ladder.recipe import resolve_recipe

Ask = Callable[[], list[Answer]]


def main() -> None:
    """Print both rates, the best of the repeats, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    config, params = drawn() if given.run is None else of_run(given.run)
    requests = questions(given.questions, config)
    placed = place(params, config)
    ways: dict[str, Ask] = {
        "batched": lambda: log_likelihoods(placed, requests),
        "naive, padded to the context": lambda: one_by_one(placed.params, config, requests, config.max_seq_len),
        "naive, padded to a bucket": lambda: one_by_one(placed.params, config, requests, 16),
    }
    lengths = sorted(len(one.inputs) for one in requests)
    print(f"{len(requests)} requests of {lengths[0]} to {lengths[-1]} tokens, median {lengths[len(lengths) // 2]}, on "
          f"{jax.default_backend()}")  # fmt: skip
    answers = {name: ask() for name, ask in ways.items()}  # compiles
    seconds = {name: np.inf for name in ways}
    for _ in range(given.repeats):
        for name, ask in ways.items():
            start = time.perf_counter()
            ask()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    reference = np.array([one.log_likelihood for one in answers["naive, padded to the context"]])
    for name in ways:
        apart = np.abs(reference - [one.log_likelihood for one in answers[name]]).max()
        print(f"{name:30} {len(requests) / seconds[name]:10.1f} requests/s, {seconds[name] / seconds['batched']:6.1f} "
              f"times as long; answers within {apart:.1e} nats")  # fmt: skip


def one_by_one(
    params: dict[str, jax.Array], config: ModelConfig, requests: list[Request], shortest: int
) -> list[Answer]:
    """Each request alone, whole rows, nothing shared."""
    answers = []
    for inputs, targets in requests:
        length = bucket(len(inputs), config.max_seq_len, shortest)
        tokens, labels = np.zeros((1, length), np.int32), np.zeros(length, np.int32)
        tokens[0, : len(inputs)] = inputs
        labels[len(inputs) - len(targets) : len(inputs)] = targets
        log_p, hit = jax.device_get(_score(params, tokens, labels, config=config))
        at = slice(len(inputs) - len(targets), len(inputs))
        answers.append(Answer(float(np.sum(log_p[at], dtype=np.float64)), bool(hit[at].all())))
    return answers


@partial(jax.jit, static_argnames="config")
def _score(
    params: dict[str, jax.Array], tokens: jax.Array, labels: jax.Array, *, config: ModelConfig
) -> tuple[jax.Array, jax.Array]:
    hidden = model.transformer(params, tokens, None, config=config, transport=Transport.dropless()).hidden[0]
    logits = jnp.einsum("td,dv->tv", hidden, params["output_proj"], preferred_element_type=jnp.float32)
    log_p = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0], jnp.argmax(logits, axis=1) == labels


def questions(count: int, config: ModelConfig) -> list[Request]:
    """Four answers to each question. Eight questions share a beginning, as few-shot examples do.

    Lengths are drawn evenly on a logarithmic scale: beginnings of 1 to half a context, questions of 16 to a quarter,
    answers of 2 to 16 tokens.
    """
    draw = np.random.default_rng(0)

    def ids(least: int, most: int) -> tuple[int, ...]:
        length = int(np.exp(draw.uniform(np.log(least), np.log(most))))
        return tuple(map(int, draw.integers(0, 256, length)))

    requests = []
    for number in range(count):
        if number % 8 == 0:
            beginning = ids(1, config.max_seq_len // 2)
        question = (*beginning, *ids(16, config.max_seq_len // 4))
        for _ in range(4):
            answer = ids(2, 16)
            requests.append(Request((*question, *answer[:-1]), answer))
    return requests


def drawn() -> tuple[ModelConfig, dict[str, jax.Array]]:
    config = replace(resolve_recipe("d768", "smoke").model, max_seq_len=1024)
    draw = np.random.default_rng(0)
    params = {}
    for name, shape in parameter_shapes(config).items():
        noise = draw.standard_normal(shape).astype(np.float32)
        params[name] = jnp.asarray(1 + 0.1 * noise if name.endswith("norm.weight") else 0.05 * noise)
    return config, params


def of_run(folder: Path) -> tuple[ModelConfig, dict[str, jax.Array]]:
    run = load_run(folder)
    return run.config, run.params


if __name__ == "__main__":
    main()
