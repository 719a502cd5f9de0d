"""What an answer means: its JSON, whether it is a rate limit and until when, and which error a refusal is.

Nothing here speaks to a network; http.py asks, these functions decide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from repro.record.services.errors import Forbidden, Gone, Malformed, ServiceError, clock_time, quoted, shown

UNSAID_WAIT = 60.0  # seconds; GitHub's documentation on secondary limits: "wait for at least one minute"
LOGIN_PAGE = "A proxy or a login stands between: open the address in a browser, or set HTTPS_PROXY."
TRY_LATER = "Try again later; if it stays, the service has changed its format: report it."


@dataclass(frozen=True)
class Response:
    """An answer read to its end. `wire` is the body as sent, and the same object where there was nothing to unpack."""

    url: str  # where it came from, after redirects
    status: int
    headers: Mapping[str, str]  # names in lower case; repeated ones joined with ", "
    body: bytes
    wire: bytes

    def json(self) -> Any:
        """The body as JSON; NaN and Infinity become floats. Raises Malformed."""
        if looks_like_html(self.body):
            raise Malformed(f"{shown(self.url)}: an HTML page came instead of JSON. {LOGIN_PAGE}")
        try:
            return json.loads(self.body.decode())
        except UnicodeDecodeError as error:
            raise Malformed(f"{shown(self.url)}: the answer is not UTF-8 at byte {error.start}. {TRY_LATER}") from error
        except (ValueError, RecursionError) as error:
            raise Malformed(f"{shown(self.url)}: the answer is not JSON ({error}). {TRY_LATER}") from error


def refusal(response: Response) -> ServiceError:
    """The error that an answer without success is."""
    what = f"status {response.status}{said(response)}"
    where = shown(response.url)
    if response.status == 401:
        return Forbidden(f"{where}: needs a valid login ({what}). Set, renew or unset the service's token.", 401)
    if response.status == 403:
        return Forbidden(
            f'{where}: not open to us ({what}). If that is known, write expectation = "forbidden" in record.toml; '
            "otherwise ask its owner.",
            403,
        )
    if response.status in (404, 410, 451):
        return Gone(
            f"{where}: not there, or no longer public ({what}). Check the address; if it is right, look for a copy.",
            response.status,
        )
    return Malformed(f"{where}: an answer that was not expected ({what}). {TRY_LATER}")


def looks_like_html(body: bytes) -> bool:
    """Whether the bytes begin as an HTML page does."""
    return re.match(rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)*<(!doctype html|html)\b", body[:2048], re.I | re.S) is not None


def is_limit(response: Response) -> bool:
    """Whether it is a rate limit: 429, or GitHub's 403 with no requests left, a Retry-After, or the words for it."""
    spent = response.headers.get("x-ratelimit-remaining") == "0" or "retry-after" in response.headers
    return response.status == 429 or (response.status == 403 and (spent or b"rate limit" in response.body.lower()))


def asked_wait(response: Response) -> float | None:
    """Seconds that the service asks to wait, measured on its own clock, since ours may be wrong; None: it does not."""
    headers = response.headers
    here = _date(headers.get("date", "")) or datetime.now(UTC)
    after = headers.get("retry-after", "")
    if re.fullmatch(r"\d{1,9}", after):
        return float(after)
    if moment := _date(after):
        return max(0.0, (moment - here).total_seconds())
    if not is_limit(response):
        return None
    reset = headers.get("x-ratelimit-reset", "")  # GitHub: seconds since 1970
    if headers.get("x-ratelimit-remaining") == "0" and re.fullmatch(r"\d{1,11}", reset):
        return max(0.0, int(reset) - here.timestamp())
    if match := re.search(r";\s*t\s*=\s*(\d{1,9})", headers.get("ratelimit", "")):  # the hub: "api";r=0;t=55
        return float(match[1])
    if re.fullmatch(r"\d{1,9}", headers.get("ratelimit-reset", "")):  # W&B: seconds from now
        return float(headers["ratelimit-reset"])
    return UNSAID_WAIT


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def later(moment: datetime, hint: str) -> str:
    return f"Come back at {clock_time(moment)}{f', {hint}' if hint else ''}."


def said(response: Response) -> str:
    """What the service says of its refusal: JSON's message or error, XML's Code, the hub's header."""
    words = response.headers.get("x-error-message", "")
    if match := re.search(rb'"(?:message|error)"\s*:\s*"((?:[^"\\]|\\.){1,300})"', response.body):
        words = words or match[1].decode(errors="replace")
    if match := re.search(rb"<Code>([^<]{1,100})</Code>", response.body):
        words = words or match[1].decode(errors="replace")
    return f", {quoted(words)}" if words else ""
