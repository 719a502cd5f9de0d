"""What a record is to consist of: the built-in profile or an own record.toml, with `--commit` and `--issue` put in.

`--commit` replaces the pins that equal the profile's run commit; artifacts pinned elsewhere keep their pins. `--issue`
becomes the run's thread, and an artifact where it is none yet.

Comes in: the folder of the record, which may be empty. Goes out: `Contents`, and which steps of which W&B run are its
own; and `as_toml`, which writes them down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from repro.errors import NoAnswerError, RecordError, UsageError
from repro.files import read_bounded
from repro.record.artifacts import ADDRESSES, NAME, Artifact, Contents, read_contents
from repro.record.entries import read_rows
from repro.record.facts import BUILT_IN
from repro.record.services import github
from repro.record.services.errors import Gone, ServiceError
from repro.record.services.github import Resolved
from repro.record.services.http import Client
from repro.record.tables import LineageRow

LINEAGE = "hero_lineage.csv"
HEADER = "# Written by marin-repro fetch."  # what begins so may be written again
SMALL = 2**20  # bytes of a hub's file that --small-files brings
MAX_SMALL = 100  # such files of one repository
LINKED = "linked by"  # how the note of an artifact begins that an issue's link brought

Steps = tuple[int, int | None]  # first, and end (exclusive); None: still open


def built_in_folder() -> Path:
    """Where the built-in record lies."""
    return Path(str(resources.files("repro.record"))) / BUILT_IN


def read_profile(folder: Path) -> Contents:
    """The folder's own record.toml, or the built-in one without its tables. Raises RecordError."""
    if (folder / NAME).is_file():
        return read_contents(read_bounded(folder / NAME))
    return replace(_built_in(), files=())


def built_in_run() -> str:
    """Name of the run that the built-in record is about."""
    return _built_in().run.name


@cache
def _built_in() -> Contents:
    """What the built-in record.toml says; it does not change while the program runs."""
    return read_contents(read_bounded(built_in_folder() / NAME))


def with_commit(contents: Contents, commit: str) -> Contents:
    """The profile, with `commit` wherever it had the run's own. Raises UsageError where it has none."""
    commit_repository(contents)
    before = contents.run.commit
    artifacts = tuple(replace(item, pin=commit) if item.pin == before else item for item in contents.artifacts)
    return replace(contents, run=replace(contents.run, commit=commit), artifacts=artifacts)


def commit_repository(contents: Contents) -> str:
    """ "owner/name" that the run's commit is one of. Raises UsageError where the record does not tell."""
    pinned = [item for item in contents.artifacts if item.pin and item.pin == contents.run.commit]
    found = sorted({item.address.partition(":")[0] for item in pinned if item.kind.startswith("github-")})
    if len(found) != 1:
        what = f"artifacts of {', '.join(found)}" if found else "no GitHub artifact"
        raise UsageError(
            f"--commit replaces the run's commit, but {NAME} pins {what} at it. Write commit under [run], and the same "
            "pin at the artifacts of one repository."
        )
    return found[0]


def resolve(contents: Contents, name: str, client: Client | None) -> Resolved:
    """The commit that `--commit NAME` means; without a client only a whole one, or the beginning of the profile's.

    Raises UsageError where there is none of that name, or a network is needed that may not be used; NoAnswerError
    where the service gave no answer.
    """
    repository = commit_repository(contents)
    if client is not None:
        try:
            return github.resolve_commit(repository, name, client)
        except Gone as error:
            raise UsageError(f"--commit {name}: {error} Give more digits, or look for it in {repository}.") from error
        except ServiceError as error:
            raise NoAnswerError(f"--commit {name} could not be resolved: {error}") from error
    if re.fullmatch(r"[0-9a-f]{40}", name):
        return Resolved(name, name, "commit")
    if re.fullmatch(r"[0-9a-f]{7,39}", name) and contents.run.commit.startswith(name):
        return Resolved(name, contents.run.commit, "short commit")
    raise UsageError(f"--commit {name}: only the network knows what it is. Write all 40 digits, or drop --offline.")


