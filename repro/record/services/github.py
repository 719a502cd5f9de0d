"""GitHub: files and trees at a commit, issues with all their comments, and which commit a name stands for.

A file is compared with the commit's tree: commit → tree → subtree → blob id, and every tree's own id is computed again
from its entries, so that a listing cannot lie. Trees are asked for once a client, since the files of a record share
most of them; file contents come from the raw host, which is not counted against the API's budget (60 requests an hour
without a token; token from GITHUB_TOKEN or GH_TOKEN, sent to the API's host only).

An issue is stored with what its people wrote and when; avatars, reactions and counters are left out. Its canonical
parts are "issue" and "comment <id>", of author's id, time of creation and text (line ends as \\n): an edit changes the
hash of its part, a new label or comment does not.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from repro.record.artifacts import ADDRESSES, Artifact
from repro.record.digests import Digest, git_blob_sha1, git_tree_sha1
from repro.record.services import conditional
from repro.record.services.answers import TRY_LATER, Response, refusal
from repro.record.services.content import (
    Content,
    canonical_sha256,
    compare,
    limit,
    refuse_stand_in,
    safe_name,
    stored_json,
)
from repro.record.services.errors import Gone, Malformed, TooLarge, quoted, shown
from repro.record.services.http import Client, base_address

API_VERSION = "2022-11-28"  # GitHub's documentation: the version that requests without the header get
PER_PAGE = 100  # GitHub's documentation: the most that a page may have
MAX_PAGES = 100  # 10,000 comments; the longest thread of the built-in record has 59
WITHOUT_TOKEN = "or set GITHUB_TOKEN"


@dataclass(frozen=True)
class Resolved:
    """Which commit a name stood for."""

    name: str  # as it was asked for
    commit: str  # 40 hex digits
    how: str  # "commit", "short commit", or "branch or tag"


@dataclass(frozen=True)
class Entry:
    """One line of a Git tree. `mode` as Git writes it: 100644, 100755, 120000 a link, 40000 a tree, 160000 a module."""

    path: str
    mode: str
    id: str
    size: int | None  # bytes of a blob


def read(artifact: Artifact, client: Client) -> Content:
    """What a github-file, github-tree or github-issue is now. Raises a ServiceError."""
    match = re.fullmatch(ADDRESSES[artifact.kind], artifact.address)
    assert match is not None  # checked where the record is read
    if artifact.kind == "github-file":
        return _read_file(match["repo"], match["path"], artifact.pin, client)
    if artifact.kind == "github-tree":
        return _read_tree(match["repo"], match["path"], artifact.pin, client)
    return _read_issue(match["repo"], int(match["number"]), client)


def resolve_commit(repo: str, ref: str, client: Client) -> Resolved:
    """The commit that a full or unambiguous short SHA, a branch or a tag stands for. Gone where it stands for none."""
    address = f"/repos/{repo}/commits/{quote(ref, safe='')}?per_page=1"  # one of the changed files is enough
    response = client.exchange("GET", f"{_api()}{address}", headers=_headers(), hint=_hint())
    if response.status == 422:  # "No commit found for SHA"
        raise Gone(
            f"{shown(response.url)}: {quoted(ref)!r} is no commit, branch or tag of {repo}, or not one only.", 422
        )
    if response.status != 200:
        raise refusal(response)
    commit = _text(response, "sha")
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise _unexpected(response, "sha")
    if commit.startswith(ref.lower()):
        return Resolved(ref, commit, "commit" if len(ref) == 40 else "short commit")
    if re.fullmatch(r"[0-9a-f]{40}", ref):
        raise Malformed(f"{shown(response.url)}: asked for commit {ref}, was given {commit}. {TRY_LATER}")
    return Resolved(ref, commit, "branch or tag")


def linked_issues(content: Content) -> tuple[str, ...]:
    """Addresses "owner/name#number" of issues and pull requests that a stored issue's texts link, without itself."""
    thread = json.loads(content.data)
    text = "\n".join(item["body"] for item in (thread, *thread["comments"]))
    links = re.findall(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d{1,9})\b", text)
    named = re.findall(r"(?<![\w/#&])([\w.-]+/[\w.-]+)?#(\d{1,9})\b", text)
    found = {(repo or thread["repository"], int(number)) for repo, number in (*links, *named)}
    return tuple(f"{repo}#{number}" for repo, number in sorted(found - {(thread["repository"], thread["number"])}))


