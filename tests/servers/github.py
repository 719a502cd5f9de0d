"""GitHub's REST API and raw host, of one repository made of given files, issues and comments.

Shapes are those of stored answers for marin-community/marin (issues 8435 and 9162, comments of 9126, commit 621bf97):
the fields that a client may read, and some of those that change without meaning. Ids of blobs and trees are Git's own.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.servers.base import Answer, Request, Server

COMMIT = "12d8b6f09f96ad4f0277445765c1a00dbc81d5be"  # the run commit of the built-in record
LIMIT = 60  # requests an hour without a token (GitHub's documentation)


def git_id(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).hexdigest()


@dataclass
class GitHub(Server):
    """One repository. `files`: path → bytes at `commit`; `modes`: path → mode where it is no plain file."""

    repo: str = "marin-community/marin"
    commit: str = COMMIT
    files: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # branch or tag → commit
    issues: dict[int, dict[str, Any]] = field(default_factory=dict)
    comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    cut_trees_above: int = 100_000  # entries of a recursive listing before it is truncated
    duplicate_pages: bool = False  # page 2 is page 1 again
    moved_to: str = ""  # new owner/name: every API address redirects there
    remaining: int | None = None  # requests left of the hour; None: not counted

    def answer(self, request: Request) -> Answer:
        if request.path.startswith("/raw/"):
            return self._raw(request.path.removeprefix("/raw/"))
        if self.remaining is not None:
            if self.remaining == 0:
                return self._spent()
            self.remaining -= 1
        prefix = f"/repos/{self.repo}/"
        if self.moved_to and request.path.startswith(prefix):
            target = request.target.replace(prefix, f"/repos/{self.moved_to}/", 1)
            return Answer(301, (("location", target),), _json({"message": "Moved Permanently", "url": target}))
        if self.moved_to:
            prefix = f"/repos/{self.moved_to}/"
        if not request.path.startswith(prefix):
            return _missing()
        answer = self._api(request.path.removeprefix(prefix), request)
        etag = f'W/"{hashlib.sha256(answer.body).hexdigest()}"'
        if answer.status == 200 and request.headers.get("if-none-match") == etag:
            return Answer(304, (("etag", etag),))
        return answer.having(("etag", etag), ("content-type", "application/json; charset=utf-8"))

    def _api(self, path: str, request: Request) -> Answer:
        match path.split("/"):
            case ["commits", ref]:
                return self._commit(ref)
            case ["git", "commits", sha] if sha == self.commit:
                return Answer(body=_json({"sha": sha, "tree": {"sha": self.tree()}, "parents": []}))
            case ["git", "trees", sha]:
                return self._tree(sha, "recursive" in request.query)
            case ["issues", number] if int(number) in self.issues:
                issue = self.issues[int(number)]
                return Answer(body=_json({**issue, "comments": len(self.comments.get(int(number), []))}))
            case ["issues", number, "comments"] if int(number) in self.issues:
                return self._comments(int(number), request)
        return _missing()

    def _commit(self, ref: str) -> Answer:
        found = self.names.get(ref) or (self.commit if len(ref) >= 4 and self.commit.startswith(ref) else "")
        if not found:
            return Answer(422, body=_json({"message": f"No commit found for SHA: {ref}", "status": "422"}))
        return Answer(body=_json({"sha": found, "commit": {"message": "m", "tree": {"sha": self.tree()}}, "files": []}))

    def tree(self, folder: str = "") -> str:
        """Id of the tree at `folder`; "" is the root."""
        lines = b""
        entries = self._children(folder)
        for name in sorted(entries, key=lambda name: name + ("/" if entries[name]["type"] == "tree" else "")):
            entry = entries[name]
            lines += f"{entry['mode'].lstrip('0')} {name}".encode() + b"\0" + bytes.fromhex(entry["sha"])
        return git_id("tree", lines)

    def _children(self, folder: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        prefix = f"{folder}/" if folder else ""
        for path, data in self.files.items():
            if path.startswith(prefix):
                name, below, _ = path.removeprefix(prefix).partition("/")
                if below and name not in found:
                    found[name] = {"mode": "040000", "type": "tree", "sha": self.tree(prefix + name)}
                elif not below:
                    mode = self.modes.get(path, "100644")
                    kind = "commit" if mode == "160000" else "blob"
                    found[name] = {"mode": mode, "type": kind, "size": len(data), "sha": git_id("blob", data)}
        return found

    def _tree(self, sha: str, recursive: bool) -> Answer:
        parents = {"/".join(path.split("/")[:depth]) for path in self.files for depth in range(path.count("/") + 1)}
        folders = {name: self.tree(name) for name in sorted(parents)}
        folder = next((name for name, id in folders.items() if id == sha), None)
        if folder is None:
            return _missing()
        entries = []
        queue = [("", folder)]
        while queue:
            prefix, place = queue.pop(0)
            for name, entry in self._children(place).items():
                entries.append({"path": prefix + name, **entry})
                if recursive and entry["type"] == "tree":
                    queue.append((f"{prefix}{name}/", f"{place}/{name}".lstrip("/")))
        cut = recursive and len(entries) > self.cut_trees_above
        listed = entries[: self.cut_trees_above] if cut else entries
        return Answer(body=_json({"sha": sha, "tree": listed, "truncated": cut}))

    def _comments(self, number: int, request: Request) -> Answer:
        size, page = int(request.query.get("per_page", 30)), int(request.query.get("page", 1))
        items = self.comments.get(number, [])
        start = 0 if self.duplicate_pages else (page - 1) * size
        link = f'<{self.url}{request.path}?per_page={size}&page={page + 1}>; rel="next"'
        headers = (("link", link),) if page * size < len(items) else ()
        return Answer(200, headers, _json(items[start : start + size]))

    def _raw(self, path: str) -> Answer:
        prefix = f"{self.repo}/{self.commit}/"
        data = self.files.get(path.removeprefix(prefix)) if path.startswith(prefix) else None
        if data is None:
            return Answer(404, (("content-type", "text/plain; charset=utf-8"),), b"404: Not Found")
        etag = hashlib.sha256(data).hexdigest()
        return Answer(200, (("content-type", "text/plain; charset=utf-8"), ("etag", f'W/"{etag}"')), data)

    def _spent(self) -> Answer:
        reset = int(time.time() + self.skew) + 1500
        headers = (("x-ratelimit-limit", str(LIMIT)), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", str(reset)))
        message = (
            "API rate limit exceeded for 203.0.113.7. (But here's the good news: Authenticated requests get more.)"
        )
        return Answer(403, headers, _json({"message": message}))


def issue(repo: str, number: int, body: str, **changes: Any) -> dict[str, Any]:
    """An issue as the API gives it, counters included."""
    return {
        "url": f"https://api.github.com/repos/{repo}/issues/{number}",
        "html_url": f"https://github.com/{repo}/issues/{number}",
        "id": 5187432905 + number,
        "node_id": "I_kwDOLj5faM8AAAABNTHxyQ",
        "number": number,
        "title": "[Hero Run] 535B-A23B on 18T tokens",
        "user": user("ClassicLarry", 42926649),
        "labels": [],
        "state": "open",
        "created_at": "2026-08-18T23:48:31Z",
        "updated_at": "2026-10-01T00:40:47Z",
        "closed_at": None,
        "body": body,
        "reactions": {"total_count": 69, "+1": 11, "hooray": 26, "rocket": 26, "eyes": 6},
        **changes,
    }


def comment(repo: str, number: int, id: int, body: str, **changes: Any) -> dict[str, Any]:
    """A comment as the API gives it."""
    return {
        "url": f"https://api.github.com/repos/{repo}/issues/comments/{id}",
        "html_url": f"https://github.com/{repo}/issues/{number}#issuecomment-{id}",
        "issue_url": f"https://api.github.com/repos/{repo}/issues/{number}",
        "id": id,
        "user": user("Helw150", 9847335),
        "created_at": "2026-09-15T22:10:15Z",
        "updated_at": "2026-09-15T22:10:15Z",
        "body": body,
        "author_association": "MEMBER",
        "reactions": {"total_count": 0, "+1": 0},
        "performed_via_github_app": None,
        **changes,
    }


def user(login: str, id: int) -> Mapping[str, Any]:
    return {
        "login": login,
        "id": id,
        "avatar_url": f"https://avatars.githubusercontent.com/u/{id}?v=4",
        "html_url": f"https://github.com/{login}",
        "type": "User",
    }


def _missing() -> Answer:
    return Answer(404, body=_json({"message": "Not Found", "documentation_url": "https://docs.github.com/rest"}))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
