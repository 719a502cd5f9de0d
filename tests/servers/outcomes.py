"""What each fault of base.FAULTS must become, whichever service has it: the error, and words of its message.

A flipped byte and CRLF are found by a publisher's hash, and only where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from repro.record.services.errors import (
    Forbidden,
    Gone,
    HashMismatch,
    Malformed,
    RateLimited,
    ServiceError,
    TooLarge,
    Unreachable,
)

Outcome = tuple[type[ServiceError] | tuple[type[ServiceError], ...], str]

ALWAYS: Mapping[str, Outcome] = {  # of any answer
    "rate limit 429": (RateLimited, r"rate limit .*Come back at \d\d:\d\d UTC|Come back at \d{4}-"),
    "rate limit 403": (RateLimited, r"Come back at"),
    "status 500": (Unreachable, r"status 500.*not known whether.*try again later"),
    "status 503": (Unreachable, r"status 503"),
    "status 403": (Forbidden, r"not open to us \(status 403"),
    "status 404": (Gone, r"status 404"),
    "status 451": (Gone, r"status 451"),
    "no answer": (Unreachable, r"could not be reached .*3 tries.*HTTPS_PROXY"),
    "slow body": (Unreachable, r"no answer in time"),
    "truncated body": (Malformed, r"cut off after [\d,]+ bytes of \d+, in 3 tries"),
    "length too long": (Malformed, r"cut off after [\d,]+ bytes of \d+, in 3 tries"),
    "redirect to file": (Malformed, r"redirects to file:.*only https"),
    "redirect to ftp": (Malformed, r"redirects to ftp:.*only https"),
    "redirect loop": (Malformed, r"redirects in a circle"),
    "long redirects": (Malformed, r"redirects more than 5 times"),
    "login page": (Malformed, r"HTML page came instead|is a login page"),
    "gzip bomb": (TooLarge, r"more than [\d,]+ bytes after unpacking.*--max-bytes"),
}
OF_JSON: Mapping[str, Outcome] = {  # of an answer that must be JSON
    **ALWAYS,
    "length too short": (Malformed, r"not JSON"),
    "LFS pointer": (Malformed, r"not JSON"),
    "invalid UTF-8": (Malformed, r"not UTF-8 at byte 0"),
    "empty body": (Malformed, r"not JSON"),
}
OF_HASHED_FILE: Mapping[str, Outcome] = {  # of a file whose hash the publisher gives
    **ALWAYS,
    "length too short": (HashMismatch, r"hash-mismatch: .*the publisher says"),
    "LFS pointer": (Malformed, r"Git LFS pointer to sha256:(ab){32} \(4,096 bytes\)"),
    "invalid UTF-8": (HashMismatch, r"the publisher says"),
    "flipped byte": (HashMismatch, r"the publisher says"),
    "CRLF": (HashMismatch, r"only the line ends differ"),
    "empty body": (HashMismatch, r"0 bytes"),
}
