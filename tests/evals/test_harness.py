"""`marin_jax` in lm-eval: each kind of request against the model asked directly, and results in lm-eval's format."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lm_eval
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from evals import lm_eval_command, lm_eval_suite
from evals.harness import NAME, TASKS, MarinJax
from evals.loading import LoadedRun, load_run
from evals.paloma import Evaluation
from marin_model import model as marin
from marin_model.transport import Transport
from repro.cli.main import exit_code
from repro.errors import UsageError
from repro.ladder.tokenizing import BOS
from tests.evals.toy_run import write_run

ATOL = 1e-5  # the issue's: nats of a request
CONTEXT = 64
PACKAGED = ["marin_choice", "marin_cloze", "marin_patterns", "marin_perplexity"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "toy", context=CONTEXT)


@pytest.fixture(scope="module")
def run(folder: Path) -> LoadedRun:
    return load_run(folder)


@pytest.fixture(scope="module")
def model(run: LoadedRun) -> MarinJax:
    return MarinJax(run)


def log_probabilities(run: LoadedRun, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """[B, 64, V] float64, behind each position of rows that are padded at their end; by the model's own whole pass."""
    tokens = np.zeros((len(rows), CONTEXT), np.int32)
    for place_of, row in enumerate(rows):
        tokens[place_of, : len(row)] = row
    hidden = np.concatenate([_hidden(run)(run.params, jnp.asarray(tokens[i : i + 1])) for i in range(len(rows))])
    logits = hidden.astype(np.float64) @ np.asarray(run.params["output_proj"], np.float64)
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


_COMPILED: dict[str, Any] = {}


def _hidden(run: LoadedRun) -> Any:
    def of(params: dict[str, jax.Array], tokens: jax.Array) -> jax.Array:
        return marin.transformer(params, tokens, None, config=run.config, transport=Transport.dropless()).hidden

    return _COMPILED.setdefault(str(run.folder), jax.jit(of))


def score(run: LoadedRun, inputs: Sequence[int], targets: Sequence[int]) -> float:
    """Log-likelihood of the targets behind the last of the inputs."""
    (log_p,) = log_probabilities(run, [inputs])
    first = len(inputs) - len(targets)
    return float(sum(log_p[first + i, target] for i, target in enumerate(targets)))


def asked(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, given, index) for index, given in enumerate(arguments)]


# Log-likelihoods


def test_the_model_is_known_to_lm_eval_by_its_name() -> None:
    assert get_model(NAME) is MarinJax


LONG = "The ferry crosses at nine. Ünïcödé — ten bytes or more, and then a good deal more text than one context holds."
TEXTS = ["", "é", "short", "x" * 64, LONG]


@pytest.fixture(scope="module")
def rolled(model: MarinJax) -> list[float]:
    return model.loglikelihood_rolling(asked("loglikelihood_rolling", *((text,) for text in TEXTS)), True)


def test_rolling_log_likelihood_is_that_of_a_direct_computation(run: LoadedRun, rolled: list[float]) -> None:
    """Each token once: windows of 64 in a row, the first behind BOS, the last reaching back to be full."""
    expected = []
    for text in TEXTS:
        ids = list(text.encode())
        stream, total = [BOS, *ids], 0.0  # stream[i] stands before ids[i]
        for start in range(0, len(ids), CONTEXT):
            end = min(start + CONTEXT, len(ids))
            total += score(run, stream[max(0, end - CONTEXT) if start else 0 : end], ids[start:end])
        expected.append(total)
    assert len(LONG.encode()) > CONTEXT + 1
    np.testing.assert_allclose(rolled, expected, rtol=0, atol=ATOL)
    assert rolled[0] == 0


PAIRS = [
    *(("Q: one?\nA:", " two"), ("Q: one?\nA: ", "two"), ("ab" * 40, "cde"), ("Q: one?\nA:", " é"), ("", "short")),
    *(("once", "upon a time"), ("once", "upon a"), ("onceupon a", " time")),  # a text in one part and in two
]


