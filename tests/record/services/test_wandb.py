from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from repro.record.artifacts import Artifact
from repro.record.services import wandb
from repro.record.services.errors import Forbidden, Gone, Malformed, ServiceError
from repro.record.services.http import Client
from tests.servers.outcomes import OF_JSON
from tests.servers.wandb import Run, WandB

CE, MACRO = "train/cross_entropy_loss", "eval_dropless/paloma/macro_loss"
HERO = Artifact(
    id="wandb-hero-4",
    role="metrics",
    kind="wandb-run",
    address="marin-community/marin_moe/hero-mix-996f4891-step108k",
    digest="canonical",
)
REPORT = Artifact(
    id="wandb-report",
    role="metrics",
    kind="wandb-report",
    address="marin-community/marin_moe/VmlldzoxNzc2MDM5Ng==",
    digest="canonical",
)
SPEC = {
    "blocks": [
        {"type": "paragraph", "children": [{"text": "x"}]},
        {
            "type": "panel-grid",
            "metadata": {"runSets": [{"selections": {"tree": ["rav-ladder-d768-v2", "rav-ladder-d1024"]}}]},
        },
    ]
}


def rows(first: int, end: int, **values: Any) -> list[dict[str, Any]]:
    return [{"_step": step, "_timestamp": 1000.0 + step, CE: step / 1000, **values} for step in range(first, end)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandB]:
    with WandB() as server:
        config = {"model": {"hidden_dim": 6144, "epsilon": 6.044604247506697e-15}, "note": {"value": 1, "other": 2}}
        summary = {"_step": 108981, "throughput/mfu": 21.4, "h": {"_type": "histogram"}, "_wandb": {"runtime": 5}}
        run = Run("hero-mix-996f4891-step108k", state="crashed", config=config, summary=summary)
        run.rows = [*rows(108000, 108500), {"_step": 108499, "_timestamp": 5.0, MACRO: 2.2108, "eval/other": 1}]
        server.runs.append(run)
        server.reports["VmlldzoxNzc2MDM5Ng=="] = SPEC
        monkeypatch.setenv("MARIN_REPRO_WANDB_API", server.url)
        yield server


def stored(server: WandB, client: Client, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(wandb.read(HERO, client, **options).data)
    return result


def test_a_run_is_its_configuration_summary_and_metrics(server: WandB, client: Client) -> None:
    content = wandb.read(HERO, client)
    run = json.loads(content.data)
    assert run["config"] == {
        "model": {"hidden_dim": 6144, "epsilon": 6.044604247506697e-15},
        "note": {"value": 1, "other": 2},
    }
    assert run["summary"] == {"_step": 108981, "throughput/mfu": 21.4, "h": {"_type": "histogram"}}
    assert list(run["history"]) == [CE, MACRO]
    assert run["history"][CE]["rows"][0] == [108000, 109000.0, 108.0]
    assert run["history"][MACRO]["rows"] == [[108499, 5.0, 2.2108]]
    assert list(content.canonical) == ["config", "state", "summary", CE, MACRO]
    assert content.name == "wandb/marin-community/marin_moe/hero-mix-996f4891-step108k.json"
    assert content.resolved == "hero-mix-996f4891-step108k"
    assert content.notes == ()


def test_every_metric_has_its_own_spec_since_a_spec_drops_rows_without_all_its_keys(
    server: WandB, client: Client
) -> None:
    history = stored(server, client)["history"]
    assert len(history[CE]["rows"]) == 500
    specs = json.loads(server.requests[-1].body)["variables"]["specs"]
    assert [json.loads(spec)["keys"][2] for spec in specs] == [CE, MACRO]


def test_nothing_is_asked_with_an_account(server: WandB, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    stored(server, client)
    assert not any("authorization" in request.headers for request in server.requests)


def test_numbers_that_are_not_finite_survive(server: WandB, client: Client) -> None:
    run = server.runs[0]
    run.config = {"decay": math.inf, "list": [1, {"deep": math.nan}], "text": "NaN"}
    run.summary = {"loss": -math.inf}
    run.rows = rows(0, 4)
    for step, value in enumerate((math.nan, "NaN", None, math.inf)):
        run.rows[step][CE] = value
    read = stored(server, client)
    assert read["config"] == {"decay": "Infinity", "list": [1, {"deep": "NaN"}], "text": "NaN"}
    assert read["summary"] == {"loss": "-Infinity"}
    assert [row[2] for row in read["history"][CE]["rows"]] == ["NaN", "NaN", None, "Infinity"]
    assert math.isnan(float(read["history"][CE]["rows"][0][2]))


def test_a_sample_is_called_one_and_not_locked(server: WandB, client: Client) -> None:
    server.runs[0].rows = rows(0, 9000)
    content = wandb.read(HERO, client)
    series = json.loads(content.data)["history"][CE]
    assert (series["samples"], series["whole"], len(series["rows"])) == (2000, False, 1800)
    assert CE not in content.canonical
    assert content.notes == ("1 of 1 series are samples, and not locked",)
    server.runs[0].rows = rows(0, 1000)
    assert CE in wandb.read(HERO, client).canonical  # 1,000 of 2,000: all that there are


@pytest.mark.parametrize("obeys", [True, False])
def test_a_forked_run_is_cut_to_its_own_segment(server: WandB, client: Client, obeys: bool) -> None:
    server.obeys_bounds = obeys
    server.runs[0].rows = rows(107_900, 108_900)
    content = wandb.read(HERO, client, steps=(108_000, 108_778))
    run = json.loads(content.data)
    steps = [row[0] for row in run["history"][CE]["rows"]]
    assert (steps[0], steps[-1], len(steps)) == (108_000, 108_777, 778)
    assert run["steps"] == [108_000, 108_778]
    assert run["history"][CE]["outside"] == (1 if obeys else 222)
    assert "of another segment" in content.notes[0]
    open_end = stored(server, client, steps=(108_500, None))["history"][CE]["rows"]
    assert (open_end[0][0], open_end[-1][0]) == (108_500, 108_899)


@pytest.mark.parametrize("as_text", [True, False])
def test_of_a_step_that_stands_twice_the_later_row_is_kept(server: WandB, client: Client, as_text: bool) -> None:
    server.rows_as_text = as_text
    before, after = rows(200, 213), rows(201, 220)
    for row in after:
        row |= {"_timestamp": row["_timestamp"] + 3600, CE: -1.0}
    server.runs[0].rows = sorted(after + before, key=lambda row: row["_step"])  # as the service sorts them
    content = wandb.read(HERO, client)
    series = json.loads(content.data)["history"][CE]
    assert [row[2] for row in series["rows"]] == [0.2] + [-1.0] * 19
    assert series["replaced"] == 12
    assert content.notes == ("up to 12 steps of a series stand twice, after a restart: the later row is kept",)


def test_a_run_that_still_runs_is_locked_by_its_configuration(server: WandB, client: Client) -> None:
    server.runs[0].state = "running"
    content = wandb.read(HERO, client)
    assert list(content.canonical) == ["config"]
    assert content.notes == ("still running: locked by its configuration alone",)
    server.runs[0].config["model"]["hidden_dim"] = 1
    assert wandb.read(HERO, client).canonical != content.canonical


def test_only_the_part_that_was_edited_changes(server: WandB, client: Client) -> None:
    before = wandb.read(HERO, client).canonical
    server.runs[0].summary["_wandb"] = {"runtime": 6}
    assert wandb.read(HERO, client).canonical == before
    server.runs[0].rows[-1][MACRO] = 2.3
    after = wandb.read(HERO, client).canonical
    assert [part for part in after if after[part] != before[part]] == [MACRO]


def test_a_display_name_finds_its_run(server: WandB, client: Client) -> None:
    server.runs[0].id, server.runs[0].display_name = "x7k2", "hero-mix-996f4891-step108k"
    content = wandb.read(HERO, client)
    assert content.resolved == "x7k2"
    assert content.notes == ("hero-mix-996f4891-step108k is the display name of run x7k2",)
    server.runs.append(replace(server.runs[0], id="y"))
    with pytest.raises(Gone, match="no such run"):
        wandb.read(HERO, client)


def test_what_is_not_there_is_gone(server: WandB, client: Client) -> None:
    with pytest.raises(Gone, match=r"wandb\.ai/marin-community/marin_moe/runs/other: no such run"):
        wandb.read(replace(HERO, address="marin-community/marin_moe/other"), client)
    with pytest.raises(Gone, match="no such project, or no longer public"):
        wandb.read(replace(HERO, address="marin-community/private/other"), client)
    with pytest.raises(Gone, match="no such report"):
        wandb.read(replace(REPORT, address="marin-community/marin_moe/abc"), client)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("permission denied", Forbidden),
        ("project not found during upsertBucket", Gone),
        ('Cannot query field "sampledHistory" on type "Run".', Malformed),
    ],
)
def test_errors_inside_a_good_answer_are_heard(
    server: WandB, client: Client, message: str, kind: type[ServiceError]
) -> None:
    server.errors = [{"message": message, "path": ["project"]}]
    with pytest.raises(kind, match=message.split()[0]):
        wandb.read(HERO, client)


