"""A small public record behind stand-ins of all services, and a record.toml that asks for an artifact of every kind."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from tests.servers.base import Server
from tests.servers.github import COMMIT, GitHub, comment, issue
from tests.servers.hub import REVISION, Hub
from tests.servers.objects import Objects
from tests.servers.wandb import Run, WandB

REPO = "marin-community/marin"
CODE = b"BETA = 0.9\nSTEPS = 390_251\n"
METRIC = "eval_dropless/paloma/macro_loss"
TOML = f"""
[run]
name = "small"
title = "A small run"
issue = "https://github.com/{REPO}/issues/8435"
commit = "{COMMIT}"
snapshot = 2026-01-31

[[artifact]]
id = "code"
role = "launcher code"
kind = "github-file"
address = "{REPO}:a/launch.py"
pin = "{COMMIT}"
digest = "git-sha1"

[[artifact]]
id = "folder"
role = "launcher code"
kind = "github-tree"
address = "{REPO}:a"
pin = "{COMMIT}"
digest = "none"

[[artifact]]
id = "thread"
role = "discussion"
kind = "github-issue"
address = "{REPO}#8435"
digest = "canonical"

[[artifact]]
id = "run"
role = "metrics"
kind = "wandb-run"
address = "marin-community/marin_moe/ladder"
digest = "canonical"

[[artifact]]
id = "report"
role = "metrics"
kind = "wandb-report"
address = "marin-community/marin_moe/Vmlldzox"
digest = "canonical"

[[artifact]]
id = "tokenizer"
role = "config"
kind = "hub-tree"
address = "models/marin-community/marin-tokenizer"
pin = "{REVISION}"
digest = "sha256"

[[artifact]]
id = "vocabulary"
role = "config"
kind = "hub-file"
address = "models/marin-community/marin-tokenizer/vocab.json"
pin = "{REVISION}"
digest = "sha256"

[[artifact]]
id = "results"
role = "metrics"
kind = "object"
address = "https://storage.googleapis.com/marin-public/final/results.csv"
digest = "crc32c"

[[artifact]]
id = "page"
role = "discussion"
kind = "page"
address = "https://storage.googleapis.com/marin-public/note/index.html"
digest = "crc32c"

[[artifact]]
id = "store"
role = "corpus"
kind = "object"
address = "https://storage.googleapis.com/closed/store.json"
digest = "none"
expectation = "forbidden"
"""
OPEN = ("code", "folder", "thread", "run", "report", "tokenizer", "vocabulary", "results", "page")


@dataclass
class World:
    github: GitHub
    wandb: WandB
    hub: Hub
    store: Objects

    def serving(self, kind: str) -> Server:
        """The stand-in that artifacts of a kind come from."""
        name = kind.partition("-")[0]
        return {"github": self.github, "wandb": self.wandb, "hub": self.hub}.get(name, self.store)

    @property
    def servers(self) -> tuple[Server, ...]:
        return (self.github, self.wandb, self.hub, self.store)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that lead the program here."""
        return {
            "MARIN_REPRO_GITHUB_API": self.github.url,
            "MARIN_REPRO_GITHUB_RAW": f"{self.github.url}/raw",
            "MARIN_REPRO_WANDB_API": self.wandb.url,
            "HF_ENDPOINT": self.hub.url,
            "MARIN_REPRO_MIRRORS": f"https://storage.googleapis.com={self.store.url}",
            "NO_PROXY": "127.0.0.1",
        }

    def asked(self) -> list[str]:
        """Method and address of every request so far."""
        return [f"{request.method} {request.target}" for server in self.servers for request in server.requests]

    def forget(self) -> None:
        for server in self.servers:
            server.requests.clear()

    def heal(self) -> None:
        for server in self.servers:
            server.faults.clear()

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Afterwards every stand-in is as it was: what it serves, its faults, its settings."""
        kept = [copy.deepcopy({name: vars(server)[name] for name in _settings(server)}) for server in self.servers]
        try:
            yield
        finally:
            for server, values in zip(self.servers, kept, strict=True):
                vars(server).update(values)


def _settings(server: Server) -> list[str]:
    return [part.name for part in fields(server)]


@contextmanager
def running() -> Iterator[World]:
    """The stand-ins, serving."""
    github = GitHub(files={"a/launch.py": CODE, "a/b/model.py": b"x = 1\n"})
    github.issues = {8435: issue(REPO, 8435, "The plan. See #9162, and #77."), 9162: issue(REPO, 9162, "A switch")}
    github.comments = {8435: [comment(REPO, 8435, 1, "18.0T tokens"), comment(REPO, 8435, 2, "launched")]}
    rows = [{"_step": step, "_timestamp": 1.0 + step, METRIC: 3.0 - step / 10} for step in range(4)]
    wandb = WandB(runs=[Run("ladder", config={"a": {"b": 1}}, summary={"c": 2.0}, rows=rows)])
    wandb.reports = {"Vmlldzox": {"blocks": [{"metadata": {"runSets": [{"selections": {"tree": ["ladder"]}}]}}]}}
    hub = Hub(files={"vocab.json": b'{"a": 1}\n', "model.bin": b"weights"}, lfs={"model.bin"})
    store = Objects(objects={"final/results.csv": b"a,b\n1,2\n", "note/index.html": b"<html><p>Note</p>\n</html>"})
    store.types = {"note/index.html": "text/html"}
    with ExitStack() as stack:
        for server in (github, wandb, hub, store):
            stack.enter_context(server)
        yield World(github, wandb, hub, store)


def write_record(folder: Path, toml: str = TOML) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.toml").write_text(toml)
    return folder


if __name__ == "__main__":  # to try the commands by hand: prints the variables, and serves until interrupted
    with running() as world:
        print("\n".join(f"export {name}={value!r}" for name, value in world.environment.items()), flush=True)
        os.read(0, 1)
