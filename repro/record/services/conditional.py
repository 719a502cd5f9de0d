"""Answers of APIs kept in a folder, so that an unchanged one is not sent, nor counted, again.

A GET is sent with the ETag of the answer kept; 304 Not Modified brings that answer back. (GitHub's documentation: a
304 to an authorized request does not count against the limit.) One file an address, `<sha256 of the address>`: a line
of JSON, then the body. A file that was damaged is passed over, and replaced by the next answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from repro.files import write_atomically
from repro.record.services.answers import Response, refusal
from repro.record.services.errors import without_secrets
from repro.record.services.http import Client


def get(client: Client, url: str, headers: Mapping[str, str], hint: str = "") -> Response:
    """GET of JSON that must succeed, answered from the client's `answers` folder where the service says it did not
    change."""
    folder = client.answers
    if folder is None:
        return client.get(url, headers=headers, hint=hint)
    path = folder / hashlib.sha256(url.encode()).hexdigest()
    kept = _read(path, url)
    if kept is None:
        response = client.get(url, headers=headers, hint=hint)
    else:
        asked = {**headers, "if-none-match": kept.headers["etag"]}
        response = client.exchange("GET", url, headers=asked, hint=hint)
        if response.status == 304:
            return kept
        if not 200 <= response.status < 300:
            raise refusal(response)
    response.json()  # what is no JSON is not kept: a body that was cut on the way would come back with every 304
    if "etag" in response.headers:
        _write(path, url, response)
    return response


def forget(client: Client, url: str) -> None:
    """Drop the answer kept for `url`, which turned out not to be what it says."""
    if client.answers is not None:
        (client.answers / hashlib.sha256(url.encode()).hexdigest()).unlink(missing_ok=True)


def _write(path: Path, url: str, response: Response) -> None:
    head = {
        "url": url,
        "from": response.url,
        "status": response.status,
        "headers": {
            name: response.headers[name] for name in ("etag", "link", "content-type") if name in response.headers
        },
        "sha256": hashlib.sha256(response.body).hexdigest(),
    }
    said = json.dumps(head)
    if without_secrets(said) == said:  # a service may repeat a token that it was sent
        write_atomically(path, said.encode() + b"\n" + response.body)


def _read(path: Path, url: str) -> Response | None:
    """The answer kept for `url`, or None where there is none, or it is not what was written."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        known = json.loads(head)
        if known["url"] != url or known["sha256"] != hashlib.sha256(body).hexdigest():
            return None
        kept = Response(known["from"], known["status"], dict(known["headers"]), body, body)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return kept if kept.headers.get("etag") else None