def with_issue(contents: Contents, text: str) -> Contents:
    """The profile with the issue as the run's thread: "owner/name#number", or its link. Raises UsageError."""
    link = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)(?:[#?].*)?", text)
    address = f"{link[1]}#{link[2]}" if link else text
    if not re.fullmatch(ADDRESSES["github-issue"], address):
        raise UsageError(f"--issue {text!r} is no issue. Write OWNER/NAME#NUMBER, as marin-community/marin#8435.")
    artifact = issue_artifact(address, "issue")
    run = replace(contents.run, issue=artifact.url)
    if any((item.kind, item.address) == (artifact.kind, address) for item in contents.artifacts):
        return replace(contents, run=run)
    return replace(contents, run=run, artifacts=(*contents.artifacts, _with_free_id(artifact, contents.artifacts)))


def with_linked(contents: Contents, addresses: Mapping[str, str]) -> Contents:
    """The profile with issues that its issues link and it has not yet; `addresses`: address → id of who links it."""
    known = {item.address for item in contents.artifacts if item.kind == "github-issue"}
    artifacts = contents.artifacts
    for address, by in addresses.items():
        if address not in known:
            name = re.sub(r"[^\w.-]+", "-", address.rpartition("/")[2])
            artifact = replace(issue_artifact(address, f"linked-{name}"), note=f"{LINKED} {by}")
            artifacts = (*artifacts, _with_free_id(artifact, artifacts))
    return replace(contents, artifacts=artifacts)


def with_small_files(contents: Contents, listings: Mapping[str, Mapping[str, Any]]) -> Contents:
    """The profile with the small files of its hub listings that it has not yet; `listings`: id of a hub-tree → what was
    stored of it. A file is pinned to the revision that was listed."""
    trees = {item.id: item for item in contents.artifacts}
    known = {item.address for item in contents.artifacts if item.kind == "hub-file"}
    artifacts = contents.artifacts
    for id, listing in listings.items():
        small = [file for file in listing["files"] if file["bytes"] <= SMALL and not re.search(r"\s", file["path"])]
        for file in small[:MAX_SMALL]:
            address = f"{trees[id].address}/{file['path']}"
            if address not in known:
                artifact = Artifact(
                    id=f"{id}-{re.sub(r'[^A-Za-z0-9.-]+', '-', file['path'])}",
                    role=trees[id].role,
                    kind="hub-file",
                    address=address,
                    pin=listing["revision"],
                    digest="sha256" if file["sha256"] else "git-sha1",
                    expectation=trees[id].expectation,
                    note=f"listed by {id}",
                )
                artifacts = (*artifacts, _with_free_id(artifact, artifacts))
    return replace(contents, artifacts=artifacts)


def issue_artifact(address: str, id: str) -> Artifact:
    """An issue as an artifact of a record."""
    return Artifact(id=id, role="discussion", kind="github-issue", address=address, digest="canonical")


def own_steps(contents: Contents, folder: Path) -> dict[str, Steps]:
    """By artifact: the steps of the final weights' history that its W&B run trained. A forked run shows its parent's
    rows too, which are not its own. From the record's lineage where people wrote it, since one that was derived would
    follow from what is asked here; for the built-in run, else from the built-in one."""
    rows: tuple[LineageRow, ...] = ()
    if (folder / LINEAGE).is_file() and not _is_derived(folder, LINEAGE):
        rows = read_rows(LineageRow, read_bounded(folder / LINEAGE), LINEAGE)
    elif contents.run.name == built_in_run():
        rows = read_rows(LineageRow, read_bounded(built_in_folder() / LINEAGE), LINEAGE)
    own: dict[str, Steps] = {row.run_id: (row.start_step, row.end_step_exclusive) for row in rows}
    ids = {item.id: item.address.rpartition("/")[2] for item in contents.artifacts if item.kind == "wandb-run"}
    return {id: own[name] for id, name in ids.items() if name in own}


def _is_derived(folder: Path, name: str) -> bool:
    files = read_contents(read_bounded(folder / NAME)).files if (folder / NAME).is_file() else ()
    return any(file.name == name and file.is_derived for file in files)


def as_toml(contents: Contents) -> str:
    """The text of a record.toml that is read back as these contents."""
    lines = [HEADER, "", "[run]", *_pairs(contents.run)]
    if contents.forecast is not None:
        lines += ["", "[forecast]", *_pairs(contents.forecast)]
    sections = (("training_data", contents.training_data), ("artifact", contents.artifacts), ("file", contents.files))
    for section, entries in sections:
        for entry in entries:
            lines += ["", f"[[{section}]]", *_pairs(entry)]
    text = "\n".join(lines) + "\n"
    if read_contents(text.encode()) != contents:
        raise RecordError(f"{NAME}: holds a value that cannot be written back. Edit the file yourself.")
    return text


def _pairs(entry: Any) -> list[str]:
    values = {part.name: getattr(entry, part.name) for part in fields(entry)}
    return [f"{name} = {_value(value)}" for name, value in values.items() if value not in ("", None, ())]


def _value(value: Any) -> str:
    """A value of TOML on one line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's escapes are JSON's
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int | float):
        return repr(value)
    if is_dataclass(value):
        return f"{{ {', '.join(_pairs(value))} }}"
    return f"[{', '.join(_value(item) for item in value)}]"


def _with_free_id(artifact: Artifact, others: tuple[Artifact, ...]) -> Artifact:
    """The artifact under an id that no other has."""
    taken = {item.id for item in others}
    ids = (artifact.id, *(f"{artifact.id}-{number}" for number in range(2, len(taken) + 3)))
    return replace(artifact, id=next(id for id in ids if id not in taken))
