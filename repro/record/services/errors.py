"""What can come of an artifact instead of its bytes. Results, not errors of the user's: each becomes a status.

    ServiceError
    ├── Unreachable     no answer that could be used: network, TLS, time-out, 5xx; says nothing about the artifact
    ├── RateLimited     the service asks to come back later; says nothing about the artifact
    ├── Forbidden       401, 403: there, perhaps, but not open to us
    ├── Gone            404, 410, 451, or missing from a listing
    ├── TooLarge        more bytes than this kind may have, also after unpacking
    ├── Malformed       an answer that is not what it should be: a login page, an LFS pointer, a cut-off body
    └── HashMismatch    bytes that are not those whose hash the publisher gives

Every message is one line that names address and mend, and holds no secret: values of the token variables, and words of
the form of a known token, are struck out when the error is made.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

from repro.record.digests import Digest

TOKEN_VARIABLES = ("GITHUB_TOKEN", "GH_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
TOKEN_FORMS = re.compile(r"\b(gh[pousr]_|github_pat_|hf_)\w{16,}|(?<=[Bb]earer )\S{8,}")  # GitHub's and the hub's
MAX_WORDS = 200  # characters of a service's own words that a message may quote


class ServiceError(Exception):
    """What came of one artifact instead of its bytes; the message is one line without secrets."""

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(" ".join(message.split())))


class Unreachable(ServiceError):
    """No usable answer: nothing is known about the artifact."""


class RateLimited(ServiceError):
    """The service asks to come back at `retry_at`, by this machine's clock; None where it does not say."""

    def __init__(self, message: str, retry_at: datetime | None = None) -> None:
        super().__init__(message)
        self.retry_at = retry_at


class Forbidden(ServiceError):
    """Not open to us; `status` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Gone(ServiceError):
    """No longer there; `status` is the HTTP status, 404 where a listing lacks the entry."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class TooLarge(ServiceError):
    """More bytes than allowed."""


class Malformed(ServiceError):
    """An answer that is not what the address should give."""


class HashMismatch(ServiceError):
    """The bytes `data` have the digest `found`, the publisher says `expected`."""

    def __init__(self, message: str, expected: Digest, found: Digest, data: bytes) -> None:
        super().__init__(message)
        self.expected, self.found, self.data = expected, found, data


def without_secrets(text: str) -> str:
    """The text with every token struck out."""
    for name in TOKEN_VARIABLES:
        value = os.environ.get(name, "")
        if len(value) >= 4:  # anything shorter is no token, and would strike out ordinary words
            text = text.replace(value, "•••")
    return TOKEN_FORMS.sub("•••", text)


def shown(address: str) -> str:
    """An address as a message may show it: no user, password, query or fragment, since those carry keys."""
    return quoted(re.sub(r"(?<=//)[^/?#]*@", "", re.split(r"[?#]", address)[0]))


def quoted(words: str) -> str:
    """A service's own words in one printable line of bounded length."""
    line = " ".join("".join(char if char.isprintable() else " " for char in words).split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"


def clock_time(moment: datetime) -> str:
    """ "14:05 UTC", with the date where it is not today's."""
    moment = moment.astimezone(UTC)
    today = datetime.now(UTC).date() == moment.date()
    return f"{moment:%H:%M UTC}" if today else f"{moment:%Y-%m-%d %H:%M UTC}"
