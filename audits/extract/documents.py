"""A fetched file → its documents: an issue and each of its comments, a run's configuration and summary, a page, a card.

A document is what one author published at one address and time: a source of `claims.json`. Forms are told by the name
of a file, and JSON by what it holds (`repro.record.services` says how issues and W&B runs are stored).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from audits.claims import Date
from audits.extract.passages import one_line
from repro.errors import RecordError

Form = Literal["markdown", "html", "python", "lines", "leaves"]
FORMS: Mapping[str, Form] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".py": "python",
    ".cff": "lines",
    ".toml": "lines",
    ".yaml": "lines",
    ".yml": "lines",
    ".txt": "lines",
}
KINDS: Mapping[Form, str] = {"html": "project-page", "python": "launcher-code", "leaves": "run-configuration"}
MAX_DEPTH = 50  # of settings


@dataclass(frozen=True, kw_only=True)
class Document:
    """One source. `text` is what it says; `leaves` are the settings or metrics of one that says nothing in words."""

    id: str
    kind: str  # of audits.claims.SOURCE_KINDS
    address: str = ""
    citation: str
    date: Date
    form: Form
    text: str = ""
    leaves: tuple[tuple[str, Any], ...] = ()
    run: str = ""  # id of the W&B run whose leaves these are
    step: str = ""  # the log step at which metrics were read


def documents_of(name: str, data: bytes, address: str = "", kind: str = "", date: str = "") -> list[Document]:
    """The documents of a file. `address`, `kind` and `date` are of a file that does not say them itself.

    Raises RecordError where JSON cannot be read, or the form is not known.
    """
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".json":
        return _of_json(name, _parse(name, data), address, kind, date)
    if suffix not in FORMS:
        raise RecordError(f"{name}: no form that is read; they are {', '.join(sorted({*FORMS, '.json'}))}.")
    form = FORMS[suffix]
    one = Document(
        id=_id(name),
        kind=kind or KINDS.get(form, "repository-document"),
        address=address,
        citation=address or name,
        date=Date(text=date or "not known", first=date, last=date),
        form=form,
        text=data.decode(errors="replace").replace("\r\n", "\n"),
    )
    return [one]


def _parse(name: str, data: bytes) -> Any:
    """JSON as W&B and others write it: NaN and 1e999 are kept, to be told as no numbers."""
    try:
        return json.loads(data.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name}: not JSON that can be read: {one_line(str(error))}.") from error


def _of_json(name: str, content: Any, address: str, kind: str, date: str) -> list[Document]:
    match content:
        case {"repository": str(), "number": int(), "comments": list()}:
            return list(_thread(content))
        case {"run": str(), "id": str(), "config": dict(), "summary": dict()}:
            return list(_run(content))
    leaves = tuple(_leaves(content))
    return [
        Document(
            id=_id(name),
            kind=kind or "run-configuration",
            address=address,
            citation=address or name,
            date=Date(text=date or "not known", first=date, last=date),
            form="leaves",
            leaves=leaves,
        )
    ]


def _thread(thread: Mapping[str, Any]) -> Iterator[Document]:
    """The first post and the comments of an issue or a pull request."""
    number = thread["number"]
    title = one_line(str(thread.get("title") or ""))
    pull = "/pull/" in str(thread.get("url") or "")
    named = f"{'pull request' if pull else 'issue'} {thread['repository']}#{number}"
    body = f"# {title}\n\n{thread.get('body') or ''}"
    yield _written(thread, f"issue-{number}", "pull-request" if pull else "issue-body", f"{named}: {title}", body)
    for comment in thread["comments"]:
        if isinstance(comment, Mapping):
            id = one_line(str(comment.get("id") or ""), 40)
            author = one_line(str(comment.get("author") or "an unknown author"), 60)
            citation = f"{named}, comment {id} by {author}"
            yield _written(
                comment, f"issue-{number}-comment-{id}", "issue-comment", citation, str(comment.get("body") or "")
            )


def _written(item: Mapping[str, Any], id: str, kind: str, citation: str, text: str) -> Document:
    created, updated = (one_line(str(item.get(key) or ""), 40) for key in ("created_at", "updated_at"))
    words = created if updated in ("", created) else f"{created}, edited until {updated}"
    return Document(
        id=id,
        kind=kind,
        address=_link(item.get("url")),
        citation=citation,
        date=Date(text=words or "not known", first=created, last=updated or created),
        form="markdown",
        text=text,
    )


def _link(url: Any) -> str:
    """An address that may be shown as a link; empty for any other."""
    return url if isinstance(url, str) and re.fullmatch(r"https?://[!-~]{1,2000}", url) else ""


def _run(run: Mapping[str, Any]) -> Iterator[Document]:
    """Configuration and summary of a W&B run."""
    id = one_line(run["id"], 120)
    address = f"https://wandb.ai/{run['run'].rpartition('/')[0]}/runs/{run['id']}"
    moment = one_line(str(run.get("heartbeat_at") or run.get("created_at") or ""), 40)
    step = run["summary"].get("_step")
    last = str(int(step)) if isinstance(step, int | float) and math.isfinite(step) else ""
    for kind, key in (("run-configuration", "config"), ("run-metric", "summary")):
        yield Document(
            id=f"{_id(id)}-{key}",
            kind=kind,
            address=_link(address),
            citation=f"W&B {key} of {id}",
            date=Date(text=moment or "not known", first=moment, last=moment),
            form="leaves",
            leaves=tuple(_leaves(run[key])),
            run=id,
            step=last if key == "summary" else "",
        )


def _leaves(content: Any) -> Iterator[tuple[str, Any]]:
    """Path and value of every leaf, in the order of the file."""
    waiting: list[tuple[str, Any, int]] = [("", content, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        inner: Sequence[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            inner = list(value.items())
        elif isinstance(value, list):
            inner = list(enumerate(value))
        else:
            yield path, value
            continue
        if depth < MAX_DEPTH:
            waiting += [(f"{path}.{key}".lstrip("."), one, depth + 1) for key, one in reversed(inner)]


def _id(name: str) -> str:
    """A name as an id: letters, digits, dots and hyphens."""
    return re.sub(r"[^A-Za-z0-9.]{1,400}", "-", name).strip("-.")[-120:] or "document"
