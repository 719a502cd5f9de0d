"""The Hugging Face hub, as far as `huggingface_hub` asks it for listings and files.

Shapes are those of stored answers for marin-community's data sets and tokenizer (trees with LFS and Xet fields, model
information with its siblings) and of the error headers that the library reads.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.servers.base import Answer, Request, Server
from tests.servers.github import git_id

REVISION = "a5ca45f2feb6c959bd87b81689aa7279b5bdcaa2"  # of the tokenizer in the built-in record


@dataclass
class Hub(Server):
    """One repository. Files in `lfs` lie in LFS, and are sent by the host `cdn` where it is set."""

    kind: str = "models"
    repo: str = "marin-community/marin-tokenizer"
    revision: str = REVISION
    files: dict[str, bytes] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)  # branch or tag → revision
    gated: str = ""  # "auto" or "manual"
    accepted: str = ""  # the token whose owner accepted the terms
    page: int = 1000
    stuck: bool = False  # every page of the listing leads to the first
    next_host: str = ""  # where the listing's next page is said to be
    cdn: str = ""

    def answer(self, request: Request) -> Answer:
        base = f"/api/{self.kind}/{self.repo}"
        section = "" if self.kind == "models" else f"/{self.kind}"
        if request.path.startswith(f"{section}/{self.repo}/resolve/"):
            return self._resolve(request, request.path.removeprefix(f"{section}/{self.repo}/resolve/"))
        if request.path != base and not request.path.startswith(base + "/"):
            return _refused(401, "RepoNotFound", "Repository not found")
        match request.path.removeprefix(base).split("/"):
            case [""]:
                return self._info(self.revision)
            case ["", "revision", name]:
                return self._info(self._resolved(name))
            case ["", "auth-check"]:
                return self._closed(request) or Answer(body=b"{}")
            case ["", "tree", name]:
                return self._tree(request) if self._resolved(name) else _no_revision(name)
            case ["", "paths-info", name]:
                wanted = parse_qs(request.body.decode())["paths"]
                listed = [entry for entry in self._entries() if entry["path"] in wanted]
                return _json(listed) if self._resolved(name) else _no_revision(name)
        return _refused(404, "EntryNotFound", "Entry not found")

    def _resolved(self, name: str) -> str:
        name = unquote(name)
        return self.names.get(name, self.revision if name in ("main", self.revision) else "")

    def _info(self, revision: str) -> Answer:
        if not revision:
            return _no_revision("revision")
        siblings = [{"rfilename": path} for path in self.files]
        info = {"_id": "690bf0f220a8322676506159", "id": self.repo, "private": False, "disabled": False}
        return _json({**info, "sha": revision, "gated": self.gated or False, "siblings": siblings, "downloads": 7})

    def _entries(self) -> list[dict[str, Any]]:
        folders = sorted({"/".join(path.split("/")[:-1]) for path in self.files} - {""})
        listed: list[dict[str, Any]] = [
            {"type": "directory", "oid": git_id("tree", path.encode()), "size": 0, "path": path} for path in folders
        ]
        for path, data in self.files.items():
            entry = {"type": "file", "oid": git_id("blob", data), "size": len(data), "path": path}
            if path in self.lfs:
                sha256 = hashlib.sha256(data).hexdigest()
                entry["oid"] = git_id("blob", _pointer(data))
                entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": len(_pointer(data))}
                entry["xetHash"] = "76f1584d4d855cd5b89d051489660de84f77e9d72cd75a78243ff63c7407e798"
            listed.append(entry)
        return listed

    def _tree(self, request: Request) -> Answer:
        listed = self._entries()
        start = 0 if self.stuck else int(request.query.get("cursor", 0))
        answer = _json(listed[start : start + self.page])
        if start + self.page >= len(listed):
            return answer
        host = self.next_host or self.url
        target = f"{host}{request.path}?recursive=True&expand=False&cursor={start + self.page}"
        return answer.having(("link", f'<{target}>; rel="next"'))

    def _resolve(self, request: Request, place: str) -> Answer:
        name, _, path = place.partition("/")
        path = unquote(path)
        if closed := self._closed(request):
            return closed
        if not self._resolved(name):
            return _no_revision(name)
        if path not in self.files:
            return _refused(404, "EntryNotFound", "Entry not found")
        data = self.files[path]
        headers = (("x-repo-commit", self._resolved(name)), ("etag", f'"{git_id("blob", data)}"'))
        if path in self.lfs and self.cdn:
            sha256 = hashlib.sha256(data).hexdigest()
            linked = (("x-linked-etag", f'"{sha256}"'), ("x-linked-size", str(len(data))))
            return Answer(302, (*headers, *linked, ("location", f"{self.cdn}/{sha256}?X-Amz-Signature=0123abcd")))
        return Answer(200, headers, data)

    def _closed(self, request: Request) -> Answer | None:
        if not self.gated or (self.accepted and request.headers.get("authorization") == f"Bearer {self.accepted}"):
            return None
        words = f"Access to {self.repo} is restricted. You must have access to it and be authenticated to access it."
        return _refused(403 if "authorization" in request.headers else 401, "GatedRepo", words)


def _pointer(data: bytes) -> bytes:
    digest = hashlib.sha256(data).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n".encode()


def _no_revision(name: str) -> Answer:
    return _refused(404, "RevisionNotFound", f"Invalid rev id: {name}")


def _refused(status: int, code: str, words: str) -> Answer:
    return _json({"error": words}, status).having(("x-error-code", code), ("x-error-message", words))


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, (("content-type", "application/json; charset=utf-8"),), json.dumps(value).encode())
