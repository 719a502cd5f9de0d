"""What a sentence speaks of: which run or rung, which step, one rack or all; whether it plans, measures or foretells.

A scope is kept narrow: what speaks of another run or of one rack never stands beside what is said of the run itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from audits.extract.numbers import Number
from audits.extract.registry import Entry, Registry
from audits.extract.words import NUMBER, Token, find_words, key_words, plain
from repro.record.facts import Record

MODEL_NAME = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,3})?[MBT]-A[0-9]{1,4}(?:\.[0-9]{1,3})?[MBT]")
CONFIGURED = ("shape.", "optimizer.", "hardware.", "transport.", "mixture.", "parameters.")
PLANNED = ("training.", "run.", "context.")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The run that a record is about, by the names that a text may give it."""

    rungs: tuple[str, ...] = ()
    target: str = ""  # the rung that is the run itself
    names: frozenset[str] = frozenset()  # such as 12B-A1B
    runs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # id of a W&B run: its scope


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is known of a number besides its quantity."""

    scope: Mapping[str, str]
    status: str  # plan, configuration, observation, forecast, hypothesis or third-party
    step_kind: str = ""  # completed updates, or zero-based log step


def subject_of(record: Record) -> Subject:
    """The names of a record's run, its rungs and its W&B runs."""
    target = record.forecast.target if record.forecast is not None else ""
    runs: dict[str, Mapping[str, str]] = {}
    for number, segment in enumerate(record.hero_lineage):
        runs[segment.run_id] = {"segment": segment.run_id} if number else {}
    for row in record.ladder_rungs:
        runs.setdefault(row.run_id, {} if row.rung == target else {"rung": row.rung})
    title = f"{record.run.title} {record.run.name}"
    return Subject(
        rungs=tuple(row.rung for row in record.ladder_rungs),
        target=target,
        names=frozenset(MODEL_NAME.findall(title)),
        runs=runs,
    )