def test_a_report_is_its_view_and_names_its_runs(server: WandB, client: Client) -> None:
    content = wandb.read(REPORT, client)
    assert json.loads(content.data)["runs"] == ["rav-ladder-d768-v2", "rav-ladder-d1024"]
    assert json.loads(content.data)["spec"] == SPEC
    assert list(content.canonical) == ["title", "spec"]
    assert content.name == "wandb/marin-community/marin_moe/reports/VmlldzoxNzc2MDM5Ng==.json"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"config": "', b'"config": "{'),
        (b'"config": "', b'"config": "[], '),
        (b'"sampledHistory": [[', b'"sampledHistory": [['[:-1]),
        (b'"_step": 108000', b'"_step": 108000.5'),
        (b'"_step": 108000', b'"_step": "108000"'),
        (b'"data"', b'"date"'),
        (b'"state": "crashed"', b'"state": 3'),
        (b'"historyKeys": {"keys": {', b'"historyKeys": {"keys": 7, "x": {'),
    ],
)
def test_answers_of_another_form_are_told(server: WandB, client: Client, old: bytes, new: bytes) -> None:
    server.change(lambda request, answer: replace(answer, body=answer.body.replace(old, new, 1)))
    with pytest.raises(Malformed, match=r"not the form known of W&B|is not JSON"):
        wandb.read(HERO, client)


def test_a_configuration_nested_without_end_is_told(server: WandB, client: Client) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    server.runs[0].config = {"deep": deep}
    with pytest.raises(Malformed, match="nested too deeply"):
        wandb.read(HERO, client)


@pytest.mark.parametrize("fault", OF_JSON)
@pytest.mark.parametrize("artifact", [HERO, REPORT], ids=["run", "report"])
def test_a_fault_is_told_and_a_later_good_run_succeeds(
    server: WandB, make_client: Callable[..., Client], fault: str, artifact: Artifact
) -> None:
    kind, words = OF_JSON[fault]
    if "redirect" in fault:
        words = "a POST was redirected to .*, which is refused"
    server.fault(fault)
    with pytest.raises(kind, match=words):
        wandb.read(artifact, make_client(max_bytes=100_000, timeout=0.1))
    server.faults.clear()
    assert wandb.read(artifact, make_client()).data