@pytest.fixture(scope="module")
def scored(model: MarinJax) -> list[tuple[float, bool]]:
    return model.loglikelihood(asked("loglikelihood", *PAIRS), True)


def test_log_likelihood_is_that_of_a_direct_computation(run: LoadedRun, scored: list[tuple[float, bool]]) -> None:
    """Behind BOS; a context that does not fit loses tokens on its left; its trailing space is scored."""
    for (context, continuation), (got, is_greedy) in zip(PAIRS, scored, strict=True):
        targets = list((" " * (len(context) - len(context.rstrip())) + continuation).encode())
        before = [BOS, *context.rstrip().encode()]
        inputs = [*before, *targets[:-1]][-CONTEXT:]
        assert got == pytest.approx(score(run, inputs, targets), abs=ATOL)
        (log_p,) = log_probabilities(run, [inputs])
        best = log_p[len(inputs) - len(targets) : len(inputs)].argmax(axis=1)
        assert is_greedy == (best.tolist() == targets)


def test_log_likelihood_of_a_split_text_adds_up(scored: list[tuple[float, bool]], rolled: list[float]) -> None:
    whole, first, second = (one[0] for one in scored[-3:])
    assert whole == pytest.approx(first + second, abs=ATOL)
    assert rolled[TEXTS.index("short")] == pytest.approx(scored[PAIRS.index(("", "short"))][0], abs=ATOL)


def test_answers_do_not_depend_on_batch_size_or_order(
    run: LoadedRun, model: MarinJax, scored: list[tuple[float, bool]]
) -> None:
    again = model.loglikelihood(asked("loglikelihood", *PAIRS[::-1]), True)[::-1]
    by_two = MarinJax(run, batch_size=2).loglikelihood(asked("loglikelihood", *PAIRS), True)
    for other in (again, by_two):
        np.testing.assert_allclose([one[0] for one in other], [one[0] for one in scored], rtol=0, atol=ATOL)
        assert [one[1] for one in other] == [one[1] for one in scored]


def test_a_continuation_that_fits_no_context_is_refused(model: MarinJax) -> None:
    with pytest.raises(UsageError, match="a continuation has 65 tokens, the context holds 64"):
        model.loglikelihood(asked("loglikelihood", ("a", "b" * 65)), True)


# Generation


def written(run: LoadedRun, prompt: str, count: int) -> bytes:
    """Greedy, by whole passes; the prompt loses tokens on its left until the new ones fit."""
    ids = [BOS, *prompt.encode()][-(CONTEXT - count) :]
    for _ in range(count):
        ids.append(int(log_probabilities(run, [ids])[0, len(ids) - 1].argmax()))
    return bytes(one for one in ids[-count:] if one < 256)


def generate(model: MarinJax, *requests: tuple[str, dict[str, Any]]) -> list[str]:
    return model.generate_until(asked("generate_until", *requests), True)


PROMPT, TOO_LONG = "copy: a\npaste:", "x" * 80
GREEDY: dict[str, Any] = {"max_gen_toks": 6, "until": []}
WARM = {**GREEDY, "do_sample": True, "temperature": 1.5}


@pytest.fixture(scope="module")
def greedy(run: LoadedRun) -> list[str]:
    return [written(run, prompt, 6).decode(errors="replace") for prompt in (PROMPT, TOO_LONG)]


