"""`annotations.toml` beside a record's files: what people answered to findings, and which they set aside until when.

    [[reply]]
    finding = "hardware.gpus"                 # id of a finding, as the report shows it
    by = "the run's maintainers"
    date = 2026-10-08
    text = "Eight GPUs of each rack were spares."
    address = "https://example.org/comment"   # may be left out

    [[suppression]]
    finding = "checkpoint.bytes#drift"
    reason = "Known; the layout is documented."
    expires = 2027-01-01                      # the first day on which it counts no more

A reply changes nothing but what is shown. A suppressed finding is shown too, but is not counted. A suppression that has
expired counts no more, and is reported; so is an annotation of a finding that is not there. The file is no evidence, so
no lock covers it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import field
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from repro.errors import RecordError
from repro.files import read_bounded
from repro.record.entries import ENTRY, read_entry, refuse_repeated
from repro.record.lock import ANNOTATIONS


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("is one line of letters that a reader can see")
    return text


Text = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_one_line)]


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Reply:
    """What somebody answered to a finding."""

    finding: Text
    by: Text
    date: date
    text: Text
    address: Annotated[str, AfterValidator(_one_line)] = ""


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Suppression:
    """A finding that is not to be counted before the day `expires`."""

    finding: Text
    reason: Text
    expires: date


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class Annotations:
    """Everything an annotations.toml says."""

    replies: tuple[Reply, ...] = ()
    suppressions: tuple[Suppression, ...] = ()

    def replies_to(self, finding: str) -> tuple[Reply, ...]:
        """The answers to a finding, in the file's order."""
        return tuple(one for one in self.replies if one.finding == finding)

    def suppression_of(self, finding: str, today: date) -> Suppression | None:
        """The suppression of a finding that still counts on the day."""
        return next((one for one in self.suppressions if one.finding == finding and today < one.expires), None)

    def expired(self, today: date) -> tuple[Suppression, ...]:
        """Suppressions that count no more."""
        return tuple(one for one in self.suppressions if today >= one.expires)

    def astray(self, findings: Collection[str]) -> tuple[str, ...]:
        """Ids that are annotated and are no finding, sorted."""
        named = {one.finding for one in self.replies} | {one.finding for one in self.suppressions}
        return tuple(sorted(named - set(findings)))


@dataclass(frozen=True, kw_only=True, config=ENTRY)
class _Sections:
    reply: tuple[Mapping[str, Any], ...] = field(default=())
    suppression: tuple[Mapping[str, Any], ...] = field(default=())


def read_annotations(folder: Path) -> Annotations:
    """The annotations in a record's folder; none where it has no such file. RecordError names entry and field."""
    path = folder / ANNOTATIONS
    if not path.is_file():
        return Annotations()
    try:
        content = tomllib.loads(read_bounded(path).decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or a number of thousands of digits
        raise RecordError(f"{ANNOTATIONS}: not TOML: {error}.") from error
    sections = read_entry(_Sections, content, ANNOTATIONS)
    replies = tuple(
        read_entry(Reply, one, f"{ANNOTATIONS}, [[reply]] number {number}")
        for number, one in enumerate(sections.reply, start=1)
    )
    suppressions = tuple(
        read_entry(Suppression, one, f"{ANNOTATIONS}, [[suppression]] number {number}")
        for number, one in enumerate(sections.suppression, start=1)
    )
    refuse_repeated(suppressions, lambda one: one.finding, f"{ANNOTATIONS}, [[suppression]]", "finding")
    return Annotations(replies=replies, suppressions=suppressions)
