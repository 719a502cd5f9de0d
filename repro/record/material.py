"""The bytes that facts are derived from, read once: each artifact of a record as a W&B run, JSON, or pinned source.

Everything here raises Absent, whose text says why, for what was not fetched or is not of the form that is needed, and
RecordError never: a fact that cannot be read is listed by who asks for it, and hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from repro.errors import RecordError
from repro.record.artifacts import Artifact
from repro.record.pinned import Pinned, PinnedValue, read
from repro.record.source import NotReadable
from repro.record.stored import Absent, StoredRun, read_json, read_run


@dataclass(frozen=True)
class NotDerived:
    """What the profile names and the bytes do not show."""

    what: str
    artifact: str
    place: str
    why: str


@dataclass(frozen=True)
class Origin:
    """Where some rows of a table, or one fact, stand: an artifact, and a JSON pointer or path:line in it."""

    rows: str
    artifact: str
    place: str


@dataclass
class Table:
    """Rows of one table, by column; where they come from; and what a reader should know of them."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)


@dataclass
class Material:
    """The artifacts of a record and their bytes; what could not be derived collects in `missing`."""

    artifacts: Mapping[str, Artifact]
    load: Callable[[str], bytes]  # by id of an artifact; raises Absent
    roots: tuple[str, ...] = ("",)
    missing: list[NotDerived] = field(default_factory=list)
    runs: dict[str, StoredRun] = field(default_factory=dict)
    pinned: dict[tuple[str, str], Pinned] = field(default_factory=dict)  # by repository and commit

    @contextmanager
    def looking_for(self, what: str, artifact: str) -> Iterator[None]:
        """List `what` as not derived where the bytes do not show it, and go on."""
        try:
            yield
        except Absent as absent:
            self.miss(what, artifact, absent.place, absent.why)
        except NotReadable as refused:
            self.miss(what, artifact, f"{refused.path}:{refused.line}", f"`{refused.expression}`: {refused.why}")

    def miss(self, what: str, artifact: str, place: str, why: str) -> None:
        """List one thing as not derived."""
        self.missing.append(NotDerived(what, artifact, place, why))

    def run(self, artifact: str) -> StoredRun:
        """A W&B run."""
        if artifact not in self.runs:
            self._of_kind(artifact, "wandb-run")
            try:
                self.runs[artifact] = read_run(self.load(artifact), artifact)
            except RecordError as error:
                raise Absent(str(error)) from error
        return self.runs[artifact]

    def json(self, artifact: str) -> Any:
        """A JSON file."""
        return self.runs[artifact].content if artifact in self.runs else read_json(self.load(artifact), artifact)

    def expression(self, artifact: str, expression: str) -> PinnedValue:
        """The value of an expression in the scope of a pinned source file. Raises NotReadable, too."""
        here = self._of_kind(artifact, "github-file")
        repository, _, path = here.address.partition(":")
        self.load(artifact)  # so that a file that was not fetched is said to be that
        key = (repository, here.pin)
        if key not in self.pinned:
            self.pinned[key] = read(dict(self._beside(repository, here.pin)), self.roots)
        return self.pinned[key].value(path, expression)

    def _beside(self, repository: str, pin: str) -> Iterator[tuple[str, bytes]]:
        """The source files that were fetched at one commit."""
        for artifact in self.artifacts.values():
            owner, _, path = artifact.address.partition(":")
            if (artifact.kind, owner, artifact.pin) == ("github-file", repository, pin) and path.endswith(".py"):
                try:
                    yield path, self.load(artifact.id)
                except Absent:
                    continue  # whoever imports from it is told that it is not among the files read

    def _of_kind(self, artifact: str, kind: str) -> Artifact:
        if artifact not in self.artifacts:
            raise Absent("the record has no such artifact")
        found = self.artifacts[artifact]
        if found.kind != kind:
            raise Absent(f"it is a {found.kind}, not a {kind}")
        return found
