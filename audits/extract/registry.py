"""The registry: by which words a text names a quantity. Read from TOML, compiled to patterns that are looked up.

`quantities.toml` beside this file says how the vocabulary is written, and its head explains the form. A record may have
a file of its own, which adds aliases to quantities that are known, or quantities (with label, unit and effect).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from audits.extract.words import NUMBER, Pattern, compile_alias, key_words
from audits.quantities import QUANTITIES, Quantity, find_quantity
from repro.errors import RecordError
from repro.record.entries import ENTRY, read_entry, refuse_repeated

NAME = "quantities.toml"
Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Alias:
    """Words that stand for a quantity. `with_` are words one of which the sentence must have."""

    text: str
    scope: Mapping[str, str] = field(default_factory=dict)
    convention: str = ""
    with_: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Entry:
    """One quantity of a registry file; its head says what each key is for."""

    name: str
    label: str = ""
    unit: str = ""
    effect: Literal[0, 1, 2, 3] | None = None
    keys: tuple[str | Mapping[str, Any], ...] = ()
    columns: tuple[str, ...] = ()
    nouns: tuple[str | Mapping[str, Any], ...] = ()
    phrases: tuple[str | Mapping[str, Any], ...] = ()
    said: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    moment: bool = False
    forecast: str = ""


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Cues:
    """Words by which a sentence says what it speaks of; see the head of quantities.toml."""

    other_run: tuple[str, ...] = ()
    one_rack: tuple[str, ...] = ()
    study: tuple[str, ...] = ()
    forecast: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    observation: tuple[str, ...] = ()
    hypothetical: tuple[str, ...] = ()
    zero_based: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    contrast: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class _File:
    cues: Cues = field(default_factory=Cues)
    segments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quantity: tuple[Mapping[str, Any], ...] = ()


@plain_dataclass(frozen=True, kw_only=True)
class Candidate:
    """What an alias stands for: a quantity, the scope it adds, and the value where the words themselves are one."""

    quantity: str
    scope: tuple[tuple[str, str], ...] = ()
    convention: str = ""
    with_: frozenset[str] = frozenset()
    value: str = ""


@plain_dataclass(frozen=True, kw_only=True)
class Registry:
    """Compiled aliases. `left` and `right` are patterns by the word that stands next to the number."""

    quantities: Mapping[str, Quantity]
    entries: Mapping[str, Entry]
    cues: Mapping[str, tuple[Key, ...]]
    segments: Mapping[str, tuple[Key, ...]]
    by_left: Mapping[str, tuple[tuple[Pattern, Candidate], ...]]
    by_right: Mapping[str, tuple[tuple[Pattern, Candidate], ...]]
    keys: Mapping[Key, tuple[Candidate, ...]]
    said: Mapping[str, tuple[tuple[Key, Candidate], ...]]  # by the first word
    names: Mapping[str, tuple[tuple[Key, str], ...]]  # quantity: words, the value they stand for
    settings: Mapping[str, tuple[tuple[str, str], ...]]  # last part of a path: its whole end, the quantity
    metrics: Mapping[str, str]


@cache
def built_in() -> bytes:
    """The registry of the vocabulary."""
    return resources.files("audits.extract").joinpath(NAME).read_bytes()


def read_registry(*own: bytes) -> Registry:
    """The built-in registry with those of a record added. Raises RecordError that names the entry and the field."""
    files = [_read_file(data) for data in (built_in(), *own)]
    entries = [entry for _, found in files for entry in found]
    known = dict(QUANTITIES)
    for entry in entries:
        if entry.name in known:
            continue
        if entry.effect is None or not entry.label:
            find_quantity(entry.name, known, f"{NAME}, quantity {entry.name}")
        assert entry.effect is not None
        known[entry.name] = Quantity(entry.name, entry.label, entry.unit, entry.effect)
    merged: dict[str, Entry] = {}
    left: dict[str, list[tuple[Pattern, Candidate]]] = {}
    right: dict[str, list[tuple[Pattern, Candidate]]] = {}
    keys: dict[Key, list[Candidate]] = {}
    said: dict[str, list[tuple[Key, Candidate]]] = {}
    names: dict[str, list[tuple[Key, str]]] = {}
    settings: dict[str, list[tuple[str, str]]] = {}
    metrics: dict[str, str] = {}
    for entry in entries:
        merged.setdefault(entry.name, entry)
        for form, aliases in (("# …", entry.phrases), ("key", entry.keys), ("noun", entry.nouns)):
            for alias in map(_alias, aliases):
                where = f"{NAME}, quantity {entry.name}, alias {alias.text!r}"
                candidate = Candidate(
                    quantity=entry.name,
                    scope=tuple(sorted(alias.scope.items())),
                    convention=alias.convention,
                    with_=frozenset(word for text in alias.with_ for word in key_words(text)),
                )
                pattern = _pattern(form, alias.text, where)
                if pattern.left and pattern.left[0] not in (NUMBER, "…"):
                    left.setdefault(pattern.left[0], []).append((pattern, candidate))
                else:
                    right.setdefault(pattern.right[0], []).append((pattern, candidate))
                if form == "key":
                    keys.setdefault(key_words(alias.text), []).append(candidate)
        for text in entry.columns:
            keys.setdefault(key_words(text), []).append(Candidate(quantity=entry.name))
        for value, texts in entry.said.items():
            for text in texts:
                words = key_words(text)
                said.setdefault(words[0], []).append((words, Candidate(quantity=entry.name, value=value)))
        for value, texts in entry.names.items():
            names.setdefault(entry.name, []).extend((key_words(text), value) for text in texts)
        for path in entry.settings:
            settings.setdefault(path.rpartition(".")[2], []).append((path, entry.name))
        metrics |= dict.fromkeys(entry.metrics, entry.name)
    cues: dict[str, list[Key]] = {}
    segments: dict[str, list[Key]] = {}
    for file, _ in files:
        for name in Cues.__dataclass_fields__:
            cues.setdefault(name, []).extend(key_words(text) for text in getattr(file.cues, name))
        for name, texts in file.segments.items():
            segments.setdefault(name, []).extend(key_words(text) for text in texts)
    return Registry(
        quantities=known,
        entries=merged,
        cues=_frozen(cues),
        segments=_frozen(segments),
        by_left=_frozen(left),
        by_right=_frozen(right),
        keys=_frozen(keys),
        said=_frozen(said),
        names=_frozen(names),
        settings=_frozen(settings),
        metrics=metrics,
    )


def _frozen(lists: Mapping[Any, list[Any]]) -> dict[Any, tuple[Any, ...]]:
    return {key: tuple(dict.fromkeys(items)) for key, items in lists.items()}


def _read_file(data: bytes) -> tuple[_File, tuple[Entry, ...]]:
    try:
        content = tomllib.loads(data.decode())
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise RecordError(f"{NAME}: not TOML: {error}.") from error
    file = read_entry(_File, content, NAME)
    entries = tuple(
        read_entry(Entry, entry, f"{NAME}, [[quantity]] {entry.get('name', f'number {number}')}")
        for number, entry in enumerate(file.quantity, start=1)
    )
    refuse_repeated(entries, lambda one: one.name, f"{NAME}, [[quantity]]", "name")
    return file, entries


def _alias(alias: str | Mapping[str, Any]) -> Alias:
    if isinstance(alias, str):
        return Alias(text=alias)
    renamed = {("with_" if key == "with" else key): value for key, value in alias.items()}
    return read_entry(Alias, renamed, f"{NAME}, alias {alias.get('text', alias)!r}")


def _pattern(form: str, text: str, where: str) -> Pattern:
    written = {"key": f"{text} #", "noun": f"# {text}"}.get(form, text)
    pattern = compile_alias(written, is_key=form == "key", is_noun=form == "noun")
    if pattern is None:
        raise RecordError(f"{where}: a phrase has one # and a word or more beside it.")
    return pattern