def _read_file(repo: str, path: str, commit: str, client: Client) -> Content:
    name = safe_name("github", repo, commit[:12], path)
    entry = _find(repo, commit, path, client)
    if entry.mode not in ("100644", "100755"):
        kind = {"120000": "a symbolic link", "40000": "a folder", "160000": "a submodule"}.get(entry.mode, entry.mode)
        raise Malformed(f"{repo}:{path}@{commit[:12]} is {kind}, not a file. Correct the address in record.toml.")
    room = limit("github-file", client)
    if entry.size is not None and entry.size > room:
        raise TooLarge(
            f"{repo}:{path}@{commit[:12]} has {entry.size:,} bytes; at most {room:,} are read (--max-bytes)."
        )
    raw = base_address("MARIN_REPRO_GITHUB_RAW", "https://raw.githubusercontent.com")
    url = f"{raw}/{repo}/{commit}/{quote(path)}"
    response = client.get(url, limit=room)
    digest = compare(response.body, Digest("git-sha1", entry.id), git_blob_sha1, url)
    refuse_stand_in(response.body, url)  # where LFS is used, the blob itself is the pointer
    return Content(response.body, name, digest, {}, commit, response.headers.get("etag", ""))


def _read_tree(repo: str, path: str, commit: str, client: Client) -> Content:
    name = safe_name("github", repo, commit[:12], *([path] if path else []), "tree.json")
    folder = _find(repo, commit, path, client) if path else Entry("", "40000", _root(repo, commit, client), None)
    if folder.mode != "40000":
        raise Malformed(f"{repo}:{path}@{commit[:12]} is not a folder. Correct the address in record.toml.")
    entries = sorted(_below(repo, folder.id, client), key=lambda entry: entry.path)
    listed = [{"path": item.path, "mode": item.mode, "id": item.id, "bytes": item.size} for item in entries]
    data = stored_json({"repository": repo, "commit": commit, "path": path, "tree": folder.id, "entries": listed})
    return Content(data, name, None, {"tree": canonical_sha256(listed)}, commit, "")


def _find(repo: str, commit: str, path: str, client: Client) -> Entry:
    """The entry at `path` of a commit's tree."""
    entry = Entry("", "40000", _root(repo, commit, client), None)
    for part in path.split("/"):
        entries = _tree(repo, entry.id, client) if entry.mode == "40000" else {}
        if part not in entries:
            raise Gone(f"{repo}:{path} is not in commit {commit[:12]} (no {quoted(part)!r}). Correct path or pin.", 404)
        entry = entries[part]
    return entry


def _root(repo: str, commit: str, client: Client) -> str:
    """Id of a commit's tree."""

    def ask() -> str:
        response = _ask(client, f"/repos/{repo}/git/commits/{commit}")
        given, tree = _text(response, "sha"), _text(response, "tree", "sha")
        if given != commit or not re.fullmatch(r"[0-9a-f]{40}", tree):
            raise Malformed(f"{shown(response.url)}: asked for commit {commit}, was given {quoted(given)}. {TRY_LATER}")
        return tree

    return client.once(("commit", repo, commit), ask)


