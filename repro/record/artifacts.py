"""`record.toml`: what a record is about, what it consists of, and where each of its files comes from.

    [run]               the run, and the day on which the record ends
    [forecast]          which rungs a law is fitted on, and which it speaks of
    [[training_data]]   which token store and which mixture weights a run read, from which step
    [[artifact]]        a public thing: its address, its pin, how its bytes are checked, what an outsider may expect
    [[file]]            a file of this folder: its source, what was left out of it, how it was checked

Comes in: the bytes of record.toml. Goes out: a `Contents` of frozen values, or a RecordError naming entry and field.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, field_validator
from pydantic.dataclasses import dataclass

from repro.errors import RecordError
from repro.record.digests import Digest
from repro.record.entries import ENTRY, read_entry, refuse_repeated

NAME = "record.toml"
DERIVED = "derived by marin-repro fetch"  # how `checked` of a derived file begins

ArtifactKind = Literal[
    "github-file", "github-tree", "github-issue", "wandb-run", "wandb-report", "hub-file", "hub-tree", "object", "page"
]
Role = Literal[  # what is lost with it: verify.CAPABILITIES
    "config",
    "launcher code",
    "data order",
    "data manifest",
    "mixture",
    "corpus",
    "checkpoint",
    "metrics",
    "eval set",
    "licence",
    "discussion",
]
Expectation = Literal["available", "forbidden", "gated"]  # what an outsider without an account meets


def _whole_commit(text: str) -> str:
    if text and not re.fullmatch(r"[0-9a-f]{40}", text):
        raise ValueError(f"a commit or revision is written with all its 40 hex digits, not {len(text)} characters")
    return text


Share = Annotated[float, Field(ge=0, le=1)]
Commit = Annotated[str, AfterValidator(_whole_commit)]  # 40 hex digits; empty: none

ADDRESSES = {  # kind: the form of its address
    "github-file": r"(?P<repo>[\w.-]+/[\w.-]+):(?P<path>[^\s:]+)",
    "github-tree": r"(?P<repo>[\w.-]+/[\w.-]+):(?P<path>[^\s:]*)",
    "github-issue": r"(?P<repo>[\w.-]+/[\w.-]+)#(?P<number>\d+)",
    "wandb-run": r"(?P<project>[\w.-]+/[\w.-]+)/(?P<id>[\w.-]+)",
    "wandb-report": r"(?P<project>[\w.-]+/[\w.-]+)/(?P<id>[\w=-]+)",
    "hub-file": r"(?P<type>datasets|models)/(?P<repo>[\w.-]+/[\w.-]+)(:(?P<ref>[\w.-]+))?/(?P<path>\S+)",
    "hub-tree": r"(?P<type>datasets|models)/(?P<repo>[\w.-]+/[\w.-]+)(:(?P<ref>[\w.-]+))?",
    "object": r"https://\S+",
    "page": r"https://\S+",
}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class RunFacts:
    """Which run the record is about."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]  # short, for file names and messages
    title: str
    issue: str = ""  # address of the run's own thread, or page
    commit: Commit = ""  # the code named at launch
    snapshot: date  # the last day the record knows of
    recipe: Literal["", "marin"] = ""  # whose scaling laws and shapes hold; empty: none that we know


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Artifact:
    """One public thing the record consists of. `digest` is "kind", or "kind:value" once its bytes were seen."""

    id: str
    role: Role
    kind: ArtifactKind
    address: str
    pin: Commit = ""  # a commit or revision
    digest: str
    expectation: Expectation = "available"
    note: str = ""

    @field_validator("digest")
    @classmethod
    def _known_digest(cls, text: str) -> str:
        return str(Digest.parse(text))

    @property
    def url(self) -> str:
        """A link a reader can open, at the pin where there is one."""
        match = re.fullmatch(ADDRESSES[self.kind], self.address)
        assert match is not None  # checked where the record is read
        part = match.groupdict()
        if self.kind in ("github-file", "github-tree"):
            view = "blob" if self.kind == "github-file" else "tree"
            return f"https://github.com/{part['repo']}/{view}/{self.pin or 'HEAD'}/{part['path']}"
        if self.kind == "github-issue":
            return f"https://github.com/{part['repo']}/issues/{part['number']}"
        if self.kind == "wandb-run":
            return f"https://wandb.ai/{part['project']}/runs/{part['id']}"
        if self.kind == "wandb-report":
            return f"https://wandb.ai/{part['project']}/reports/--{part['id']}"
        if self.kind in ("hub-file", "hub-tree"):
            section = "datasets/" if part["type"] == "datasets" else ""
            view = f"blob/{{}}/{part['path']}" if self.kind == "hub-file" else "tree/{}"
            return f"https://huggingface.co/{section}{part['repo']}/" + view.format(self.pin or part["ref"] or "main")
        return self.address


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class RecordFile:
    """Where one file of the record comes from."""

    name: str
    what: str
    sources: tuple[str, ...]  # "owner/name:path@commit", a W&B run "wandb:entity/project/run", or a link
    date: str  # of the data, as far as it is known
    left_out: str  # what the source has and this file has not; "nothing" where it is whole
    checked: str  # how the figures were checked

    @property
    def is_derived(self) -> bool:
        """Whether `fetch` derived the file from the artifacts' bytes; what these do not show may be absent from it."""
        return self.checked.startswith(DERIVED)

    @property
    def urls(self) -> tuple[str, ...]:
        """The sources as links."""
        return tuple(_source_url(source) for source in self.sources)

    @field_validator("sources")
    @classmethod
    def _addresses(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        if not sources:
            raise ValueError("every file has at least one source")
        for source in sources:
            _source_url(source)
        return sources


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Extrapolation:
    """A rung that stopped early: its end is read off a line through the marks of `window`, plus `correction`."""

    rung: str
    window: tuple[Share, Share]  # first and last fraction of the fitted line
    correction: Annotated[float, Field(ge=-1, le=1)]  # added to the extrapolated loss


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Forecast:
    """The published forecast's inputs: law loss = asymptote + A·C^-alpha, one for each `mark` of progress."""

    fitted_on: tuple[str, ...]
    target: str
    target_steps: Annotated[int, Field(ge=1, le=10**12)]
    asymptote: Annotated[float, Field(ge=0, le=100)]
    mark: float  # distance of two fractions of progress
    compute: Literal["without_lm_head", "with_lm_head"]
    source: str
    extrapolated: Extrapolation | None = None


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Stage:
    """From `from_step` on, a run read `weights` of `phase`."""

    weights: str  # a set of mixture_weights.csv
    phase: Literal[0, 1]
    from_step: int


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class TrainingData:
    """What one run read, or was planned to read at launch."""

    id: str
    rung: str
    status: Literal["ran", "planned"]
    store: str
    simulated_epoching: bool  # each cell cut so that a short run meets the repetition of the long one
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    source: str

    @field_validator("stages")
    @classmethod
    def _in_order(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        starts = [stage.from_step for stage in stages]
        if starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"stages start at step 0 and run upwards, not from {starts}")
        return stages


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Contents:
    """Everything record.toml says."""

    run: RunFacts
    artifacts: tuple[Artifact, ...]
    files: tuple[RecordFile, ...]
    training_data: tuple[TrainingData, ...]
    forecast: Forecast | None


def read_contents(data: bytes) -> Contents:
    """Read record.toml. Raises RecordError that names the entry (by id, or its place) and the field."""
    try:
        content = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise RecordError(f"{NAME}: not UTF-8 at byte {error.start}.") from error
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, or a number of thousands of digits
        raise RecordError(f"{NAME}: not TOML: {error}.") from error
    sections = read_entry(_Sections, content, NAME)
    return Contents(
        run=read_entry(RunFacts, sections.run, f"{NAME}, [run]"),
        artifacts=tuple(map(_check_address, _read_all(Artifact, sections.artifact, "artifact", "id"))),
        files=_read_all(RecordFile, sections.file, "file", "name"),
        training_data=_read_all(TrainingData, sections.training_data, "training_data", "id"),
        forecast=read_entry(Forecast, sections.forecast, f"{NAME}, [forecast]") if sections.forecast else None,
    )


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class _Sections:
    run: Mapping[str, Any]
    artifact: tuple[Mapping[str, Any], ...] = ()
    file: tuple[Mapping[str, Any], ...] = ()
    training_data: tuple[Mapping[str, Any], ...] = ()
    forecast: Mapping[str, Any] | None = None


def _read_all(kind: type[T], entries: tuple[Mapping[str, Any], ...], section: str, key: str) -> tuple[T, ...]:
    items = tuple(
        read_entry(kind, entry, f"{NAME}, [[{section}]] {entry.get(key, f'number {number}')}")
        for number, entry in enumerate(entries, start=1)
    )
    refuse_repeated(items, lambda item: getattr(item, key), f"{NAME}, [[{section}]]", key)
    return items


def _check_address(artifact: Artifact) -> Artifact:
    where = f"{NAME}, [[artifact]] {artifact.id}"
    if not re.fullmatch(ADDRESSES[artifact.kind], artifact.address):
        raise RecordError(f"{where}, address: {artifact.address!r} has not the form of a {artifact.kind}.")
    if artifact.kind in ("github-file", "github-tree") and not artifact.pin:
        raise RecordError(f"{where}, pin: a {artifact.kind} needs the commit it is read at, since branches move.")
    return artifact


def _source_url(source: str) -> str:
    """A link for a file's source. ValueError where the text has none of the known forms."""
    if source.startswith("https://"):
        return source
    if match := re.fullmatch(r"([\w.-]+/[\w.-]+):([^\s@]+)@([0-9a-f]{8,40})", source):
        return f"https://github.com/{match[1]}/blob/{match[3]}/{match[2]}"
    if match := re.fullmatch(r"wandb:([\w.-]+/[\w.-]+)/([\w.-]+)", source):
        return f"https://wandb.ai/{match[1]}/runs/{match[2]}"
    raise ValueError(f"{source!r} is neither owner/name:path@commit, nor wandb:entity/project/run, nor an https link")
