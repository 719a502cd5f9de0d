"""Shards of a token store: files of bare tokens, written once, read through memory maps as one flat stream."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass as plain_dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic.dataclasses import dataclass

from repro.errors import RecordError
from repro.files import output_errors, path_inside
from repro.ladder.tokenizing import Ids
from repro.record.entries import ENTRY

WRITTEN_AT_ONCE = 2**20  # bytes
UNFINISHED = ".part"  # ending of a shard that is being written


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Shard:
    """A file of whole documents; `file` is relative to the store's folder."""

    file: str
    tokens: int
    documents: int
    sha256: str


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """A shard being written. It has its name only once it is whole; one without a document never gets it."""

    def __init__(self, folder: Path, file: str, dtype: str) -> None:
        self.path, self.file, self.dtype = folder / file, file, np.dtype(dtype).newbyteorder("<")
        self.tokens = self.documents = 0
        self._digest = hashlib.sha256()
        with output_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished = self.path.with_name(self.path.name + UNFINISHED)
            self._out = self._unfinished.open("wb", buffering=WRITTEN_AT_ONCE)

    def append(self, ids: Ids) -> None:
        """Write tokens of the document that is open. Raises OutputError, as `finish` does."""
        data = ids.astype(self.dtype).tobytes()
        with output_errors(self.path):
            self._out.write(data)
        self._digest.update(data)
        self.tokens += len(ids)

    def end_document(self) -> None:
        """Count the document whose tokens were appended."""
        self.documents += 1

    def finish(self) -> Shard | None:
        """Make the file durable and give it its name; None, and no file, where nothing was written."""
        with output_errors(self.path):
            self._out.flush()
            os.fsync(self._out.fileno())
            self._out.close()
            if not self.documents:
                self._unfinished.unlink()
                return None
            os.replace(self._unfinished, self.path)
        return Shard(file=self.file, tokens=self.tokens, documents=self.documents, sha256=self._digest.hexdigest())

    def __exit__(self, *_: object) -> None:
        if not self._out.closed:  # broken off: the bytes that are still held back may not fit on the disk
            with output_errors(self.path):
                self._out.close()


@plain_dataclass(frozen=True)
class Stream:
    """The tokens of a cell, document after document, over all its shards."""

    parts: tuple[npt.NDArray[np.unsignedinteger], ...]
    documents: int

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """[parts] tokens until the end of each shard."""
        return np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""
        return int(self.ends[-1]) if self.parts else 0

    def read(self, start: int, count: int) -> npt.NDArray[np.int32]:
        """Tokens `start` … `start + count − 1`, [count]. The caller stays inside the stream."""
        ends = self.ends
        assert 0 <= start <= start + count <= self.tokens
        tokens, filled = np.empty(count, np.int32), 0
        place = int(np.searchsorted(ends, start, side="right"))
        while filled < count:
            part = self.parts[place]
            first = start + filled - (int(ends[place]) - len(part))
            piece = part[first : first + count - filled]
            tokens[filled : filled + len(piece)] = piece
            filled, place = filled + len(piece), place + 1
        return tokens


def open_stream(folder: Path, shards: Sequence[Shard], dtype: str, *, verify: bool) -> Stream:
    """Map the shards into memory; with `verify`, hold their bytes against the manifest's digests first.

    Raises RecordError that names a shard that is missing, has another size, or other bytes.
    """
    return Stream(tuple(_open(folder, one, dtype, verify) for one in shards), sum(one.documents for one in shards))


def _open(folder: Path, shard: Shard, dtype: str, verify: bool) -> npt.NDArray[np.unsignedinteger]:
    kind = np.dtype(dtype).newbyteorder("<")
    path = path_inside(folder, shard.file)
    mend = "The file was changed or damaged; build the store again, or copy this file from where it is whole."
    try:
        size = path.stat().st_size
        if size != shard.tokens * kind.itemsize:
            raise RecordError(
                f"{path}: {size:,} bytes; the manifest has {shard.tokens:,} tokens of {kind.itemsize} bytes. {mend}"
            )
        if verify:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != shard.sha256:
                raise RecordError(f"{path}: SHA-256 is {found}, the manifest has {shard.sha256}. {mend}")
        return np.memmap(path, kind, "r", shape=(shard.tokens,))
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}. {mend}") from error