def _tree(repo: str, tree: str, client: Client) -> Mapping[str, Entry]:
    """Entries of one tree by name, whose id was computed again."""

    def ask() -> Mapping[str, Entry]:
        address = f"/repos/{repo}/git/trees/{tree}"
        response = _ask(client, address)
        entries, whole = _entries(response)
        if not whole:
            raise Malformed(f"{shown(response.url)}: the listing of one folder is cut short. {TRY_LATER}")
        with _kept_if_right(client, address):
            _check_id(tree, entries, response)
        return {entry.path: entry for entry in entries}

    return client.once(("tree", repo, tree), ask)


def _below(repo: str, tree: str, client: Client) -> list[Entry]:
    """All entries below a tree, in one request where the service lists it whole, otherwise subtree by subtree."""
    address = f"/repos/{repo}/git/trees/{tree}?recursive=1"
    response = _ask(client, address)
    entries, whole = _entries(response)
    if whole:
        with _kept_if_right(client, address):
            _check_ids(tree, entries, response)
        return entries
    found = []
    for name, entry in _tree(repo, tree, client).items():
        found.append(entry)
        if entry.mode == "40000":
            below = _below(repo, entry.id, client)
            found += [Entry(f"{name}/{item.path}", item.mode, item.id, item.size) for item in below]
    return found


def _check_ids(tree: str, entries: list[Entry], response: Response) -> None:
    """Compute the id of every tree of a recursive listing again."""
    children: dict[str, list[Entry]] = {"": []}
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        children.setdefault(folder, []).append(Entry(name, entry.mode, entry.id, entry.size))
    for folder, id in {"": tree, **{entry.path: entry.id for entry in entries if entry.mode == "40000"}}.items():
        _check_id(id, children.get(folder, []), response)


def _check_id(tree: str, entries: list[Entry], response: Response) -> None:
    found = git_tree_sha1((entry.mode, entry.path, entry.id) for entry in entries).value
    if found != tree:
        raise Malformed(f"{shown(response.url)}: the entries given for tree {tree} are tree {found}. {TRY_LATER}")


def _entries(response: Response) -> tuple[list[Entry], bool]:
    """The entries of a listing, and whether it is whole."""
    listing = response.json()
    if not isinstance(listing, dict) or not isinstance(listing.get("tree"), list):
        raise _unexpected(response, "tree")
    entries = []
    for item in listing["tree"]:
        match item:
            case {"path": str(path), "mode": str(mode), "sha": str(id)} if (
                re.fullmatch(r"[0-9a-f]{40}", id)
                and re.fullmatch(r"[0-7]{5,6}", mode)
                and not re.search(r"[\0\ud800-\udfff]", path)
            ):
                size = item.get("size")
                entries.append(Entry(path, mode.lstrip("0"), id, size if isinstance(size, int) else None))
            case _:
                raise _unexpected(response, "tree, path, mode, sha")
    return entries, not listing.get("truncated")


def _read_issue(repo: str, number: int, client: Client) -> Content:
    name = safe_name("github", repo, "issues", f"{number}.json")
    response = _ask(client, f"/repos/{repo}/issues/{number}")
    issue = response.json()
    if not isinstance(issue, dict) or issue.get("number") is None:
        raise _unexpected(response, "number")
    notes = []
    if (moved := _moved(issue, repo, number)) is not None:
        notes.append(f"moved: {repo}#{number} is now {moved}")
    comments = _comments(repo, number, client)
    counted, pull = issue.get("comments"), issue.get("pull_request")
    if counted != len(comments):
        notes.append(f"the issue counts {counted} comments, {len(comments)} were given")
    thread = {
        "repository": repo,
        "number": number,
        "title": _said(issue, "title", response) or "",
        "state": _said(issue, "state", response) or "",
        **_written(issue, response),
        "closed_at": _said(issue, "closed_at", response),
        "merged_at": _said(pull, "merged_at", response) if isinstance(pull, dict) else None,
        "comments": comments,
    }
    canonical = {"issue": canonical_sha256([thread["title"], *_meant(thread)])}
    canonical |= {f"comment {comment['id']}": canonical_sha256(_meant(comment)) for comment in comments}
    return Content(stored_json(thread), name, None, canonical, "", response.headers.get("etag", ""), tuple(notes))


