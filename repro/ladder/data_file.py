"""A data file: what a token store is made from, in TOML, so that a run can be trained on text of one's own.

    tokenizer = "bytes"                 or a tokenizers file beside this one, or "hub:NAME@REVISION"
    held_out = 0.05                     share of the documents that are never trained on

    [cells.notes]                       a cell of the mixture, made from files
    files = ["notes/**/*.md"]           paths, folders and patterns, from the folder of this file on
    [cells.web]                         or from a data set of the Hugging Face hub
    dataset = "owner/name"
    revision = "main"

A revision is resolved to a commit each time that the file is read, and the store records the commit: where a branch
has moved since, the store is another one. docs/data.md tells of every field.
"""

from __future__ import annotations

import glob
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from repro.errors import RecordError, UsageError
from repro.files import read_bounded
from repro.ladder.corpus import HELD_OUT, StoreSpec
from repro.ladder.sources import Source, pin, text_files
from repro.ladder.tokenizing import BOS_TOKEN, BYTES, EOS_TOKEN, HUB, Tokenizer, load_tokenizer
from repro.record.entries import ENTRY, read_entry

ENDING = ".toml"
CELLS = "cells"
MAX_FILE = 2**20  # bytes

T = TypeVar("T")
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Head:
    """What the file says of all cells; `bos` and `eos` are the tokens of a tokenizers file that begin and end texts."""

    tokenizer: str = BYTES
    bos: str = BOS_TOKEN
    eos: str = EOS_TOKEN
    held_out: Annotated[float, Field(gt=0, lt=1)] = HELD_OUT  # training evaluates on them, so there must be some


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class FileCell:
    """A cell of local files; of a line of JSON, `text_field` has the text."""

    files: Annotated[tuple[str, ...], Field(min_length=1)]
    text_field: str = "text"
    documents: Count | None = None  # only the first so many


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class HubCell:
    """A cell of a data set of the hub."""

    dataset: str
    revision: str
    split: str = "train"
    config: str | None = None
    text_field: str = "text"
    documents: Count | None = None  # only the first so many


def read_data_file(path: Path) -> StoreSpec:
    """What the file says, its patterns matched to files and its revisions resolved to commits.

    Asks the hub where a revision is none of a commit. Raises UsageError that names the file, the table, the field and
    the mend; MissingExtraError where the tokenizer's package is missing.
    """
    content = _parse(path)
    cells = content.pop(CELLS, None)
    if not isinstance(cells, dict) or not cells:
        raise UsageError(f"{path}: no [cells.NAME] with files or a dataset. A store has at least one cell.")
    head = _read(Head, content, str(path))
    sources: dict[str, Source] = {}
    for name, table in cells.items():
        sources[name] = _source(table, f"{path}, [{CELLS}.{name}]", path.parent)
    return StoreSpec(sources=sources, tokenizer=_tokenizer(head, path), held_out=head.held_out)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bounded(path, MAX_FILE).decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"data file {path}: byte {error.start} is not UTF-8. Save it as UTF-8.") from error
    except (RecordError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"data file {path}: {error}") from error


def _read(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    try:
        return read_entry(kind, table, where)
    except RecordError as error:  # of a file that is no record
        raise UsageError(str(error)) from error


def _tokenizer(head: Head, path: Path) -> Tokenizer:
    """The tokenizer; a file's name is relative to the data file."""
    of_name = head.tokenizer == BYTES or head.tokenizer.startswith(HUB)
    with _named(f"{path}, tokenizer"):
        return load_tokenizer(head.tokenizer if of_name else path.parent / head.tokenizer, head.bos, head.eos)


def _source(table: Any, where: str, folder: Path) -> Source:
    if not isinstance(table, dict) or ("files" in table) == ("dataset" in table):
        raise UsageError(f"{where}: must have either files or dataset, which say where its text comes from.")
    if "dataset" in table:
        cell = _read(HubCell, table, where)
        with _named(where):
            return pin(
                cell.dataset,
                cell.revision,
                split=cell.split,
                config=cell.config,
                text_field=cell.text_field,
                documents=cell.documents,
            )
    local = _read(FileCell, table, where)
    with _named(f"{where}, files"):
        return text_files(_matched(local.files, folder), local.text_field, local.documents)


def _matched(patterns: Iterable[str], folder: Path) -> list[Path]:
    """Files and folders that match, each once: in the order of the patterns, those of one by name."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        names = sorted(glob.glob(pattern, root_dir=folder, recursive=True))
        if not names:
            raise UsageError(f"nothing in {folder} matches {pattern!r}. Paths are relative to the data file.")
        found.update(dict.fromkeys(folder / name for name in names))
    return list(found)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Say of which part of the file an error is."""
    try:
        yield
    except (UsageError, RecordError) as error:
        raise UsageError(f"{where}: {error}") from error
