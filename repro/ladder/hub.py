"""What the ladder asks the Hugging Face hub for: the commit of a revision, and a tokenizer's file.

The library's own settings hold: HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME with its cache, HF_TOKEN or the token of
`hf auth login`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import huggingface_hub

from repro.errors import MarinReproError, UsageError

COMMIT = re.compile(r"[0-9a-f]{40}")
TOKENIZER_FILE = "tokenizer.json"


def commit_of(kind: Literal["dataset", "model"], name: str, revision: str) -> str:
    """The commit that the revision stands for now; one that is a commit already is not asked about.

    Raises UsageError where the hub has no such repository or revision, or cannot be asked.
    """
    if COMMIT.fullmatch(revision):
        return revision
    what = f"{'data set' if kind == 'dataset' else 'tokenizer'} {name} at {revision}"
    with hub_errors(what, "Look at its name, its revision and the network; a commit needs no asking"):
        commit = str(huggingface_hub.HfApi().repo_info(name, repo_type=kind, revision=revision).sha)
    return commit


def tokenizer_file(name: str, revision: str) -> tuple[Path, str]:
    """The file tokenizer.json of a repository, in the library's cache, and the commit that it is of.

    A commit that is in the cache needs no hub. Raises UsageError.
    """
    commit = commit_of("model", name, revision)
    advice = f"Look at its name, its revision and the network; it must have a {TOKENIZER_FILE}"
    with hub_errors(f"tokenizer {name} at {revision}", advice):
        return Path(huggingface_hub.hf_hub_download(name, TOKENIZER_FILE, revision=commit)), commit


@contextmanager
def hub_errors(what: str, advice: str) -> Iterator[None]:
    """Whatever the hub's packages raise becomes a UsageError that begins with `what`."""
    try:
        yield
    except MarinReproError:
        raise
    except Exception as error:  # these packages and their transports have no error in common
        reason = " ".join(str(error).split()).rstrip(".")
        raise UsageError(f"{what}: {type(error).__name__}: {reason}. {advice}.") from error