def _comments(repo: str, number: int, client: Client) -> list[dict[str, Any]]:
    """All comments of an issue, oldest first. A comment that stands on two pages means that the pages moved while they
    were read (or a cache served one twice): they are read once more."""
    for _ in range(2):
        found: dict[int, dict[str, Any]] = {}
        received = 0
        for page in range(1, MAX_PAGES + 1):
            response = _ask(client, f"/repos/{repo}/issues/{number}/comments?per_page={PER_PAGE}&page={page}")
            items = response.json()
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise _unexpected(response, "comments")
            received += len(items)
            for item in items:
                written = _written(item, response)
                found[written["id"]] = written
            if 'rel="next"' not in response.headers.get("link", ""):
                break
        else:
            raise TooLarge(f"{repo}#{number} has more than {MAX_PAGES * PER_PAGE:,} comments, the most that are read.")
        if received == len(found):
            return [found[id] for id in sorted(found)]
    raise Malformed(f"{repo}#{number}: {received - len(found)} comments came twice, in two readings. {TRY_LATER}")


def _written(item: Mapping[str, Any], response: Response) -> dict[str, Any]:
    """Who wrote what and when, of an issue or a comment."""
    user = item.get("user") or {"login": "ghost", "id": 10137}  # GitHub's stand-in for a deleted account
    try:
        return {
            "id": int(item["id"]),
            "author": str(user["login"]),
            "author_id": int(user["id"]),
            "created_at": str(item["created_at"]),
            "updated_at": str(item["updated_at"]),
            "url": str(item["html_url"]),
            "body": (item.get("body") or "").replace("\r\n", "\n"),
        }
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:  # Overflow: of an infinite id
        raise _unexpected(response, f"{error}") from error


def _said(item: Mapping[str, Any], key: str, response: Response) -> str | None:
    """A text, or None where there is none."""
    value = item.get(key)
    if not isinstance(value, str | None):
        raise _unexpected(response, key)
    return value


def _meant(written: Mapping[str, Any]) -> list[Any]:
    return [written["id"], written["author_id"], written["created_at"], written["body"]]


def _moved(issue: Mapping[str, Any], repo: str, number: int) -> str | None:
    """ "owner/name#number" where a transferred issue or a renamed repository is now."""
    match = re.search(r"github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d{1,9})\b", str(issue.get("html_url")))
    if match and (match[1].lower(), int(match[2])) != (repo.lower(), number):
        return f"{match[1]}#{match[2]}"
    return None


def _ask(client: Client, address: str) -> Response:
    """GET of an API address that must succeed."""
    return conditional.get(client, f"{_api()}{address}", _headers(), _hint())


@contextmanager
def _kept_if_right(client: Client, address: str) -> Iterator[None]:
    """What is found to be Malformed within is not kept: a tree never changes, so 304 would bring it back for ever."""
    try:
        yield
    except Malformed:
        conditional.forget(client, f"{_api()}{address}")
        raise


def _api() -> str:
    return base_address("MARIN_REPRO_GITHUB_API", "https://api.github.com")


def _headers() -> dict[str, str]:
    token = _token()
    headers = {"accept": "application/vnd.github+json", "x-github-api-version": API_VERSION, "accept-encoding": "gzip"}
    return {**headers, "authorization": f"Bearer {token}"} if token else headers


def _token() -> str:
    return os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN") or ""


def _hint() -> str:
    return "" if _token() else WITHOUT_TOKEN


def _text(response: Response, *keys: str) -> str:
    value: Any = response.json()
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise _unexpected(response, ".".join(keys))
    return value


def _unexpected(response: Response, what: str) -> Malformed:
    path = urlsplit(response.url).path
    return Malformed(
        f"{shown(response.url)}: {path} has not the form that GitHub documents (at {quoted(what)}). {TRY_LATER}"
    )
