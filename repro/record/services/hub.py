"""The Hugging Face hub, through `huggingface_hub`: the files of a repository at a revision, and single small files.

The library's own settings hold: HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN or the token of `hf auth login`.

A listing has for each file its Git blob id and, where the file lies in LFS, its SHA-256; its canonical parts are the
paths. A file is compared with its SHA-256, or its blob id where it is none of LFS. A gated repository shows its
listing to everybody, but not its files: whoever may not read these is told so, as Forbidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.hf_api import RepoFile, RepoFolder
from huggingface_hub.utils import build_hf_headers

from repro.record.artifacts import ADDRESSES, Artifact
from repro.record.digests import Digest, git_blob_sha1, sha256
from repro.record.services.answers import TRY_LATER
from repro.record.services.content import (
    Content,
    canonical_sha256,
    compare,
    limit,
    refuse_stand_in,
    safe_name,
    stored_json,
)
from repro.record.services.errors import Gone, Malformed, TooLarge, Unreachable, quoted
from repro.record.services.http import Client, base_address
from repro.record.services.hub_session import hub_refusal, lent

T = TypeVar("T")


def read(artifact: Artifact, client: Client) -> Content:
    """What a hub-tree or hub-file is now. Raises a ServiceError."""
    match = re.fullmatch(ADDRESSES[artifact.kind], artifact.address)
    assert match is not None  # checked where the record is read
    if constants.is_offline_mode():
        raise Unreachable(f"{artifact.url}: HF_HUB_OFFLINE is set. Unset it to ask the hub.")
    endpoint = base_address("HF_ENDPOINT", "https://huggingface.co")
    api = HfApi(endpoint=endpoint)
    kind, repo = match["type"].removesuffix("s"), match["repo"]
    with lent(client, endpoint, limit(artifact.kind, client)):
        if artifact.kind == "hub-tree":
            return _read_tree(artifact, api, kind, repo, match["ref"] or "")
        return _read_file(artifact, api, kind, repo, match["ref"] or "", match["path"], client)


def _read_tree(artifact: Artifact, api: HfApi, kind: str, repo: str, ref: str) -> Content:
    place = artifact.pin[:12] or ref or "main"
    name = safe_name("hub", f"{kind}s", repo, place, "tree.json")
    revision, gated = _revision(artifact, api, kind, repo, artifact.pin or ref or None)
    notes = []
    if gated:
        notes.append(f"gated ({gated}); open to this login")
        _of_hub(artifact, lambda: api.auth_check(repo, repo_type=kind))
    if artifact.pin and ref and (now := _revision(artifact, api, kind, repo, ref)[0]) != artifact.pin:
        notes.append(f"{ref} has moved: it is {now[:12]} now")
    files = _of_hub(artifact, lambda: _listed(api, kind, repo, revision))
    listed = [
        {
            "path": file.path,
            "bytes": file.size,
            "blob_id": file.blob_id,
            "sha256": file.lfs.sha256 if file.lfs else None,
        }
        for file in files
    ]
    canonical = {str(item["path"]): canonical_sha256(item) for item in listed}
    if len(canonical) != len(listed):
        raise Malformed(f"{artifact.url}: the listing names files twice. {TRY_LATER}")
    data = stored_json({"repository": repo, "type": kind, "revision": revision, "gated": gated, "files": listed})
    return Content(data, name, None, canonical, revision, "", tuple(notes))


def _read_file(artifact: Artifact, api: HfApi, kind: str, repo: str, ref: str, path: str, client: Client) -> Content:
    name = safe_name("hub", f"{kind}s", repo, artifact.pin[:12] or ref or "main", path)
    revision = artifact.pin or _revision(artifact, api, kind, repo, ref or None)[0]
    found = _of_hub(artifact, lambda: _described(api, kind, repo, revision, path))
    if len(found) != 1:
        raise Gone(f"{artifact.url}: no such file at revision {revision[:12]}. Check the path in record.toml.", 404)
    file = found[0]
    if not isinstance(file, RepoFile):
        raise Malformed(f"{artifact.url}: is a folder, not a file. Write it as a hub-tree.")
    room = limit("hub-file", client)
    if file.size > room:
        raise TooLarge(
            f"{artifact.url}: {file.size:,} bytes; at most {room:,} are read. Raise --max-bytes if it is meant."
        )
    url = hf_hub_url(repo, path, repo_type=kind, revision=revision, endpoint=api.endpoint)
    headers = {name: value for name, value in build_hf_headers().items() if name == "authorization"}
    response = client.exchange("GET", url, headers=headers, limit=room)
    if response.status != 200:
        raise hub_refusal(response)
    if file.lfs:
        digest = compare(response.body, Digest("sha256", file.lfs.sha256), sha256, url)
    else:
        digest = compare(response.body, Digest("git-sha1", file.blob_id), git_blob_sha1, url)
        refuse_stand_in(response.body, url)
    return Content(response.body, name, digest, {}, revision, response.headers.get("etag", ""))


def _revision(artifact: Artifact, api: HfApi, kind: str, repo: str, revision: str | None) -> tuple[str, str]:
    """The commit that a revision is, and how the repository is gated: "auto", "manual" or ""."""
    info = _of_hub(artifact, lambda: api.repo_info(repo, revision=revision, repo_type=kind))
    if not re.fullmatch(r"[0-9a-f]{40}", str(info.sha)) or (artifact.pin == revision and info.sha != revision):
        raise Malformed(f"{artifact.url}: asked for {revision}, was given {quoted(str(info.sha))}. {TRY_LATER}")
    return str(info.sha), str(getattr(info, "gated", "") or "")


def _listed(api: HfApi, kind: str, repo: str, revision: str) -> list[RepoFile]:
    """The files of a repository, by path."""
    entries = api.list_repo_tree(repo, recursive=True, revision=revision, repo_type=kind)
    return sorted((_checked(entry) for entry in entries if isinstance(entry, RepoFile)), key=lambda file: file.path)


def _described(api: HfApi, kind: str, repo: str, revision: str, path: str) -> list[RepoFile | RepoFolder]:
    """The one file or folder at a path, or nothing."""
    entries = api.get_paths_info(repo, [path], revision=revision, repo_type=kind)
    return [_checked(entry) if isinstance(entry, RepoFile) else entry for entry in entries]


def _checked(file: RepoFile) -> RepoFile:
    """The file, whose values have the types that the library declares but does not check. Raises ValueError."""
    if not isinstance(file.path, str) or type(file.size) is not int or file.size < 0:
        raise ValueError(f"path {file.path!r}, size {file.size!r}")
    Digest("git-sha1", file.blob_id)
    if file.lfs:
        Digest("sha256", file.lfs.sha256)
    return file


def _of_hub(artifact: Artifact, ask: Callable[[], T]) -> T:
    """What the library makes of the hub's answer; where it can make nothing of it, the answer is Malformed."""
    try:
        return ask()
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # ValueError: also its HFValidationError
        why = quoted(f"{type(error).__name__}: {error}")
        raise Malformed(f"{artifact.url}: the answer has not the form known of the hub ({why}). {TRY_LATER}") from error
