"""Whatever a service answers becomes a Content or a ServiceError: never another exception, which would be our bug."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from repro.record.artifacts import Artifact
from repro.record.services import github, readers
from repro.record.services.errors import ServiceError
from repro.record.services.http import Client
from tests.servers.base import Answer, Request, Server
from tests.servers.github import COMMIT, GitHub, comment, issue
from tests.servers.hub import REVISION, Hub
from tests.servers.wandb import Run, WandB

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 10**30, 0.5, float("nan"), float("-inf"), "", "\ud800", "x" * 5000, "\0", "a/b"),
    *([], {}, [None], {"": None}, [[]], ["x"], {"keys": 3}, "[]", "{", '{"value": [NaN]}', COMMIT),
)
ROUNDS = 150
METRIC = "eval_dropless/paloma/macro_loss"


def mutate(value: Any, chance: random.Random) -> Any:
    """A copy with one node replaced by junk, left out, or doubled."""
    value = copy.deepcopy(value)
    nodes: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            nodes.append((node, key))
            collect(node[key])

    collect(value)
    if not nodes or chance.random() < 0.05:
        return chance.choice(JUNK)
    parent, key = chance.choice(nodes)
    deed = chance.random()
    if deed < 0.2:
        del parent[key]
    elif deed < 0.3 and isinstance(parent, list):
        parent.append(parent[key])
    else:
        parent[key] = chance.choice(JUNK)
    return value


def spoil(chance: random.Random, seen: list[bytes]) -> Any:
    def change(request: Request, answer: Answer) -> Answer:
        try:
            value = json.loads(answer.body)
        except ValueError:
            return answer
        if chance.random() < 0.5:
            return answer  # so that later questions of a reader are reached too
        body = json.dumps(mutate(value, chance)).encode()
        seen.append(body)
        return replace(answer, body=body)

    return change


ARTIFACT = Artifact(id="x", role="config", kind="page", address="https://a.example/", digest="none")
ARTIFACTS = {
    "github-file": replace(ARTIFACT, kind="github-file", address="marin-community/marin:a/b.py", pin=COMMIT),
    "github-tree": replace(ARTIFACT, kind="github-tree", address="marin-community/marin:", pin=COMMIT),
    "github-issue": replace(ARTIFACT, kind="github-issue", address="marin-community/marin#1"),
    "wandb-run": replace(ARTIFACT, kind="wandb-run", address="marin-community/marin_moe/run"),
    "wandb-report": replace(ARTIFACT, kind="wandb-report", address="marin-community/marin_moe/report"),
    "hub-tree": replace(ARTIFACT, kind="hub-tree", address="models/marin-community/marin-tokenizer", pin=REVISION),
    "hub-file": replace(ARTIFACT, kind="hub-file", address="models/marin-community/marin-tokenizer/d/a", pin=REVISION),
}


@pytest.fixture
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made: Server
    if request.param.startswith("github"):
        made = GitHub(files={"a/b.py": b"x\n", "c": b""}, issues={1: issue("marin-community/marin", 1, "#2")})
        made.comments = {1: [comment("marin-community/marin", 1, number, "text") for number in (5, 6)]}
    elif request.param.startswith("wandb"):
        rows = [{"_step": step, "_timestamp": 1.0 + step, METRIC: 2.0} for step in range(4)]
        made = WandB(runs=[Run("run", config={"a": {"b": 1}}, summary={"c": 2.0}, rows=rows)])
        made.reports = {"report": {"blocks": [{"metadata": {"runSets": [{"selections": {"tree": ["r"]}}]}}]}}
    else:
        made = Hub(files={"a": b"1", "d/a": b"2"}, lfs={"a"})
    with made:
        for name in ("MARIN_REPRO_GITHUB_API", "MARIN_REPRO_WANDB_API", "HF_ENDPOINT"):
            monkeypatch.setenv(name, made.url)
        monkeypatch.setenv("MARIN_REPRO_GITHUB_RAW", f"{made.url}/raw")
        yield made


@pytest.mark.parametrize(("server", "kind"), [(kind, kind) for kind in ARTIFACTS], indirect=["server"])
def test_no_answer_makes_a_reader_fail_otherwise_than_it_says(server: Server, kind: str, client: Client) -> None:
    artifact = ARTIFACTS[kind]
    whole = readers.read(artifact, client)
    chance = random.Random(kind)
    seen: list[bytes] = []
    told: list[str] = []
    server.change(spoil(chance, seen))
    for _ in range(ROUNDS):
        client._known.clear()  # each round asks for everything again
        seen.clear()
        try:
            content = readers.read(artifact, client)
            if kind == "github-issue":
                github.linked_issues(content)
        except ServiceError as error:
            told.append(str(error))
        except Exception as error:
            raise AssertionError(f"{error!r} after {[body[:300] for body in seen]}") from error
    assert all(message.isprintable() and len(message) < 1200 for message in told)
    assert ROUNDS / 10 < len(told) < ROUNDS  # junk was heard, and was not all that came
    server.faults.clear()
    client._known.clear()
    assert readers.read(artifact, client) == whole
