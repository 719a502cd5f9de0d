"""Where the packaged tasks find their documents: a JSON-lines file beside their YAML file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets


def load(*, file: str, **_: Any) -> dict[str, datasets.Dataset]:
    """Documents by split: each line names its own. lm-eval hands over the task's and its caller's metadata too."""
    splits: dict[str, list[dict[str, Any]]] = {}
    for line in (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        splits.setdefault(document.pop("split"), []).append(document)
    return {split: datasets.Dataset.from_list(documents) for split, documents in splits.items()}
