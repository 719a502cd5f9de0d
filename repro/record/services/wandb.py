"""Weights & Biases, anonymously over GraphQL: a run's configuration, summary and metrics, and a report's view.

    {"run", "id", "display_name", "state", "created_at", "heartbeat_at", "steps": [first, end] or null,
     "config": {…}, "summary": {…},
     "history": {metric: {"samples", "whole", "replaced", "outside", "rows": [[step, unix time, value], …]}}}

What is odd about W&B's answers, and what is made of it:

- `config` and `summaryMetrics` are JSON inside JSON, and a setting's value lies under "value": both are unwrapped.
- NaN and Infinity come as bare words or as strings. They are kept as the strings "NaN", "Infinity" and "-Infinity",
  which `float` reads back; null stays null, and a row without the metric is no row.
- `sampledHistory` is a sample, of rows that have all keys of a spec. So every metric has its own spec, and a series is
  called whole only where at most half as many rows came as were asked for. Only whole series are locked: a second
  sample of the same run may have other rows.
- A run that was forked from another shows that run's rows too. Given the steps of its own segment (end exclusive),
  rows `outside` are left out and counted.
- After a restart a step may stand twice. The row with the later time is kept (of two with one time, the one that came
  later), and the number `replaced` is noted.
- A run that still runs is locked by its configuration alone; the rest grows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from repro.record.artifacts import ADDRESSES, Artifact
from repro.record.services.answers import TRY_LATER, Response, refusal
from repro.record.services.content import Content, canonical_sha256, limit, safe_name, stored_json
from repro.record.services.errors import Forbidden, Gone, Malformed, ServiceError, quoted
from repro.record.services.http import Client, base_address

RUN = """query Run($entity: String!, $project: String!, $run: String!) { project(name: $project, entityName: $entity) {
  run(name: $run) { name displayName state createdAt heartbeatAt config summaryMetrics historyKeys } } }"""
NAMED = """query Named($entity: String!, $project: String!, $filters: JSONString) {
  project(name: $project, entityName: $entity) { runs(first: 2, filters: $filters) { edges { node { name } } } } }"""
HISTORY = """query History($entity: String!, $project: String!, $run: String!, $specs: [JSONString!]!) {
  project(name: $project, entityName: $entity) { run(name: $run) { sampledHistory(specs: $specs) } } }"""
VIEW = "query View($id: ID!) { view(id: $id) { id displayName spec } }"

DENSE = (  # logged at every step, or every few
    *("train/cross_entropy_loss", "train/loss", "grad/norm/total", "optim/learning_rate", "optim/adam_lr"),
    *("throughput/mfu", "throughput/tokens_per_second", "throughput/duration", "throughput/total_tokens"),
    *("moe/drop_fraction", "moe/sender_drop_fraction", "moe/receiver_drop_fraction", "run_progress", "mixture/stage"),
)
EVALUATION = re.compile(r"eval(_dropless)?/paloma/([^/]+/(loss|bpb)|macro_loss|micro_loss|macro_bpb|bpb)")
MAX_DEPTH = 100  # of a configuration or a report
DENSE_SAMPLES, EVALUATION_SAMPLES = 2000, 10_000  # rows asked for, of each metric


def read(artifact: Artifact, client: Client, steps: tuple[int, int | None] | None = None) -> Content:
    """What a wandb-run or wandb-report is now. `steps`: first and end (exclusive, None: open) of a run's own segment.
    Raises a ServiceError."""
    match = re.fullmatch(ADDRESSES[artifact.kind], artifact.address)
    assert match is not None  # checked where the record is read
    entity, _, project = match["project"].partition("/")
    if artifact.kind == "wandb-report":
        return _read_report(artifact, entity, project, match["id"], client)
    return _read_run(artifact, {"entity": entity, "project": project, "run": match["id"]}, steps, client)


def _read_run(
    artifact: Artifact, named: dict[str, str], steps: tuple[int, int | None] | None, client: Client
) -> Content:
    name = safe_name("wandb", named["entity"], named["project"], f"{named['run']}.json")
    notes = []
    run = _project(artifact, client, RUN, named).get("run")
    if run is None and (id := _named(artifact, client, named)) is not None:
        notes.append(f"{named['run']} is the display name of run {id}")
        named = {**named, "run": id}
        run = _project(artifact, client, RUN, named).get("run")
    if run is None:
        raise Gone(f"{artifact.url}: no such run, or no longer public. Check the address; look for a copy.", 404)
    run = _inner(artifact, run, "run")
    if not isinstance(run.get("name"), str) or not isinstance(run.get("state"), str):
        raise _unexpected(artifact, "run.name, run.state")
    config = _unwrapped(_inner(artifact, run.get("config") or {}, "config"))
    summary = _inner(artifact, run.get("summaryMetrics") or {}, "summaryMetrics")
    summary.pop("_wandb", None)
    history = _history(artifact, client, named, _chosen(artifact, run.get("historyKeys")), steps)
    notes += _history_notes(history)
    running = run["state"] == "running"
    canonical = {"config": canonical_sha256(config)}
    if running:
        notes.append("still running: locked by its configuration alone")
    else:
        canonical |= {"state": canonical_sha256(run["state"]), "summary": canonical_sha256(summary)}
        canonical |= {metric: canonical_sha256(series["rows"]) for metric, series in history.items() if series["whole"]}
    stored = {
        "run": artifact.address,
        "id": run["name"],
        "display_name": run.get("displayName"),
        "state": run["state"],
        "created_at": run.get("createdAt"),
        "heartbeat_at": run.get("heartbeatAt"),
        "steps": list(steps) if steps else None,
        "config": config,
        "summary": summary,
        "history": history,
    }
    return Content(stored_json(stored, indent=None), name, None, canonical, run["name"], "", tuple(notes))


def _read_report(artifact: Artifact, entity: str, project: str, id: str, client: Client) -> Content:
    name = safe_name("wandb", entity, project, "reports", f"{id}.json")
    view = _ask(artifact, client, VIEW, {"id": id}).get("view")
    if view is None:
        raise Gone(f"{artifact.url}: no such report, or no longer public. Check the id; look for a copy.", 404)
    if not isinstance(view, dict):
        raise _unexpected(artifact, "view")
    spec = _inner(artifact, view.get("spec"), "spec")
    title = str(view.get("displayName") or "")
    canonical = {"title": canonical_sha256(title), "spec": canonical_sha256(spec)}
    stored = {"report": artifact.address, "title": title, "runs": _runs_of(spec), "spec": spec}
    return Content(stored_json(stored), name, None, canonical, "", "")


def _runs_of(spec: Mapping[str, Any]) -> list[str]:
    """Ids of the runs that a report's panel grids select, in their order."""
    found: list[str] = []
    for block in spec.get("blocks") or []:
        metadata = block.get("metadata") if isinstance(block, dict) else None
        for group in (metadata.get("runSets") or []) if isinstance(metadata, dict) else []:
            selections = group.get("selections") if isinstance(group, dict) else None
            tree = selections.get("tree") if isinstance(selections, dict) else None
            found += [run for run in tree or [] if isinstance(run, str) and run not in found]
    return found


