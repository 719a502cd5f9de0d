"""Where the text of a cell comes from, as a stream of documents, each a stream of parts.

    Synthetic    `repro.ladder.synthetic`
    TextFiles    local files: *.txt and *.md hold one document each, *.jsonl one a line; .gz and .zst are read through
    HubDataset   a data set of the Hugging Face hub at one commit, streamed

A part is a string that fits into memory: of a text file 64 Ki characters, else the whole document. Documents are
counted as they come, so that a build can go on after the last one that it wrote.
"""

from __future__ import annotations

import difflib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, TextIO

from repro.errors import UsageError
from repro.ladder import synthetic
from repro.ladder.extras import require
from repro.ladder.hub import COMMIT, commit_of, hub_errors
from repro.ladder.synthetic import Synthetic

TEXT, JSON_LINES = (".txt", ".md"), (".jsonl", ".ndjson")
COMPRESSED = (".gz", ".zst")
PART = 2**16  # characters of a text file that are read at once
ZSTANDARD_BYTES = 4096  # compressed ones at once: they may stand for a thousand times as many
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Files in the order in which they are read; `text_field` is the key of a line of JSON that holds the text."""

    paths: tuple[Path, ...]
    text_field: str = "text"
    documents: int | None = None  # only the first so many; None: all


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """A data set at a commit, the only kind of revision that stays what it is. UsageError for another."""

    name: str
    commit: str
    split: str = "train"
    config: str | None = None
    text_field: str = "text"
    documents: int | None = None  # only the first so many; None: all

    def __post_init__(self) -> None:
        if not COMMIT.fullmatch(self.commit):
            raise UsageError(
                f"data set {self.name}: {self.commit!r} is not a commit (40 hex digits), and a branch or a tag may "
                "move. Take the commit that it stands for now, as the data set's page shows it."
            )


Source = Synthetic | TextFiles | HubDataset


def text_files(paths: Iterable[str | Path], text_field: str = "text", documents: int | None = None) -> TextFiles:
    """Those files, and of folders all files of a known ending in them and below, by name. UsageError where none are."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) is not None)
            if not inside:
                raise UsageError(f"{path} has no file to read; known endings are {_endings()}.")
            found += inside
        elif not path.is_file():
            raise UsageError(f"{path} does not exist. Name a text file, or a folder of them.")
        elif _kind(path) is None:
            raise UsageError(f"{path}: unknown ending; known are {_endings()}.")
        else:
            found.append(path)
    return TextFiles(paths=tuple(found), text_field=text_field, documents=documents)


def pin(name: str, revision: str = "main", **options: Any) -> HubDataset:
    """The data set at the commit that `revision` stands for now; `options` are HubDataset's other fields.

    Asks the hub, but for a revision that is a commit. Raises UsageError where it has no such data set or revision.
    """
    return HubDataset(name=name, commit=commit_of("dataset", name, revision), **options)


def describe(source: Source) -> dict[str, Any]:
    """What the source is, as JSON: enough to tell two apart, nothing of where it lies. UsageError for a lost file."""
    if isinstance(source, TextFiles):
        files = [{"name": path.name, "bytes": _size(path)} for path in source.paths]
        return {"kind": "files", "text_field": source.text_field, "documents": source.documents, "files": files}
    return {"kind": "synthetic" if isinstance(source, Synthetic) else "hub", **asdict(source)}


def documents(source: Source, skip: int = 0) -> Iterator[Iterable[str]]:
    """The source's documents but for the first `skip`, each as its parts, to be read before the next is asked for.

    Raises UsageError that names the file and the line where a text is not to be had, MissingExtraError.
    """
    if isinstance(source, Synthetic):
        return ([text] for text in synthetic.documents(source, skip))
    if isinstance(source, HubDataset):
        found = _hub_documents(source, skip)
    else:
        found = islice(_file_documents(source), skip, None)
    return islice(found, None if source.documents is None else max(0, source.documents - skip))


