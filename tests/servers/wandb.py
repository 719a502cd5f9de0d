"""W&B's GraphQL endpoint, as far as a reader of public runs and reports uses it.

Answers have the shapes that anonymous readers stored of marin-community/marin_moe: `config` and `summaryMetrics` are
JSON text with wrapped values, `historyKeys` is an object, `sampledHistory` has a list a spec, of rows with all keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.servers.base import Answer, Request, Server


@dataclass
class Run:
    """One run; `rows` as they were logged, one after the other."""

    id: str
    display_name: str = ""
    state: str = "finished"
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class WandB(Server):
    """One public project with its runs and reports."""

    entity: str = "marin-community"
    project: str = "marin_moe"
    runs: list[Run] = field(default_factory=list)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)  # id → spec
    errors: list[dict[str, Any]] = field(default_factory=list)  # of every answer
    rows_as_text: bool = False  # rows come as JSON text, as some deployments send them
    obeys_bounds: bool = True  # minStep and maxStep of a spec are heard

    def answer(self, request: Request) -> Answer:
        if request.path != "/graphql" or request.method != "POST":
            return Answer(404, (), b'{"message": "not found"}')
        question = json.loads(request.body)
        variables = question["variables"]
        if self.errors:
            return _json({"errors": self.errors, "data": None})
        if "view(" in question["query"]:
            spec = self.reports.get(variables["id"])
            view = {"id": variables["id"], "displayName": "Hero Run Scaling Ladder", "spec": json.dumps(spec)}
            return _json({"data": {"view": view if spec is not None else None}})
        if (variables["entity"], variables["project"]) != (self.entity, self.project):
            return _json({"data": {"project": None}})
        if "runs(" in question["query"]:
            wanted = json.loads(variables["filters"])["display_name"]["$regex"]
            found = [run for run in self.runs if wanted == f"^{run.display_name.replace('-', chr(92) + '-')}$"]
            return _json({"data": {"project": {"runs": {"edges": [{"node": {"name": run.id}} for run in found[:2]]}}}})
        run = next((run for run in self.runs if run.id == variables["run"]), None)
        if run is None:
            return _json({"data": {"project": {"run": None}}})
        if "sampledHistory" in question["query"]:
            lists = [self._sample(run, json.loads(spec)) for spec in variables["specs"]]
            return _json({"data": {"project": {"run": {"sampledHistory": lists}}}})
        return _json({"data": {"project": {"run": _described(run)}}})

    def _sample(self, run: Run, spec: dict[str, Any]) -> list[Any]:
        first, last = (spec.get("minStep", 0), spec.get("maxStep", 10**12)) if self.obeys_bounds else (0, 10**12)
        rows = [
            {key: row[key] for key in spec["keys"]}
            for row in run.rows
            if all(key in row for key in spec["keys"]) and first <= row["_step"] <= last
        ]
        stride = -(-len(rows) // spec["samples"]) if rows else 1
        return [json.dumps(row) if self.rows_as_text else row for row in rows[::stride]]


def _described(run: Run) -> dict[str, Any]:
    keys = {key for row in run.rows for key in row}
    wrapped = {key: {"desc": None, "value": value} for key, value in run.config.items()}
    return {
        "name": run.id,
        "displayName": run.display_name or run.id,
        "state": run.state,
        "createdAt": "2026-09-15T17:17:46Z",
        "heartbeatAt": "2026-09-15T23:20:06Z",
        "config": json.dumps({"_wandb": {"value": {"cli_version": "0.26.0"}}, **wrapped}),
        "summaryMetrics": json.dumps(run.summary),
        "historyKeys": {"keys": {key: {"typeCounts": [{"type": "number"}]} for key in sorted(keys)}, "lastStep": 1},
    }


def _json(value: Any) -> Answer:
    return Answer(200, (("content-type", "application/json; charset=utf-8"),), json.dumps(value).encode())