@dataclass(frozen=True)
class Sentence:
    """A stretch of text that is read by itself. Places of tokens and numbers count from its start."""

    text: str
    numbers: Sequence[Number]
    tokens: Sequence[Token]
    headings: tuple[str, ...]  # it stands under
    registry: Registry
    source: str  # id, for scopes that only it knows

    @cached_property
    def words(self) -> frozenset[str]:
        """The words it has; a model's name counts as the word model."""
        named = {"model"} if any(one.kind == "model name" for one in self.numbers) else set()
        return frozenset({token.word for token in self.tokens} | named)

    @cached_property
    def clauses(self) -> tuple[Clause, ...]:
        """Its parts: a contrast (instead of, versus) begins a new one, and a comma ends that."""
        cuts = {0, len(self.tokens)}
        commas = [place for place, token in enumerate(self.tokens) if token.word in (",", ";", ")")]
        for words in self.registry.cues.get("contrast", ()):
            at = find_words(words, self.tokens) if words[0] in self.words else -1
            while at >= 0:
                behind = at + len(words)
                cuts |= {at, behind, next((place for place in commas if place >= behind), len(self.tokens))}
                at = find_words(words, self.tokens, at + 1)
        return tuple(Clause(self, start, end) for start, end in pairwise(sorted(cuts)))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many parentheses are open at each token."""
        steps = ((token.word == "(") - (token.word == ")") for token in self.tokens)
        return tuple(accumulate(steps, lambda depth, step: max(depth + step, 0), initial=0))[1:]

    def cues(self, place: int) -> Mapping[str, str]:
        """The cues that hold for the token at `place`."""
        clause = next(one for one in self.clauses if one.start <= place < one.end)
        return clause.cues if self.depths[place] else clause.outer_cues


@dataclass(frozen=True)
class Clause:
    """A part of a sentence, and the cues in it."""

    sentence: Sentence
    start: int
    end: int

    @cached_property
    def cues(self) -> Mapping[str, str]:
        """Cue: its first words that stand here."""
        return self._cues(self.sentence.tokens[self.start : self.end])

    @cached_property
    def outer_cues(self) -> Mapping[str, str]:
        """Those outside of parentheses: what an aside says does not hold for the rest."""
        tokens = zip(self.sentence.tokens, self.sentence.depths, strict=True)
        return self._cues([token for token, depth in list(tokens)[self.start : self.end] if not depth])

    def _cues(self, tokens: Sequence[Token]) -> Mapping[str, str]:
        tokens = [token for token in tokens if not token.is_name]  # one GB200 rack is one rack
        present = {token.word for token in tokens}
        return {
            cue: " ".join(words)
            for cue, texts in self.sentence.registry.cues.items()
            for words in reversed(texts)
            if words[0] in present and find_words(words, tokens) >= 0
        }


def context_of(sentence: Sentence, place: int, entry: Entry, subject: Subject) -> Context:
    """Scope and status of the number, or the words, at the token `place` of a sentence."""
    cues = sentence.cues(place)
    scope: dict[str, str] = {}
    rung = _rung(sentence, place, subject)
    if rung:
        scope["rung"] = rung
    other = cues.get("other_run") or _other_model(sentence, place, subject)
    if other and not rung:
        scope["run"] = f"{other}, as {sentence.source} calls it"
    if "one_rack" in cues and not entry.name.startswith("hardware."):
        scope["racks"] = "1"
    if "study" in cues and not scope and not entry.name.startswith("hardware."):
        scope["study"] = f"{cues['study']}, as {sentence.source} calls it"
    if entry.name.startswith("throughput."):
        scope |= _segment(sentence, place)
    step = step_kind = ""
    if entry.moment or entry.name == "training.steps":
        step, step_kind = _step(sentence, place)
    if entry.moment and step:
        scope["step"] = step
    return Context(scope=scope, status=_status(cues, entry), step_kind=step_kind)


def _status(cues: Mapping[str, str], entry: Entry) -> str:
    if "forecast" in cues:
        return "forecast"
    if "hypothetical" in cues:
        return "hypothesis"
    if entry.moment or "observation" in cues:
        return "observation"
    if "plan" in cues or entry.name.startswith(PLANNED):
        return "plan"
    return "configuration" if entry.name.startswith(CONFIGURED) else "observation"


def _rung(sentence: Sentence, place: int, subject: Subject) -> str:
    """The rung spoken of: the last one named before the number, one named right behind it, or that of the heading."""
    known = {plain(rung): rung for rung in subject.rungs}
    if not known.keys() & sentence.words:
        titles = {known[word] for text in sentence.headings for word in key_words(text) if word in known}
        return next(iter(titles - {subject.target}), "") if len(titles) == 1 else ""
    before = next((one.word for one in reversed(sentence.tokens[:place]) if one.word in known), "")
    behind = next((one.word for one in sentence.tokens[place + 1 : place + 5] if one.word in known), "")
    named = known.get(before or behind, "")
    return named if named != subject.target else ""


def _other_model(sentence: Sentence, place: int, subject: Subject) -> str:
    """The name of another model, where that is the last one named before the number."""
    if not subject.names or not any(one.kind == "model name" for one in sentence.numbers):
        return ""
    for token in reversed(sentence.tokens[:place]):
        number = sentence.numbers[token.number] if token.number >= 0 else None
        if number is not None and number.kind == "model name":
            name = sentence.text[number.start : number.end]
            return name if name not in subject.names else ""
    return ""


def _segment(sentence: Sentence, place: int) -> dict[str, str]:
    """Which part of the time a rate is over, by the last words before the number that say so."""
    best, name = -1, ""
    for segment, texts in sentence.registry.segments.items():
        for words in texts:
            at = find_words(words, sentence.tokens[:place])
            while at >= 0:
                best, name = (at, segment) if at > best else (best, name)
                at = find_words(words, sentence.tokens[:place], at + 1)
    return {"segment": name} if name else {}


def _step(sentence: Sentence, place: int) -> tuple[str, str]:
    """The step that a sentence names, nearest to the number, and whether it counts updates or log steps."""
    found: list[tuple[int, str]] = []
    tokens = sentence.tokens
    for at, token in enumerate(tokens):
        if token.word != NUMBER or at == place or token.number < 0:
            continue
        value = sentence.numbers[token.number].value.replace(",", "").replace("_", "")
        named = at > 0 and tokens[at - 1].word == "step"
        counted = at + 1 < len(tokens) and tokens[at + 1].word in ("step", "update") and at > 0
        if value.isdecimal() and (named or (counted and tokens[at - 1].word in ("after", "completed", "at"))):
            found.append((abs(at - place), value))
    cues = sentence.cues(place)
    kind = "zero-based log step" if "zero_based" in cues else "completed updates" if "completed" in cues else ""
    return (min(found)[1], kind) if found else ("", kind)
