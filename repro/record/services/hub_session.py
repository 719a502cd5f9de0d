"""Lets `huggingface_hub` ask through our client: its addresses, headers and token; our time-outs, sizes and redirects.

By itself the library follows a listing to whatever host and for as long as the listing says, with the token, without a
time-out and without a bound on an answer. Its public `set_client_factory` takes a session class; ours sends as the
library's own does, except while a `lent` client is asking (in this thread), whose errors pass through the library.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx2
from huggingface_hub.utils import get_session, set_client_factory

from repro.record.services.answers import TRY_LATER, Response, refusal
from repro.record.services.errors import Forbidden, Gone, Malformed, ServiceError, TooLarge, shown
from repro.record.services.http import Client

MAX_REQUESTS = 200  # of one artifact; the hub lists 1,000 files an answer (huggingface_hub's source)


@dataclass
class _Asking:
    """The client that is lent, the only address it may ask, and what it asked already."""

    client: Client
    endpoint: str
    limit: int
    asked: set[tuple[str, str, bytes]] = field(default_factory=set)


_INSTALLING = threading.Lock()
_ASKING: ContextVar[_Asking | None] = ContextVar("asking", default=None)


@contextmanager
def lent(client: Client, endpoint: str, limit: int) -> Iterator[None]:
    """Within, `huggingface_hub` asks through `client`, only below `endpoint`, for answers of at most `limit` bytes."""
    with _INSTALLING:  # one thread's new factory would close the session that another is looking at
        _install()
    token = _ASKING.set(_Asking(client, endpoint, limit))
    try:
        yield
    finally:
        _ASKING.reset(token)


@cache
def _install() -> None:
    """Once a process: replace the library's session by one that is the same, but for a lent client."""
    usual = get_session()
    kept: dict[str, Any] = {
        "event_hooks": usual.event_hooks,
        "follow_redirects": usual.follow_redirects,
        "timeout": usual.timeout,
    }
    set_client_factory(lambda: _Session(**kept))


class _Session(httpx2.Client):
    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        asking = _ASKING.get()
        if asking is None:
            return super().send(request, **options)
        answer = _ask(asking, request.method, str(request.url), dict(request.headers), request.read())
        headers = {name: answer.headers[name] for name in ("content-type", "link") if name in answer.headers}
        return httpx2.Response(answer.status, headers=headers, content=answer.body, request=request)


def _ask(asking: _Asking, method: str, url: str, headers: dict[str, str], content: bytes) -> Response:
    """One request of the library's, answered with JSON or a ServiceError."""
    if not url.startswith(asking.endpoint + "/"):
        raise Malformed(f"{asking.endpoint}: goes on at {shown(url)}, where it is not followed. {TRY_LATER}")
    if (method, url, content) in asking.asked:
        raise Malformed(f"{shown(url)}: the listing goes in a circle. {TRY_LATER}")
    if len(asking.asked) >= MAX_REQUESTS:
        raise TooLarge(f"{shown(url)}: the listing has more than {MAX_REQUESTS} parts.")
    asking.asked.add((method, url, content))
    passed = {"accept-encoding": "gzip"}
    passed |= {name: headers[name] for name in ("authorization", "content-type", "user-agent") if name in headers}
    answer = asking.client.exchange(method, url, headers=passed, content=content or None, limit=asking.limit)
    if answer.status != 200:
        raise hub_refusal(answer)
    answer.json()  # raises for what is none, in our words
    return answer


def hub_refusal(response: Response) -> ServiceError:
    """The error of a refusal: the hub says in X-Error-Code what its status leaves open."""
    code = response.headers.get("x-error-code", "")
    where = shown(response.url)
    if code == "GatedRepo":
        return Forbidden(
            f"{where}: gated (status {response.status}). Accept the terms on the repository's page, and set HF_TOKEN.",
            response.status,
        )
    if code == "RepoNotFound":
        return Gone(f"{where}: no such repository, or no longer public. Check the address; look for a copy.", 404)
    if code == "RevisionNotFound":
        return Gone(f"{where}: no such revision: it moved, or its history was rewritten. Look for a copy.", 404)
    if code == "EntryNotFound":
        return Gone(f"{where}: no such file at this revision. Check the path in record.toml.", 404)
    return refusal(response)