def _named(artifact: Artifact, client: Client, named: Mapping[str, str]) -> str | None:
    """Id of the one run whose display name this is; None where none is, or several are."""
    filters = json.dumps({"display_name": {"$regex": f"^{re.escape(named['run'])}$"}})
    variables = {"entity": named["entity"], "project": named["project"], "filters": filters}
    match _project(artifact, client, NAMED, variables):
        case {"runs": {"edges": [{"node": {"name": str(id)}}]}}:
            return id
        case {"runs": {"edges": list()}} | {"runs": None}:
            return None
    raise _unexpected(artifact, "runs.edges")


def _chosen(artifact: Artifact, history_keys: Any) -> list[str]:
    """The metrics that are read, of those that the run has: `historyKeys` is {"keys": {metric: …}}, or the inside."""
    keys = _inner(artifact, history_keys or {}, "historyKeys")
    keys = keys.get("keys", keys)
    if not isinstance(keys, dict | list):
        raise _unexpected(artifact, "historyKeys.keys")
    return [key for key in DENSE if key in keys] + sorted(key for key in keys if EVALUATION.fullmatch(str(key)))


def _history(
    artifact: Artifact,
    client: Client,
    named: Mapping[str, str],
    metrics: list[str],
    steps: tuple[int, int | None] | None,
) -> dict[str, dict[str, Any]]:
    if not metrics:
        return {}
    bounds = {} if steps is None else {"minStep": steps[0], **({} if steps[1] is None else {"maxStep": steps[1]})}
    asked = {metric: DENSE_SAMPLES if metric in DENSE else EVALUATION_SAMPLES for metric in metrics}
    specs = [
        json.dumps({"keys": ["_step", "_timestamp", metric], "samples": samples, **bounds})
        for metric, samples in asked.items()
    ]
    run = _project(artifact, client, HISTORY, {**named, "specs": specs}).get("run")
    lists = run.get("sampledHistory") if isinstance(run, dict) else None
    if not isinstance(lists, list) or len(lists) != len(metrics) or not all(isinstance(rows, list) for rows in lists):
        raise _unexpected(artifact, "sampledHistory")
    return {
        metric: _series(artifact, metric, asked[metric], rows, steps)
        for metric, rows in zip(metrics, lists, strict=True)
    }


