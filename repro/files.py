"""Files: written whole or not at all, read up to a bound, never outside their folder, JSON in one canonical form."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repro.errors import OutputError, RecordError

MAX_RECORD_FILE = 64 * 2**20  # bytes; the largest file of the built-in record has under 0.2 MB


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` through a temporary file in the same folder, so that a reader sees all or nothing.

    Raises OutputError where the folder cannot be made or the file cannot be written; nothing is left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into an OutputError that names the path and the mend."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {path}: {reason}. Choose another folder with --out.") from error


def read_bounded(path: Path, limit: int = MAX_RECORD_FILE) -> bytes:
    """Bytes of a file of at most `limit` bytes. Raises RecordError where it is missing, unreadable or larger."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}.") from error
    if len(data) > limit:
        raise RecordError(f"{path} is larger than {limit:,} bytes; a file of a record may not be.")
    return data


def path_inside(folder: Path, name: str) -> Path:
    """`folder / name`, refused with RecordError where it would leave the folder (`..`, absolute, NUL, symlink)."""
    refused = f"{name!r} leads out of {folder}; a record's files stay inside its folder."
    if not name or not name.isprintable() or "\\" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise RecordError(refused)
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise RecordError(refused)
    return path


def canonical_json(value: Any) -> str:
    """JSON that is equal for equal values: two-space indent, keys in the order given, finite numbers, one newline."""
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def parse_json(data: bytes, name: str) -> Any:
    """Parse strict JSON (no NaN, no Infinity, no number beyond float64, no key twice).

    Raises RecordError that names the file and the place.
    """

    def refuse(token: str) -> Any:
        raise RecordError(f"{name}: {token} is not a number of JSON; write null, or leave the entry out.")

    def finite(token: str) -> float:
        value = float(token)
        return value if math.isfinite(value) else refuse(token)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise RecordError(f"{name}: key {twice!r} stands twice in one object.")
        return result

    try:
        return json.loads(data.decode(), parse_constant=refuse, parse_float=finite, object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise RecordError(f"{name}: not UTF-8 at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise RecordError(f"{name}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}.") from error
    except ValueError as error:  # an integer of more digits than Python reads
        raise RecordError(
            f"{name}: holds an integer of thousands of digits, which is no number of a record."
        ) from error
    except RecursionError as error:
        raise RecordError(f"{name}: nested too deeply to be read.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
