"""`derive.toml`: where the facts of a record stand in what `fetch` brings. Data, so that another run needs no code.

    [evaluation]      metrics of the W&B runs that are evaluations: the loss of the ladder's grid, by domain, by column
    [[rung]]          a rung and the artifact that is its run
    [rung_columns]    a column of ladder_rungs.csv: path in the run's configuration, or several that are multiplied
    [printed]         figures printed in a source file: a text table in a string, and which column is which
    [lineage]         the runs that one history of weights went through, and where a run says at which step it began
    [train]           training metrics by column of hero_train.csv, and how many steps apart its values are
    [configuration]   branches of the configuration that are too large to be kept
    [[weights]]       a set of mixture weights, by phase; [[tokens]] available tokens of a store; [cells] their names
    [[fact]]          a single value: an expression of a pinned source file, or a JSON pointer
    [cross_check]     another copy of the ladder's grid

Metrics are named as W&B names them. A record whose derive.toml lacks a section has no such table derived.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from repro.errors import RecordError
from repro.files import read_bounded
from repro.record.artifacts import read_contents
from repro.record.entries import ENTRY, read_entry, refuse_repeated
from repro.record.profile import built_in_folder

NAME = "derive.toml"
Paths = str | tuple[str, ...]  # dotted path of a configuration; of several, the values are multiplied


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Evaluation:
    """`loss` is the metric of ladder_grid.csv. `domain` has {domain} in it; `domain_suffix` is cut from the names."""

    loss: str
    domain: str = ""
    domain_suffix: str = ""
    columns: Mapping[str, str] = Field(default_factory=dict)  # of hero_evaluations.csv: metric

    @field_validator("domain")
    @classmethod
    def _has_a_place(cls, text: str) -> str:
        if text and text.count("{domain}") != 1:
            raise ValueError("has {domain} in it once")
        return text


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class RungPlace:
    """A rung's run. `grid`: its evaluations belong to the ladder's grid."""

    name: str
    artifact: str
    grid: bool = True


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Printed:
    """A text table inside a string of a source file: columns are two or more blanks apart, `key` is the rung's."""

    artifact: str
    expression: str
    key: str
    columns: Mapping[str, str]  # column of ladder_rungs.csv: head of the column


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Lineage:
    """Paths are of a run's configuration. `fork` holds "<run>?_step=N", `first_step` the first step of its own."""

    artifacts: tuple[str, ...]
    tokens_per_step: Paths
    fork: str = ""
    first_step: str = ""
    launch_commit: str = ""
    stages: str = ""  # [[first step, {…}], …]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Train:
    """Of each `every` steps the first value of each of `columns`' metrics is kept."""

    every: Annotated[int, Field(ge=1)]
    columns: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class ConfigurationPlace:
    """Dotted paths of branches that run_configuration.json does not keep."""

    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class WeightSet:
    """A set of weights: `phases` are JSON pointers to {cell: weight}."""

    name: str
    artifact: str
    phases: tuple[str, str]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class StoreTokens:
    """Available tokens: JSON pointers to {cell: tokens}, and to the address whose last part is the store's name."""

    artifact: str
    pointer: str
    store: str


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Cells:
    """How cells are named, as "c{cluster}q{quality}"."""

    name: str

    @field_validator("name")
    @classmethod
    def _has_both(cls, text: str) -> str:
        if text.count("{cluster}") != 1 or text.count("{quality}") != 1:
            raise ValueError("has {cluster} and {quality} in it, each once")
        return text


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class FactPlace:
    """One value, by exactly one of an expression of a pinned source file and a JSON pointer."""

    name: str
    artifact: str
    expression: str = ""
    pointer: str = ""


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class CrossCheck:
    """A JSON copy of the grid, {rung: [[step, loss], …]}, at `pointer`."""

    artifact: str
    pointer: str = ""


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Places:
    """Everything derive.toml says. `roots`: folders of the repository in which Python packages lie."""

    roots: tuple[str, ...] = ("",)
    evaluation: Evaluation | None = None
    rung: tuple[RungPlace, ...] = ()
    rung_columns: Mapping[str, Paths] = Field(default_factory=dict)
    printed: Printed | None = None
    lineage: Lineage | None = None
    train: Train | None = None
    configuration: ConfigurationPlace | None = None
    weights: tuple[WeightSet, ...] = ()
    tokens: tuple[StoreTokens, ...] = ()
    cells: Cells | None = None
    fact: tuple[FactPlace, ...] = ()
    cross_check: CrossCheck | None = None


def read_places(folder: Path, run: str) -> Places:
    """The folder's own derive.toml; for the built-in run else the built-in one; else none. Raises RecordError."""
    path = folder / NAME
    if path.is_file():
        return parse_places(read_bounded(path))
    built_in = built_in_folder()
    if run == read_contents(read_bounded(built_in / "record.toml")).run.name:
        return parse_places(read_bounded(built_in / NAME))
    return Places()


def parse_places(data: bytes) -> Places:
    """Read derive.toml. Raises RecordError that names the section and the key."""
    try:
        content: dict[str, Any] = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise RecordError(f"{NAME}: not UTF-8 at byte {error.start}.") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{NAME}: not TOML: {error}.") from error
    places = read_entry(Places, content, NAME)
    refuse_repeated(places.rung, lambda one: one.name, f"{NAME}, [[rung]]", "name")
    refuse_repeated(places.weights, lambda one: one.name, f"{NAME}, [[weights]]", "name")
    refuse_repeated(places.fact, lambda one: one.name, f"{NAME}, [[fact]]", "name")
    for one in places.fact:
        if bool(one.expression) == bool(one.pointer):
            raise RecordError(f"{NAME}, [[fact]] {one.name}: has exactly one of expression and pointer.")
    if (places.weights or places.tokens) and places.cells is None:
        raise RecordError(f"{NAME}: [[weights]] and [[tokens]] need [cells], which says how cells are named.")
    return places
