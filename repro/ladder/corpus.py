"""A token store: the tokens of a corpus, cell by cell, in a folder of shards that training maps into memory.

    manifest.json                     what the store was made from, and its shards; written last: it means all is there
    shards/CELL.train.00000.bin       tokens, little-endian, of 16 bits where the vocabulary allows, else of 32
    shards/CELL.held_out.00000.bin    those of documents that are never trained on
    building.json                     only while it is built: the shards that are finished, how far the sources are read

A cell's shards are one flat stream, document after document, each from BOS to EOS. Sequence i of length S is tokens
S · i … S · i + S − 1: nothing is packed or padded, documents are cut where a sequence ends, and one longer than a
sequence fills several (as upstream's loader has it, marin-levanter 0.2.227).

Whether a document is held out depends on its beginning alone, so that one that occurs twice is never on both sides.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, field
from dataclasses import dataclass as plain_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from repro.errors import RecordError, UsageError
from repro.files import canonical_json, output_errors, parse_json, read_bounded, write_atomically
from repro.ladder.shards import UNFINISHED, Shard, ShardWriter, Stream, open_stream
from repro.ladder.sources import Source, describe, documents
from repro.ladder.synthetic import Entropy, Synthetic, mixture_entropy
from repro.ladder.tokenizing import BYTES, Tokenizer, TokenizerIdentity
from repro.record.entries import ENTRY, read_entry
from repro.runs import HELD, hold_run

VERSION = 1
MANIFEST, BUILDING, SHARDS = "manifest.json", "building.json", "shards"
BROKEN_OFF = f".{BUILDING}.*"  # what a killed write of it leaves behind
SHARD_TOKENS = 2**26  # a shard ends with the first document that reaches it: 128 MiB of 16-bit tokens
HELD_OUT = 0.01  # of the documents
BEGINNING = 4096  # characters of a document that decide whether it is held out
CELL = re.compile(r"[A-Za-z0-9_-]+")

Report = Callable[[str, int], None]  # after each document: its cell, tokens of it that are written so far


@plain_dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """What a store is made from: a source for each cell, and how its text is turned into tokens and split."""

    sources: Mapping[str, Source]
    tokenizer: Tokenizer
    held_out: float = HELD_OUT  # share of the documents
    shard_tokens: int = SHARD_TOKENS


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Origin:
    """A StoreSpec as its manifest has it: what the sources are, not where they lay."""

    tokenizer: TokenizerIdentity
    held_out: float
    shard_tokens: int
    sources: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class CellShards:
    """The shards of a cell. While it is built: documents read so far, the last of which ends the last shards."""

    documents_read: int = 0
    finished: bool = False
    train: tuple[Shard, ...] = ()
    held_out: tuple[Shard, ...] = ()


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Contents:
    """manifest.json, and building.json until it is whole."""

    version: int
    dtype: Literal["uint16", "uint32"]
    origin: Origin
    cells: Mapping[str, CellShards] = field(default_factory=dict)


@plain_dataclass(frozen=True, kw_only=True)
class Store:
    """An open store: streams by cell, in the order in which the cells were given."""

    folder: Path
    origin: Origin
    sha256: str  # of the manifest, and so of every token
    train: Mapping[str, Stream]
    held_out: Mapping[str, Stream]

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer that every token comes from."""
        return self.origin.tokenizer

    def sequences(self, seq_len: int) -> dict[str, int]:
        """Whole sequences of each cell that may be trained on; what is left at a stream's end is dropped."""
        return {cell: stream.tokens // seq_len for cell, stream in self.train.items()}

    def entropy(self, shares: Mapping[str, float]) -> Entropy | None:
        """Entropy of cells mixed by shares; None where it is not known: only of harrier-synthetic in bytes it is."""
        described = {cell: dict(self.origin.sources[cell]) for cell in shares}
        if self.tokenizer.name != BYTES or any(one.pop("kind") != "synthetic" for one in described.values()):
            return None
        return mixture_entropy({cell: Synthetic(**one) for cell, one in described.items()}, shares)


def open_store(folder: Path, *, tokenizer: TokenizerIdentity | None = None, verify: bool = True) -> Store:
    """Open a finished store; with `verify`, read every shard once and hold it against its digest.

    Raises RecordError that names what is missing, damaged, of another version, or made by another tokenizer than the
    one that is asked for.
    """
    contents, data = _read(folder / MANIFEST)
    made_by = contents.origin.tokenizer
    if tokenizer is not None and not made_by.same_as(tokenizer):
        raise RecordError(
            f"{folder} holds tokens of {made_by}, not of {tokenizer}. Name the tokenizer that it was made with, "
            "or build another store."
        )

    def streams(split: str) -> dict[str, Stream]:
        return {
            cell: open_stream(folder, getattr(shards, split), contents.dtype, verify=verify)
            for cell, shards in contents.cells.items()
        }

    return Store(
        folder=folder,
        origin=contents.origin,
        sha256=hashlib.sha256(data).hexdigest(),
        train=streams("train"),
        held_out=streams("held_out"),
    )


def build_store(spec: StoreSpec, out: Path, report: Report = lambda cell, tokens: None) -> Store:
    """Make the store in the folder `out`, or finish it; one that is whole already is opened as it is.

    A build that was killed goes on after its last finished shard, to the same bytes. Documents stream through: memory
    holds a part of one document and a write buffer, however large the corpus. Raises UsageError where the folder holds
    something else, or the corpus has nothing to train on; OutputError where it cannot be written.
    """
    origin = _origin(spec)
    _check_folder(out, origin)
    with hold_run(out):
        if not (out / MANIFEST).exists():
            _finish(spec, origin, out, report)
        with output_errors(out):
            (out / BUILDING).unlink(missing_ok=True)
    return open_store(out)


# Building


def _finish(spec: StoreSpec, origin: Origin, out: Path, report: Report) -> None:
    """From whatever shards are finished to the manifest."""
    dtype: Literal["uint16", "uint32"] = "uint16" if origin.tokenizer.vocab_size <= 2**16 else "uint32"
    done = dict(_read(out / BUILDING)[0].cells) if (out / BUILDING).exists() else {}
    with output_errors(out):
        for broken_off in (*(out / SHARDS).glob(f"*{UNFINISHED}"), *out.glob(BROKEN_OFF)):
            broken_off.unlink()

    def write(name: str) -> None:
        cells = {cell: done[cell] for cell in spec.sources if cell in done}
        contents = Contents(version=VERSION, dtype=dtype, origin=origin, cells=cells)
        write_atomically(out / name, canonical_json(asdict(contents)))

    write(BUILDING)
    for cell, source in spec.sources.items():
        now = done.get(cell, CellShards())
        stream = documents(source, now.documents_read) if not now.finished else iter(())
        while not now.finished:
            now = done[cell] = _write_shards(spec, cell, now, stream, out, dtype, report)
            write(BUILDING)
    for split, advice in (
        ("train", "Give more text."),
        ("held_out", "Give more documents, or hold out a larger share; none at all with 0."),
    ):
        if not any(getattr(cell, split) for cell in done.values()) and (split == "train" or spec.held_out):
            read = sum(cell.documents_read for cell in done.values())
            raise UsageError(f"{out}: of the {read:,} documents of the corpus, none has text for {split}. {advice}")
    write(MANIFEST)


def _write_shards(
    spec: StoreSpec,
    cell: str,
    done: CellShards,
    stream: Iterator[Iterable[str]],
    out: Path,
    dtype: str,
    report: Report,
) -> CellShards:
    """Write the cell's next shard of each split, which end with one document."""
    read, finished = done.documents_read, False
    before = sum(shard.tokens for shard in done.train + done.held_out)
    with ExitStack() as opened:
        writers = {}
        for split, written in (("train", done.train), ("held_out", done.held_out)):
            file = f"{SHARDS}/{cell}.{split}.{len(written):05}.bin"
            writers[split] = opened.enter_context(ShardWriter(out, file, dtype))
        while max(writer.tokens for writer in writers.values()) < spec.shard_tokens:
            document = next(stream, None)
            if document is None:
                finished = True
                break
            read += 1
            parts = iter(document)
            if not (first := next(parts, "")):
                continue
            writer = writers["held_out" if _is_held_out(first, spec.held_out) else "train"]
            for ids in spec.tokenizer.encode(chain([first], parts)):
                writer.append(ids)
            writer.end_document()
            report(cell, before + sum(writer.tokens for writer in writers.values()))
        train, held_out = (writer.finish() for writer in writers.values())
    return CellShards(
        documents_read=read,
        finished=finished,
        train=(*done.train, *([train] if train else [])),
        held_out=(*done.held_out, *([held_out] if held_out else [])),
    )


def _is_held_out(first_part: str, share: float) -> bool:
    """Whether the SHA-256 of its beginning, read as a number from 0 to 1, falls below the share."""
    digest = hashlib.sha256(first_part[:BEGINNING].encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


# What there is


def _origin(spec: StoreSpec) -> Origin:
    if not spec.sources:
        raise UsageError("the corpus has no cells; give at least one source.")
    for cell in spec.sources:
        if not CELL.fullmatch(cell):
            raise UsageError(f"cell {cell!r}: a cell's name has letters, digits, - and _ only; it names files.")
    if not 0 <= spec.held_out < 1 or spec.shard_tokens < 1:
        raise UsageError(
            f"held-out share {spec.held_out}, shards of {spec.shard_tokens} tokens: the share must be in [0, 1), and a "
            "shard have at least 1 token."
        )
    sources = {cell: describe(source) for cell, source in spec.sources.items()}
    return Origin(
        tokenizer=spec.tokenizer.identity, held_out=spec.held_out, shard_tokens=spec.shard_tokens, sources=sources
    )


def _check_folder(out: Path, origin: Origin) -> None:
    """Refuse a folder that holds something else than this store, whole or begun."""
    for name in (MANIFEST, BUILDING):
        if (out / name).is_file():
            found = _read(out / name)[0].origin
            if found != origin:
                raise UsageError(
                    f"{out} holds another store: {_difference(found, origin)}. Choose another folder, or delete it."
                )
            return
    with output_errors(out):
        if out.is_dir() and any(path.name != HELD and not path.match(BROKEN_OFF) for path in out.iterdir()):
            raise UsageError(f"{out} is not empty and no store. Choose a folder that is empty, or does not exist.")


def _difference(found: Origin, wanted: Origin) -> str:
    for name in ("tokenizer", "held_out", "shard_tokens"):
        if (there := getattr(found, name)) != (here := getattr(wanted, name)):
            return f"its {name} is {there}, not {here}"
    cells = {**found.sources, **wanted.sources}
    odd = next(cell for cell in cells if found.sources.get(cell) != wanted.sources.get(cell))
    there, here = found.sources.get(odd, {}), wanted.sources.get(odd, {})
    commits = there.get("commit"), here.get("commit")
    moved = f", at commit {commits[0]}, not {commits[1]}" if all(commits) and commits[0] != commits[1] else ""
    return f"the source of its cell {odd} is another, or was changed{moved}"


def _read(path: Path) -> tuple[Contents, bytes]:
    """A manifest, and its bytes. Raises RecordError."""
    if not path.is_file():
        begun = (path.parent / BUILDING).is_file()
        what = "its build was broken off; build it again, and it goes on" if begun else f"it has no {MANIFEST}"
        raise RecordError(f"{path.parent} is not a token store: {what}.")
    data = read_bounded(path)
    content = parse_json(data, str(path))
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise RecordError(
            f"{path}: version {version!r}; this program reads version {VERSION}. Build the store again with this one."
        )
    return read_entry(Contents, content, str(path)), data
