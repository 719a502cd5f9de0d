"""A checkpoint evaluated: against the model asked directly, window by window, and as a result file says it."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evals import paloma
from evals.batching import parse_world
from evals.loading import LoadedRun, load_run, weights
from evals.sources import SETS, Texts, TextSet, survey
from marin_model import arrays, face
from marin_model.transport import Transport
from repro.errors import RecordError, UsageError
from repro.ladder.batches import segment_ids
from repro.ladder.heldout import pooled_wave
from repro.ladder.tokenizing import BOS, EOS
from tests.evals.toy_run import write_run

jax.config.update("jax_default_matmul_precision", "float32")
# Windows of 16: 2 of a, with an empty document and characters of several bytes (11 + 2, 2, 15 + 2 tokens); 3 of b, its
# first document longer than a window (30 + 2, 2, 2, 12 + 2); 1 of c. Batches of 4, in racks of 2: sets a and b share a
# batch, c stands beside padding.
TEXTS = {
    "a": ["né à €5", "", "some more bytes"],
    "b": ["0123456789" * 3, "", "", "twelve bytes"],
    "c": ["fifteen bytes.."],
}
WINDOWS = {"a": 2, "b": 3, "c": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "toy")


@pytest.fixture(scope="module")
def loaded(run: Path) -> LoadedRun:
    return load_run(run)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    folder = tmp_path_factory.mktemp("texts")
    sets = []
    for name, documents in TEXTS.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        sets.append(TextSet(suite="paloma", name=name, files=(folder / f"{name}.jsonl.gz",)))
    return Texts(kind="local", what="three sets", sets=tuple(sets))


def evaluate(loaded: LoadedRun, texts: Texts, **options: Any) -> dict[str, Any]:
    return paloma.evaluate(loaded, texts, [survey(one) for one in texts.sets], **options)


def value(result: dict[str, Any], name: str) -> float:
    return float(result["metrics"][name]["value"])


@pytest.fixture(scope="module")
def result(loaded: LoadedRun, texts: Texts) -> dict[str, Any]:
    return evaluate(loaded, texts)


def by_hand() -> np.ndarray:
    """[6, 16] windows, cut here from the bytes."""
    rows = []
    for name, documents in TEXTS.items():
        stream = [token for text in documents for token in (BOS, *text.encode(), EOS)]
        rows += [stream[16 * i : 16 * (i + 1)] for i in range(len(stream) // 16)]
        assert len(stream) // 16 == WINDOWS[name]
    return np.array(rows, np.int32)


def directly(loaded: LoadedRun, tokens: np.ndarray, transport: Transport) -> np.ndarray:
    """Summed loss of each window in `tokens` [B, 16], which are given to the model together, padded to a rack's two."""
    model = arrays.from_named_arrays(loaded.config, weights(loaded))
    padded = np.pad(tokens, ((0, 2 - len(tokens)), (0, 0)))
    segments = segment_ids(padded, EOS)
    segments[len(tokens) :] = -1
    losses = []
    for row in range(len(tokens)):
        weight = np.zeros(padded.shape, np.float32)
        weight[row, :-1] = 1
        losses.append(15 * float(face.next_token_loss(model, padded, weight, segments, 0.0, transport=transport)))
    return np.array(losses)


@pytest.fixture(scope="module")
def expected(loaded: LoadedRun) -> dict[str, np.ndarray]:
    """Summed loss of each of the six windows, both ways."""
    ways = {"eval_dropless": Transport.dropless(), "eval": pooled_wave(loaded.recipe, groups=1)}
    racks = np.split(by_hand(), [2, 4])
    return {p: np.concatenate([directly(loaded, rack, way) for rack in racks]) for p, way in ways.items()}


