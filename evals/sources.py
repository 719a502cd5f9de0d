"""Where the evaluated texts lie: the sixteen Paloma sets that the record uses, and the seven uncheatable ones.

    FOLDER/<source>/<split>/*.jsonl.gz      one JSON object a line, its text under "text"; files in the order of names

Paloma is allenai/paloma on the Hugging Face hub at the revision that the run was evaluated on; it is gated. A copy of
it, or one's own texts in the same layout, is read from a local folder. The uncheatable sets are read from a folder
only: their publisher's repository has another layout.

Sets, their order and the revision: experiments/paloma.py and the hero's launch code, marin-community/marin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from repro.errors import NoAnswerError, UsageError
from repro.ladder.sources import TextFiles
from repro.ladder.sources import documents as read_documents
from repro.record.artifacts import Artifact
from repro.record.digests import git_blob_sha1, sha256
from repro.record.services.errors import Forbidden, ServiceError
from repro.record.services.http import Client, base_address

PALOMA, UNCHEATABLE = "paloma", "uncheatable"
SETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        PALOMA: (
            *("4chan", "c4_100_domains", "c4_en", "dolma-v1_5", "dolma_100_programing_languages"),
            *("dolma_100_subreddits", "falcon-refinedweb", "gab", "m2d2_s2orc_unsplit", "m2d2_wikipedia_unsplit"),
            *("manosphere_meta_sep", "mc4", "ptb", "redpajama", "twitterAAE_HELM_fixed", "wikitext_103"),
        ),
        UNCHEATABLE: (
            *("wikipedia_english", "github_python", "github_cpp", "bbc_news", "arxiv_physics"),
            *("arxiv_computer_science", "ao3_english"),
        ),
    }
)
FOLDERS = {"4chan": "4chan_meta_sep"}  # a set's folder where it is not called like the set
SPLIT = "val"
FILES = "*.jsonl.gz"
DATASET, REVISION = "allenai/paloma", "65cd6fc"  # experiments/paloma.py
PUBLISHED_TEXTS = f"{DATASET} at {REVISION}, {SPLIT}"
HUB = "hub"
Kind = Literal["published", "local", "miniature"]


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """One set: its suite, its name as the record has it, and its files in the order in which they are read."""

    suite: str
    name: str
    files: tuple[Path, ...]

    @property
    def label(self) -> str:
        """ "paloma/ptb"."""
        return f"{self.suite}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The sets that are evaluated, in order. `kind` is how far they can be told to be the published ones."""

    kind: Kind
    what: str  # in words, without paths
    sets: tuple[TextSet, ...]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a set holds, counted before anything is computed on it."""

    documents: int
    empty_documents: int
    utf8_bytes: int
    sha256: str  # over each document's length and bytes


def local_texts(folder: Path, suites: Sequence[str], split: str = SPLIT) -> Texts:
    """The sets of these suites in a folder. Raises UsageError that names a folder or set which is not there."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder. Name one that holds <source>/{split}/{FILES}, or leave --data out.")
    sets = []
    for suite, name in named(suites):
        places = [folder / place / split for place in dict.fromkeys((FOLDERS.get(name, name), name))]
        files = next((found for place in places if (found := sorted(place.glob(FILES)))), [])
        if not files:
            raise UsageError(f"{folder} has nothing of {suite}/{name}: no {FILES} in {places[0]}. Add it; a mean over "
                             "fewer sets is another metric.")  # fmt: skip
        sets.append(TextSet(suite=suite, name=name, files=tuple(files)))
    return Texts(kind="local", what="a local folder, known by its digest", sets=tuple(sets))