def test_texts_are_those_of_whole_passes_and_of_their_own_seeds(
    run: LoadedRun, model: MarinJax, greedy: list[str]
) -> None:
    """Greedy ones stop where told; drawn ones depend on the seed and how often it was asked, not on their company."""
    stop = greedy[0][2]
    requests = [(PROMPT, GREEDY), (TOO_LONG, GREEDY), (PROMPT, {**GREEDY, "until": [stop]}), ("ab", WARM), ("ab", WARM)]
    first, second, stopped, one, other = generate(model, *requests)
    assert [first, second] == greedy
    assert stopped == first.split(stop)[0]
    assert one != other, "two texts of one prompt are two draws"
    assert generate(model, ("cd", WARM), *requests[::-1])[1:3] == [one, other]
    again = generate(MarinJax(run, seed=1), *requests)
    assert again[:3] == [first, second, stopped]
    assert again[3:] != [one, other]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_gen_toks": 64}, "leaves no room for a prompt"),
        ({"num_beams": 4}, "num_beams=4 is not known to marin_jax"),
    ],
)
def test_generation_that_cannot_be_had_is_refused(model: MarinJax, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        generate(model, ("a", {"until": [], **settings}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "float16"}, "dtype 'float16': must be float32 or bfloat16"),
        ({"max_length": 65}, "max_length 65: must be 2 to 64"),
        ({"batch_size": "many"}, "batch_size 'many': must be a count of rows, or auto"),
        ({"device": "tpu"}, "device 'tpu': JAX computes on"),
        ({"router_bias": "none"}, "router bias 'none': must be saved or pending"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(run: LoadedRun, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        MarinJax(run, **settings)


# Every kind of request through lm-eval


@pytest.fixture(scope="module")
def evaluation(folder: Path) -> Evaluation:
    return lm_eval_suite.evaluate_run(folder, [], limit=2, log_samples=True)


def samples(evaluation: Evaluation, task: str) -> list[dict[str, Any]]:
    lines = evaluation.path.with_name(f"{evaluation.path.stem}-{task}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_result_lies_in_the_run_in_lm_evals_own_format(evaluation: Evaluation, folder: Path) -> None:
    assert evaluation.path.parent == folder / "evals"
    result = json.loads(evaluation.path.read_text())
    assert set(result["results"]) == set(PACKAGED) == set(lm_eval_suite.packaged_tasks())
    assert result["versions"] == dict.fromkeys(PACKAGED, 1.0)
    assert result["n-shot"] == dict.fromkeys(PACKAGED, 0)
    assert result["n-samples"]["marin_cloze"] == {"original": 40, "effective": 2}
    assert set(result["task_hashes"]) == set(PACKAGED)
    assert result["lm_eval_version"] == result["inputs"]["harness"] == version("lm_eval")
    assert {key: value for key, value in result["config"].items() if key.endswith("_seed")} == {
        "random_seed": 0,
        "numpy_seed": 1234,
        "torch_seed": 1234,
        "fewshot_seed": 1234,
        "sampling_seed": 0,
    }
    assert (result["suite"], result["step"], result["steps_completed"]) == ("lm-eval", 2, 3)
    assert result["config"]["model_revision"] == "3 updates"
    from lm_eval.utils import make_table

    assert "marin_patterns" in make_table(result), "lm-eval's own tools read it"


def test_scores_are_those_of_the_answers_and_answers_those_of_the_model(
    evaluation: Evaluation, run: LoadedRun, model: MarinJax
) -> None:
    scores = evaluation.result["results"]
    cloze = [float(one["resps"][0][0][0]) for one in samples(evaluation, "marin_cloze")]
    first = samples(evaluation, "marin_cloze")[0]["arguments"]["gen_args_0"]
    assert first["arg_1"] == " west"
    targets = list(b" west")
    assert cloze[0] == pytest.approx(score(run, [BOS, *first["arg_0"].encode(), *targets[:-1]], targets), abs=ATOL)
    assert scores["marin_cloze"]["perplexity,none"] == pytest.approx(math.exp(-sum(cloze) / 2))
    texts = [one["doc"]["text"] for one in samples(evaluation, "marin_perplexity")]
    rolled = model.loglikelihood_rolling(asked("loglikelihood_rolling", *((text,) for text in texts)), True)
    bits = -sum(rolled) / math.log(2) / sum(len(text.encode()) for text in texts)
    assert scores["marin_perplexity"]["bits_per_byte,none"] == pytest.approx(bits, abs=ATOL)
    (pattern, _) = samples(evaluation, "marin_patterns")
    whole = written(run, pattern["doc"]["prompt"], 24).decode(errors="replace")
    assert pattern["resps"] == [[whole.split("\n")[0]]]
    assert len(samples(evaluation, "marin_choice")[0]["resps"]) == 4


def test_the_same_inputs_are_not_evaluated_twice(
    evaluation: Evaluation, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_eval_suite, "evaluate", None)
    assert lm_eval_suite.evaluate_run(folder, PACKAGED, limit=2, log_samples=True).unchanged
    for other in ({"limit": 3}, {"num_fewshot": 1}, {"router_bias": "pending"}, {"force": True}):
        with pytest.raises(TypeError, match="not callable"):
            lm_eval_suite.evaluate_run(folder, PACKAGED, **{"limit": 2, **other})


def test_the_command_says_what_is_there_and_prints_lm_evals_table(
    evaluation: Evaluation, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", str(folder), "--suite", "lm-eval", "--limit", "2"]
    assert exit_code([*arguments, "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["evaluations"]
    assert (only["path"], only["unchanged"]) == (str(evaluation.path), True)
    assert exit_code(arguments) == 0
    assert "|marin_choice" in capsys.readouterr().out


def test_lm_eval_itself_makes_the_model_of_a_runs_folder(folder: Path) -> None:
    found = lm_eval.simple_evaluate(
        model=NAME,
        model_args={"pretrained": str(folder)},
        tasks=["marin_choice"],
        limit=2,
        num_fewshot=1,
        task_manager=lm_eval_suite.task_manager(["marin_choice"]),
        bootstrap_iters=0,
    )
    assert found is not None
    assert (found["config"]["model"], found["n-shot"]) == (NAME, {"marin_choice": 1})
    assert found["samples"]["marin_choice"][0]["arguments"][0][0].count("Q: ") == 2
    assert found["results"]["marin_choice"]["acc,none"] in (0, 0.5, 1)


# What goes wrong


def test_an_unknown_task_is_met_with_those_like_it() -> None:
    manager = lm_eval_suite.task_manager(PACKAGED)
    with pytest.raises(UsageError, match=r"--tasks marin_close: .* Did you mean marin_cloze"):
        lm_eval_suite.check_tasks(["marin_close"], manager)


@pytest.mark.slow
def test_an_unknown_task_is_met_with_lm_evals_own_suggestions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["eval", str(folder), "--suite", "lm-eval", "--tasks", "arc_eazy"]) == 2
    assert "Did you mean arc_easy" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["eval", str(tmp_path / "none"), "--suite", "lm-eval"]) == 2
    assert "none" in capsys.readouterr().err


def test_without_lm_eval_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("evals.lm_eval_suite", "evals.harness"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert exit_code(["eval", str(folder), "--suite", "lm-eval"]) == 2
    assert "pip install 'marin-repro[evals]'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        lm_eval_command.run()
    assert "pip install 'marin-repro[evals]'" in capsys.readouterr().err


def test_the_console_script_hands_over_to_lm_evals_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval._cli import HarnessCLI

    seen: list[Any] = []
    monkeypatch.setattr(HarnessCLI, "execute", lambda self, given: seen.append(given))
    monkeypatch.setattr(
        sys, "argv", ["marin-lm-eval", "run", "--model", NAME, "--model_args", "pretrained=x", "--tasks", "marin_cloze"]
    )
    lm_eval_command.run()
    monkeypatch.setattr(sys, "argv", ["marin-lm-eval", "run", "--model", "dummy", "--include_path", "y"])
    lm_eval_command.run()
    assert (seen[0].include_path, seen[0].batch_size, seen[0].tasks) == (str(TASKS), "auto", ["marin_cloze"])
    assert seen[1].include_path == "y"
    assert not hasattr(seen[1], "batch_size")