# Files


def _file_documents(source: TextFiles) -> Iterator[Iterable[str]]:
    for path in source.paths:
        if _kind(path) in TEXT:
            yield _parts(path)
            continue
        with _reading(path) as file:
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    parse = partial(_text_of_line, f"{path}, line {number}", source.text_field)
                    yield map(parse, [line])  # when it is asked for: a line that is skipped is never parsed


def _parts(path: Path) -> Iterator[str]:
    with _reading(path) as file:
        while part := file.read(PART):
            yield part


def _text_of_line(where: str, field: str, line: str) -> str:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}.") from error
    return _text_of(entry, field, where)


@contextmanager
def _reading(path: Path) -> Iterator[TextIO]:
    """The open file, decompressed. What cannot be opened, decompressed or decoded is a UsageError."""
    damaged: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    try:
        if path.suffix == ".zst":
            zstandard = require("zstandard", f"Reading {path}")
            damaged += (zstandard.ZstdError,)
            frames = io.BufferedReader(_ZstandardFrames(path.open("rb"), zstandard))
            file: TextIO = io.TextIOWrapper(frames, encoding="utf-8-sig", newline="\n")
        elif path.suffix == ".gz":
            file = gzip.open(path, "rt", encoding="utf-8-sig", newline="\n")  # noqa: SIM115 - closed below
        else:
            file = path.open(encoding="utf-8-sig", newline="\n")
        with file:
            yield file
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 ({error.reason}). Convert it, or leave it out.") from error
    except damaged as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error


class _ZstandardFrames(io.RawIOBase):
    """Decompressed content of all frames. EOFError where the last is cut off: the package's own reader just ends."""

    def __init__(self, file: BinaryIO, zstandard: ModuleType) -> None:
        self._file, self._package = file, zstandard
        self._frame: Any = None  # the one being read
        self._compressed = self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            self._compressed = self._compressed or self._file.read(ZSTANDARD_BYTES)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("the archive is cut off")
                return 0
            self._frame = self._frame or self._package.ZstdDecompressor().decompressobj()
            self._ready, self._compressed = self._frame.decompress(self._compressed), b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error


def _kind(path: Path) -> str | None:
    """The ending that says what is inside; None where it is not known."""
    suffixes = path.suffixes[:-1] if path.suffix in COMPRESSED else path.suffixes
    return suffixes[-1] if suffixes and suffixes[-1] in (*TEXT, *JSON_LINES) else None


def _endings() -> str:
    return f"{', '.join((*TEXT, *JSON_LINES))}, and each with {' or '.join(COMPRESSED)}"


# The hub


def _hub_documents(source: HubDataset, skip: int) -> Iterator[Iterable[str]]:
    datasets = require("datasets", f"The data set {source.name}")
    advice = "Look at its config, its split and the network; run it again, and the build goes on where it stopped"
    with hub_errors(f"data set {source.name}", advice):
        rows = datasets.load_dataset(
            source.name, source.config, split=source.split, revision=source.commit, streaming=True
        )
        for number, row in enumerate(rows.skip(skip), start=skip + 1):
            yield [_text_of(row, source.text_field, f"data set {source.name}, row {number}")]


def _text_of(entry: Any, field: str, where: str) -> str:
    """The text of an entry. Half a surrogate pair, which JSON can spell and UTF-8 cannot, becomes U+FFFD."""
    if not isinstance(entry, dict) or field not in entry:
        keys: Sequence[str] = list(entry) if isinstance(entry, dict) else []
        near = difflib.get_close_matches(field, keys, n=1) or keys[:5]
        raise UsageError(f"{where}: no field {field!r}; it has {', '.join(map(repr, near)) or 'no fields'}.")
    text = entry[field]
    if not isinstance(text, str):
        raise UsageError(f"{where}: field {field!r} holds {type(text).__name__}, not text.")
    return LONE_SURROGATE.sub("\ufffd", text) if not text.isascii() else text
