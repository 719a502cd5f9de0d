"""What becomes of a number of a text: found, unclear, or unread with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from audits.extract.numbers import MAX_NUMBERS, Number
from audits.extract.scopes import Context

TOO_MANY = f"beyond the first {MAX_NUMBERS:,} numbers of a paragraph"
NO_QUANTITY = "no quantity is named beside it"
REASONS = {
    "change": "one end of a change from one state to another",
    "difference": "a difference",
    "multiple": "a multiple of something",
    "error": "the width of what stands before the ±",
    "formula": "part of a formula",
    "identifier": "part of a name",
    "model name": "part of a model's name",
    "ordinal": "an ordinal",
    "beyond": "no number that somebody published",
    "not a number": "not a number",
    "rest": TOO_MANY,
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A number that states a quantity; a name where `number` is None. Places are in the passage's text."""

    quantity: str
    start: int
    end: int
    number: Number | None
    name: str = ""
    context: Context
    convention: str = ""
    words: str  # of the whole fact, for the quotation


@dataclass(frozen=True, kw_only=True)
class Unclear:
    """A number that may state several quantities, or one quantity of something that its sentence does not name."""

    quantities: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A number that was not read."""

    start: int
    end: int
    why: str


Outcome = Found | Unclear | Unread


def why_unread(number: Number, otherwise: str = "") -> str:
    """Why a number of this kind is not read."""
    return otherwise if number.kind == "value" else REASONS.get(number.kind, f"a {number.kind}")