@pytest.mark.parametrize("prefix", ["eval", "eval_dropless"])
def test_losses_are_those_of_the_model_asked_directly(
    result: dict[str, Any], expected: dict[str, np.ndarray], prefix: str
) -> None:
    a, b, c = (float(part.sum()) for part in np.split(expected[prefix], [2, 5]))
    for name, mean in (("a", a / 30), ("b", b / 45), ("c", c / 15)):
        assert value(result, f"{prefix}/paloma/{name}/loss") == pytest.approx(mean, abs=1e-5)
    assert value(result, f"{prefix}/paloma/macro_loss") == pytest.approx((a / 30 + b / 45 + c / 15) / 3, abs=1e-5)
    assert value(result, f"{prefix}/paloma/micro_loss") == pytest.approx((a + b + c) / 90, abs=1e-5)


def test_bits_a_byte_are_those_of_the_bytes_by_hand(result: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    bits = expected["eval_dropless"] / math.log(2)
    size = (by_hand()[:, 1:] < 256).sum(axis=1)  # BOS and EOS are targets without bytes
    a, b, c = (slice(0, 2), slice(2, 5), slice(5, 6))
    total = {name: bits[part].sum() / size[part].sum() for name, part in (("a", a), ("b", b), ("c", c))}
    for name, wanted in total.items():
        assert value(result, f"eval_dropless/paloma/{name}/bits_per_byte") == pytest.approx(wanted, abs=1e-5)
    assert size.tolist() == [11, 14, 15, 14, 11, 15]  # of 15 targets, counted by hand
    micro = bits.sum() / size.sum()
    assert value(result, "eval_dropless/paloma/micro_bits_per_byte") == pytest.approx(micro, abs=1e-5)
    # Batch 1 has both windows of a and two of b; batch 2 the third of b, and c.
    first, second = slice(2, 4), slice(4, 5)
    of_b = (2 * bits[first].sum() / size[first].sum() + bits[second].sum() / size[second].sum()) / 3
    assert value(result, "eval_dropless/paloma/b/bpb") == pytest.approx(of_b, abs=1e-5)
    assert of_b != pytest.approx(total["b"], abs=1e-3)  # upstream's is no ratio of totals
    of_all = (4 * bits[:4].sum() / size[:4].sum() + 2 * bits[4:].sum() / size[4:].sum()) / 6
    assert value(result, "eval_dropless/bpb") == pytest.approx(of_all, abs=1e-5)


def test_what_was_dropped_is_said_and_without_drops_the_batch_does_not_matter(
    loaded: LoadedRun, texts: Texts, result: dict[str, Any]
) -> None:
    assert result["drop_fraction"]["dropless"] == 0 < result["drop_fraction"]["as_trained"]
    one_rack = replace(loaded, recipe=replace(loaded.recipe, gpus=2, racks=1))
    other = evaluate(one_rack, texts)
    losses = [name for name in result["metrics"] if name.endswith("loss")]
    for name in losses:  # racks exchange nothing, so as trained nothing changes either
        assert value(other, name) == pytest.approx(value(result, name), abs=1e-6)
    # b's windows fall into batches as before, two and one; those of everything are cut otherwise.
    assert value(other, "eval_dropless/paloma/b/bpb") == pytest.approx(value(result, "eval_dropless/paloma/b/bpb"))
    assert value(other, "eval_dropless/bpb") != pytest.approx(value(result, "eval_dropless/bpb"), abs=1e-3)
    assert other["metrics"]["eval/loss"]["identity"]["batch"] == (2, 16)


def test_a_mesh_gives_the_same_values(run: Path, texts: Texts, result: dict[str, Any]) -> None:
    spread = load_run(run, world=parse_world("2x2"))
    bank = spread.params["blocks.mlp.expert_mlp.w_gate"]
    assert [shard.data.shape[1] for shard in bank.addressable_shards] == [6] * 4  # of 12 experts
    found = evaluate(spread, texts)
    assert found["drop_fraction"] == result["drop_fraction"]
    for name in result["metrics"]:
        assert value(found, name) == pytest.approx(value(result, name), abs=1e-5)
    assert found["metrics"]["eval/loss"]["identity"] == result["metrics"]["eval/loss"]["identity"]


@pytest.mark.parametrize(("mesh", "words"), [("4x1", "has 2 x 2 expert shards"), ("1x7", "cannot be cut 7 ways")])
def test_a_mesh_that_the_run_cannot_be_dealt_to_is_refused(run: Path, mesh: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        paloma.evaluate_run(run, ["paloma"], mesh=mesh)


def test_the_pending_router_bias_gives_another_loss_under_another_identity(
    loaded: LoadedRun, texts: Texts, result: dict[str, Any]
) -> None:
    pending = evaluate(loaded, texts, router_bias="pending")
    name = "eval_dropless/paloma/macro_loss"
    assert value(pending, name) != pytest.approx(value(result, name), abs=1e-4)
    biases = [one["metrics"][name]["identity"]["router_bias"] for one in (result, pending)]
    assert biases == ["saved", "pending"]


def test_where_the_gate_fails_no_bits_a_byte_are_given(
    loaded: LoadedRun, texts: Texts, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = paloma.token_bytes(loaded.tokenizer.identity, None)
    assert not isinstance(table, str)
    wrong = table._replace(text=np.where(np.arange(258) == 0xC3, 2, table.text))
    monkeypatch.setattr(paloma, "token_bytes", lambda *_: wrong)
    failed = evaluate(loaded, texts)
    assert not failed["bytes"]["passed"]
    assert failed["bytes"]["why"] == "paloma/a, document 1: its tokens stand for 13 bytes, its text has 11"
    assert {name: one for name, one in result["metrics"].items() if name.endswith("loss")} == failed["metrics"]


def test_a_loss_that_is_not_finite_is_an_error_that_names_the_set(loaded: LoadedRun, texts: Texts) -> None:
    broken = replace(loaded, params={**loaded.params, "output_proj": loaded.params["output_proj"] * np.nan})
    with pytest.raises(RecordError, match="the as_trained loss on paloma/a is not finite after 3 updates"):
        evaluate(broken, texts)


# The command's work


@pytest.fixture(scope="module")
def evaluation(run: Path) -> paloma.Evaluation:
    return paloma.evaluate_run(run, ["paloma"], limit=2)


def test_the_result_lies_in_the_run_and_every_value_says_what_it_is(evaluation: paloma.Evaluation, run: Path) -> None:
    assert evaluation.path == run / "evals" / "paloma-miniature.first2-00000003.json"
    result = json.loads(evaluation.path.read_text())
    assert (result["suite"], result["step"], result["steps_completed"]) == ("paloma", 2, 3)
    assert [one["name"] for one in result["data"]["sets"]] == [f"paloma/{name}" for name in SETS["paloma"]]
    assert result["data"]["kind"] == "miniature"
    assert "made-up" in result["data"]["what"]
    assert {one["windows"] for one in result["data"]["sets"]} == {2}
    assert result["bytes"]["passed"]
    # Of each way 16 sets, and four means: over Paloma and over everything, which here is the same.
    assert len(result["metrics"]) == 2 * 3 * (16 + 4)
    for name, metric in result["metrics"].items():
        identity = metric["identity"]
        assert metric["definition"]
        assert identity["level"] == "miniature, the first 2 windows of each set"
        assert identity["dispatch"].startswith("dropless" if name.startswith("eval_dropless/") else "pooled_wave, 2 sh")
        assert (identity["context"], identity["batch"], identity["router_bias"]) == (16, [4, 16], "saved")


def test_the_same_inputs_are_not_evaluated_twice(
    evaluation: paloma.Evaluation, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paloma, "evaluate", None)
    again = paloma.evaluate_run(run, ["paloma"], limit=2)
    assert (again.path, again.unchanged) == (evaluation.path, True)
    assert again.result == json.loads(evaluation.path.read_text())
    for other in ({"limit": 3}, {"router_bias": "pending"}, {"force": True}):
        with pytest.raises(TypeError, match="not callable"):
            paloma.evaluate_run(run, ["paloma"], **{"limit": 2, **other})
    identity = json.loads((run / "manifest.json").read_text())
    identity["identity"]["seed"] = 1  # another run in the same folder
    (run / "manifest.json").write_text(json.dumps(identity))
    with pytest.raises(TypeError, match="not callable"):
        paloma.evaluate_run(run, ["paloma"], limit=2)