def _series(
    artifact: Artifact, metric: str, samples: int, rows: list[Any], steps: tuple[int, int | None] | None
) -> dict[str, Any]:
    """One metric's rows within `steps`, by step, each step once."""
    first, end = (0, None) if steps is None else steps
    kept: dict[int, tuple[float, Any]] = {}
    replaced = outside = 0
    for row in rows:
        row = _inner(artifact, row, metric)
        if metric not in row:
            continue
        match row:
            case {"_step": int() | float() as place, "_timestamp": int() | float() as moment} if place == int(place):
                step = int(place)
            case _:
                raise _unexpected(artifact, f"{metric}, _step and _timestamp of {row}")
        if step < first or (end is not None and step >= end):
            outside += 1
            continue
        if step in kept:
            replaced += 1
            if kept[step][0] > moment:
                continue
        kept[step] = (moment, row[metric])
    listed = [[step, moment, value] for step, (moment, value) in sorted(kept.items())]
    whole = 2 * len(rows) <= samples
    return {"samples": samples, "whole": whole, "replaced": replaced, "outside": outside, "rows": listed}


def _history_notes(history: Mapping[str, Mapping[str, Any]]) -> list[str]:
    notes = []
    if sampled := sum(not series["whole"] for series in history.values()):
        notes.append(f"{sampled} of {len(history)} series are samples, and not locked")
    if replaced := max((series["replaced"] for series in history.values()), default=0):
        notes.append(f"up to {replaced} steps of a series stand twice, after a restart: the later row is kept")
    if outside := max((series["outside"] for series in history.values()), default=0):
        notes.append(f"up to {outside} rows of a series are of another segment, and were left out")
    return notes


def _project(artifact: Artifact, client: Client, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    project = _ask(artifact, client, query, variables).get("project")
    if project is None:
        raise Gone(f"{artifact.url}: no such project, or no longer public. Check the address; look for a copy.", 404)
    if not isinstance(project, dict):
        raise _unexpected(artifact, "project")
    return project


def _ask(artifact: Artifact, client: Client, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The `data` of a GraphQL answer."""
    response = client.exchange(
        "POST",
        f"{base_address('MARIN_REPRO_WANDB_API', 'https://api.wandb.ai')}/graphql",
        headers={"content-type": "application/json", "accept-encoding": "gzip"},
        content=json.dumps({"query": query, "variables": variables}).encode(),
        limit=limit(artifact.kind, client),
    )
    if response.status != 200:
        raise refusal(response)
    answer = response.json()
    if isinstance(answer, dict) and answer.get("errors"):
        raise _refused(artifact, response, answer["errors"])
    if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
        raise _unexpected(artifact, "data")
    data: dict[str, Any] = answer["data"]
    return data


def _refused(artifact: Artifact, response: Response, errors: Any) -> ServiceError:
    """What the errors of a GraphQL answer, which comes with status 200, mean."""
    first = errors[0] if isinstance(errors, list) else errors
    words = quoted(str(first.get("message", first) if isinstance(first, dict) else first))
    if re.search(r"not found|could not find|does not exist", words, re.I):
        return Gone(
            f"{artifact.url}: not there, or no longer public ({words}). Check the address; look for a copy.", 404
        )
    if re.search(r"permission|denied|unauthor|forbidden|log ?in", words, re.I):
        return Forbidden(f"{artifact.url}: not open to us ({words}). Ask its owner to make the project public.", 403)
    return Malformed(f"{artifact.url}: the service refused the question ({words}). {TRY_LATER}")


def _inner(artifact: Artifact, value: Any, what: str) -> dict[str, Any]:
    """An object that may come as JSON text; numbers that are not finite become their names."""
    try:
        value = _finite(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, RecursionError) as error:
        raise _unexpected(artifact, f"{what}: {error}") from error
    if not isinstance(value, dict):
        raise _unexpected(artifact, what)
    result: dict[str, Any] = value
    return result


def _finite(value: Any, depth: int = 0) -> Any:
    """The value with names for numbers that are not finite. ValueError where it is nested too deeply to be stored."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(inner, depth + 1) for key, inner in value.items()}
    return [_finite(inner, depth + 1) for inner in value] if isinstance(value, list) else value


def _unwrapped(config: Mapping[str, Any]) -> dict[str, Any]:
    """{"section": {"desc": …, "value": X}} → {"section": X}, without W&B's own `_wandb`."""
    return {
        key: item["value"] if isinstance(item, dict) and "value" in item and set(item) <= {"value", "desc"} else item
        for key, item in config.items()
        if key != "_wandb"
    }


def _unexpected(artifact: Artifact, what: str) -> Malformed:
    return Malformed(f"{artifact.url}: the answer has not the form known of W&B (at {quoted(what)}). {TRY_LATER}")
