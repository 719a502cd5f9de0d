"""Packages that only some parts of the ladder need: imported when they are first used, missed with advice."""

from __future__ import annotations

import importlib
from types import ModuleType

from repro.errors import MissingExtraError

# The extra of pyproject.toml that brings each.
EXTRAS = {
    "datasets": "data",
    "tensorboardX": "track",
    "tokenizers": "train",
    "zstandard": "train",
}


def require(package: str, purpose: str) -> ModuleType:
    """The package, imported. Raises MissingExtraError where it is not installed; `purpose` begins its sentence."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # it is installed, and lacks something of its own
            raise
        wanted = f"'marin-repro[{EXTRAS[package]}]'" if package in EXTRAS else package
        raise MissingExtraError(
            f"{purpose} needs the package {package}, which is not installed. Run: pip install {wanted}"
        ) from error
