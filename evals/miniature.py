"""The built-in stand-in for the evaluated texts: the same names and layout, and text that was made up.

Documents of `harrier-synthetic` (seed 0, as in a run's own store) whose numbers lie beyond those that any store is
built of, so that no run trains on them. Sets differ in topic, quality and size, so that macro and micro differ; no two
share a document. It says nothing about the published sets, and every result on it says so.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from evals.sources import FOLDERS, SETS, SPLIT, Texts, local_texts
from repro.files import write_atomically
from repro.ladder.synthetic import Synthetic, documents

WHAT = (
    "built-in miniature: made-up text under the sets' names; comparable with other runs on it, with nothing published"
)
TOPICS, QUALITIES = 4, 2  # those of the smoke scale
DOCUMENTS = (12, 16, 24, 32)  # of a set, by turns
FIRST = 2**31  # number of the first document; the largest store, `full`, would have fewer by far
APART = 2**10  # numbers between two sets of one topic and quality
SHORTEST = 100  # characters: a shorter document may be spelled like one that was trained on


def write_miniature(folder: Path, suites: Sequence[str]) -> Texts:
    """Write the sets of these suites into a folder and return them. Paloma's are 137 kB of text, equal everywhere."""
    for suite in suites:
        for place, name in enumerate(SETS.get(suite, ())):
            lines = "".join(json.dumps({"text": text}) + "\n" for text in _documents(suite, place))
            path = folder / FOLDERS.get(name, name) / SPLIT / f"{SPLIT}.jsonl.gz"
            write_atomically(path, gzip.compress(lines.encode(), mtime=0))
    return replace(local_texts(folder, suites), kind="miniature", what=WHAT)


def _documents(suite: str, place: int) -> list[str]:
    number = place + sum(len(SETS[before]) for before in list(SETS)[: list(SETS).index(suite)])
    cell, turn = number % (TOPICS * QUALITIES), number // (TOPICS * QUALITIES)
    first = FIRST + APART * turn
    source = Synthetic(
        seed=0, topic=cell % TOPICS, quality=cell // TOPICS, qualities=QUALITIES, documents=first + APART // 4
    )
    long = (text for text in documents(source, first) if len(text) >= SHORTEST)
    return list(islice(long, DOCUMENTS[place % len(DOCUMENTS)]))