def hub_texts(suites: Sequence[str], cache: Path | None = None) -> Texts:
    """Paloma from the hub at the run's revision, downloaded where it is not cached yet, every file held to its hash.

    Raises UsageError where the hub refuses (it says how to get access) or the suite is not there, NoAnswerError where
    it does not answer.
    """
    if UNCHEATABLE in suites:
        raise UsageError(f"the {UNCHEATABLE} sets are not on the hub in this layout. Give a folder with --data.")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    endpoint = base_address("HF_ENDPOINT", "https://huggingface.co")
    revision, hashes = _listing()
    sets = []
    for suite, name in named(suites):
        place = f"{FOLDERS.get(name, name)}/{SPLIT}/"
        wanted = sorted(path for path in hashes if path.startswith(place) and Path(path).match(FILES))
        if not wanted:
            raise UsageError(f"{DATASET} at {revision[:7]} has nothing of {suite}/{name}: no {FILES} in {place}.")
        files = []
        for path in wanted:
            try:
                got = hf_hub_download(
                    DATASET, path, repo_type="dataset", revision=revision, endpoint=endpoint, cache_dir=cache
                )
            except (HfHubHTTPError, OSError) as error:
                raise NoAnswerError(f"{DATASET}, {path}: {' '.join(str(error).split())[:200]}. Try again.") from error
            _check_hash(Path(got), *hashes[path])
            files.append(Path(got))
        sets.append(TextSet(suite=suite, name=name, files=tuple(files)))
    return Texts(kind="published", what=f"{DATASET} at {revision}, {SPLIT}", sets=tuple(sets))


def named(suites: Sequence[str]) -> list[tuple[str, str]]:
    """Suite and name of each set, in order. UsageError for an unknown suite."""
    for suite in suites:
        if suite not in SETS:
            raise UsageError(f"suite {suite!r}: of texts there are {' and '.join(SETS)}.")
    return [(suite, name) for suite in suites for name in SETS[suite]]


def documents(texts: TextSet) -> Iterator[str]:
    """The set's documents in order. Raises UsageError that names file and line where one cannot be read."""
    for parts in read_documents(TextFiles(paths=texts.files)):
        yield "".join(parts)


def survey(texts: TextSet) -> Survey:
    """Read the set once. Raises UsageError where it has no documents, or a file is damaged."""
    count = empty = size = 0
    digest = hashlib.sha256()
    for text in documents(texts):
        data = text.encode()
        count, empty, size = count + 1, empty + (not data), size + len(data)
        digest.update(len(data).to_bytes(8) + data)
    if not count:
        raise UsageError(f"{texts.label} has no documents: {', '.join(str(file) for file in texts.files)}.")
    return Survey(documents=count, empty_documents=empty, utf8_bytes=size, sha256=digest.hexdigest())


# The hub


def _listing() -> tuple[str, dict[str, tuple[str, str]]]:
    """The whole revision, and each file's kind of hash and hash."""
    from repro.record.services import hub

    tree = Artifact(
        id="paloma", role="eval set", kind="hub-tree", address=f"datasets/{DATASET}:{REVISION}", digest="sha256"
    )
    try:
        with Client() as client:
            content = hub.read(tree, client)
    except Forbidden as error:
        raise UsageError(
            f"{DATASET} is gated: the hub gives it to accounts that accepted its terms. Accept them at "
            f"https://huggingface.co/datasets/{DATASET}, make a token at https://huggingface.co/settings/tokens and "
            f"set HF_TOKEN to it; or name a folder that has a copy with --data. ({error})"
        ) from error
    except ServiceError as error:
        raise NoAnswerError(f"{DATASET}: {error}") from error
    revision = content.resolved
    if not revision.startswith(REVISION):
        raise NoAnswerError(f"{DATASET}: asked for {REVISION}, the hub names {revision}. Name a folder with --data.")
    hashes = {}
    for file in json.loads(content.data)["files"]:
        hashes[file["path"]] = ("sha256", file["sha256"]) if file["sha256"] else ("git-sha1", file["blob_id"])
    return revision, hashes


def _check_hash(file: Path, kind: str, expected: str) -> None:
    data = file.read_bytes()
    found = sha256(data).value if kind == "sha256" else git_blob_sha1(data).value
    if found != expected:
        raise NoAnswerError(
            f"{file}: its {kind} is {found}, the hub's listing has {expected}. Remove it and try again."
        )
