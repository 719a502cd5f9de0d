"""One HTTP client for all services: bounded, patient, and careful with tokens.

- Time-outs, 5xx and broken connections are tried again, with growing pauses and jitter; Retry-After is obeyed where it
  is short, and otherwise told to the user as a time of this machine's clock.
- Bodies are read as a stream up to a limit, which also holds for what they unpack to.
- Redirects are followed at most five times, within http and https and never from https to http; a token stays with
  the host it was given for.
- Proxies, SSL_CERT_FILE and SSL_CERT_DIR are httpx's, from the environment. Cookies are not kept.

Comes in: an address. Goes out: a `Response` (answers.py), or one of the errors of errors.py.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from repro import __version__
from repro.errors import UsageError
from repro.record.services.answers import TRY_LATER, UNSAID_WAIT, Response, asked_wait, is_limit, later, refusal, said
from repro.record.services.errors import Malformed, RateLimited, ServiceError, TooLarge, Unreachable, quoted, shown

MAX_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
MAX_ANSWER = 64 * 2**20  # bytes of an API's answer
MAX_REFUSAL = 64 * 2**10  # bytes read of the body of an answer from 400 on
LONGEST_PAUSE = 30.0  # seconds between two tries
CHECK_NETWORK = "Check the network, HTTPS_PROXY and SSL_CERT_FILE, and try again."

T = TypeVar("T")


class Client:
    """Speaks HTTP for all services; safe to share between threads; a context manager that closes its connections."""

    def __init__(
        self,
        *,
        timeout: float = 30.0,
        deadline: float = 300.0,
        attempts: int = 4,
        pause: float = 0.5,
        patience: float = 20.0,
        per_host: int = 8,
        max_bytes: int | None = None,
        answers: Path | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make a client. Seconds: `timeout` of silence, `deadline` for all tries, first `pause` between `attempts`.

        A Retry-After of at most `patience` seconds is waited for. `per_host` requests to one host run at once.
        `max_bytes` bounds what an artifact may have, in place of the bound of its kind. In the folder
        `answers` the answers of APIs are kept, to be asked again only if they changed (conditional.py).
        Raises UsageError where SSL_CERT_FILE or a proxy variable cannot be used.
        """
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
        usual = {"user-agent": f"marin-repro/{__version__}", "accept-encoding": "identity"}
        try:
            self._http = httpx.Client(timeout=timeout, cookies=cookies, headers=usual, follow_redirects=False)
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(f"SSL_CERT_FILE, SSL_CERT_DIR or a proxy variable cannot be used: {error}") from error
        except httpx.InvalidURL:  # its words may quote a part of a password
            raise UsageError(
                "a proxy variable, such as HTTPS_PROXY, holds no address; write http://host:port."
            ) from None
        self.max_bytes, self.answers = max_bytes, answers
        self._deadline, self._attempts, self._pause, self._patience = deadline, attempts, pause, patience
        self._sleep = sleep
        self._per_host = per_host
        self._lock = threading.Lock()
        self._turns: dict[str, threading.BoundedSemaphore] = {}
        self._come_back: dict[str, datetime] = {}  # host: not before
        self._known: dict[Hashable, Future[Any]] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()` the first time that `key` is asked for, then its result; an error is not remembered."""
        with self._lock:
            future = self._known.get(key)
            mine = future is None
            if future is None:
                future = self._known[key] = Future()
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    del self._known[key]
                future.set_exception(error)
                raise
        result: T = future.result()
        return result

    def get(self, url: str, **options: Any) -> Response:
        """GET that must succeed; options are those of `exchange`. Raises any ServiceError."""
        response = self.exchange("GET", url, **options)
        if not 200 <= response.status < 300:
            raise refusal(response)
        return response

    def exchange(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        limit: int | None = None,
        follow: bool = True,
        hint: str = "",
    ) -> Response:
        """Ask until there is an answer: any status below 500 that is no rate limit. `hint` mends a rate limit.

        `limit` bounds the body in bytes (None: that of an API's answer). Only reading requests may be made, since they
        are repeated. Raises Unreachable, RateLimited, TooLarge or Malformed.
        """
        room = MAX_ANSWER if limit is None else limit
        address = _address(url)
        if address.scheme not in ("http", "https") or not address.host:
            raise Malformed(f"{shown(url)}: only https addresses are read. Check the address.")
        host, ends = address.netloc.decode(), time.monotonic() + self._deadline
        for attempt in range(1, self._attempts + 1):
            self._refuse_before_time(host, url, hint)
            last = attempt == self._attempts
            pause = min(self._pause * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)
            try:
                response = self._follow(method, url, headers or {}, content, room, follow, ends)
            except _CutShort as error:
                if last:
                    raise Malformed(f"{shown(url)}: {error}, in {attempt} tries. {TRY_LATER}") from error
            except httpx.TransportError as error:
                if last or time.monotonic() > ends:
                    why = f"{_why(error)}; {attempt} tries"
                    raise Unreachable(f"{shown(url)}: could not be reached ({why}). {CHECK_NETWORK}") from error
            else:
                if response.status < 500 and not is_limit(response):
                    return response
                wait = asked_wait(response)
                if last or (wait is not None and wait > self._patience):
                    raise self._no_answer(response, wait, hint)
                pause = pause if wait is None else max(wait, pause)
            self._sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _follow(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None,
        limit: int,
        follow: bool,
        ends: float,
    ) -> Response:
        """One try, through redirects."""
        seen = [url]
        while True:
            response = self._send(method, seen[-1], headers, content, limit, ends)
            target = response.headers.get("location", "")
            if not follow or response.status not in REDIRECTS or not target:
                return response
            if method != "GET":
                raise Malformed(
                    f"{shown(url)}: a {method} was redirected to {shown(target)}, which is refused. {TRY_LATER}"
                )
            source, goal = _address(seen[-1]), _address(target, seen[-1])
            kept = goal.scheme == "https" or (goal.scheme == source.scheme == "http")
            if not kept or not goal.host:
                raise Malformed(f"{shown(url)}: redirects to {shown(str(goal))}; only https is followed. {TRY_LATER}")
            if str(goal) in seen or len(seen) > MAX_REDIRECTS:
                how = "in a circle" if str(goal) in seen else f"more than {MAX_REDIRECTS} times"
                raise Malformed(f"{shown(url)}: redirects {how}, last to {shown(str(goal))}. {TRY_LATER}")
            if (source.scheme, source.host, source.port) != (goal.scheme, goal.host, goal.port):
                headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            seen.append(str(goal))

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, limit: int, ends: float
    ) -> Response:
        """One request, read to its end."""
        request = self._http.build_request(method, url, headers=dict(headers), content=content)
        with self._turn(request.url.netloc.decode()):
            try:
                response = self._http.send(request, stream=True)
            except (httpx.InvalidURL, httpx.RemoteProtocolError) as error:
                if isinstance(error, httpx.RemoteProtocolError) and "location header" not in str(error):
                    raise
                raise Malformed(f"{shown(url)}: redirects to no address ({error}). {TRY_LATER}") from error
            try:
                room = limit if response.status_code < 400 else MAX_REFUSAL
                wire, body = b"", b""
                if method != "HEAD":
                    wire, body = _read(response, room, ends)
            finally:
                response.close()
        found = {name.lower(): response.headers[name] for name in response.headers}
        return Response(url, response.status_code, found, body, wire)

    def _turn(self, host: str) -> threading.BoundedSemaphore:
        with self._lock:
            return self._turns.setdefault(host, threading.BoundedSemaphore(self._per_host))

    def _refuse_before_time(self, host: str, url: str, hint: str) -> None:
        """A host that asked us to come back later is not asked before that."""
        with self._lock:
            moment = self._come_back.get(host)
        if moment and datetime.now(UTC) < moment:
            raise RateLimited(
                f"{shown(url)}: not asked, since the service's limit is used up. {later(moment, hint)}", moment
            )

    def _no_answer(self, response: Response, wait: float | None, hint: str) -> ServiceError:
        """The error for an answer that stayed a rate limit or a 5xx."""
        if not is_limit(response):
            return Unreachable(
                f"{shown(response.url)}: the service failed (status {response.status}{said(response)}). "
                "It is not known whether the artifact is still there: try again later."
            )
        moment = datetime.now(UTC) + timedelta(seconds=UNSAID_WAIT if wait is None else wait)
        with self._lock:
            self._come_back[_address(response.url).netloc.decode()] = moment
        return RateLimited(
            f"{shown(response.url)}: rate limit (status {response.status}{said(response)}). {later(moment, hint)}",
            moment,
        )


def base_address(variable: str, default: str) -> str:
    """A service's address, which an environment variable replaces (a mirror, a test). Raises UsageError."""
    address = os.environ.get(variable) or default
    if not re.match(r"https?://[^/\s]", address):
        raise UsageError(f"{variable}={address!r} is no address; write it as https://host, or unset it.")
    return address.rstrip("/")


def _address(url: str, base: str = "") -> httpx.URL:
    try:
        return httpx.URL(base).join(url) if base else httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Malformed(f"{shown(base or url)}: {quoted(url)!r} is no address ({error}). Check the address.") from error


class _CutShort(Exception):
    """A body that ended before its end."""


def _read(response: httpx.Response, limit: int, ends: float) -> tuple[bytes, bytes]:
    """The body as sent and as unpacked, both of at most `limit` bytes, read before the time `ends`."""
    where = shown(str(response.url))
    declared = response.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit and response.status_code < 400:
        raise TooLarge(
            f"{where}: {int(declared):,} bytes; at most {limit:,} are read. Raise --max-bytes if it is meant."
        )
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise Malformed(f"{where}: packed as {quoted(coding)!r}, which nobody asked for. {TRY_LATER}")
    unpack = None if coding == "identity" else zlib.decompressobj(wbits=47 if "gzip" in coding else 15)
    wire, body = bytearray(), bytearray()
    try:
        for chunk in response.iter_raw():
            wire += chunk
            if unpack:
                body += unpack.decompress(chunk, limit + 1 - len(body))
            if max(len(wire), len(body)) > limit:
                if response.status_code >= 400:
                    break  # enough to see why
                unpacked = " after unpacking" if len(wire) <= limit else ""
                raise TooLarge(f"{where}: more than {limit:,} bytes{unpacked}. Raise --max-bytes if it is meant.")
            if time.monotonic() > ends:
                raise httpx.ReadTimeout("still sending when its time was over")
    except httpx.RemoteProtocolError as error:
        raise _CutShort(
            f"the body was cut off after {len(wire):,} bytes{f' of {declared}' if declared else ''}"
        ) from error
    except zlib.error as error:
        raise _CutShort(f"the body does not unpack as {coding}") from error
    if unpack and wire and not unpack.eof and response.status_code < 400:
        raise _CutShort(f"the packed body was cut off after {len(wire):,} bytes")
    if unpack and unpack.unused_data:
        raise _CutShort("the packed body goes on after its end")
    sent = bytes(wire)
    return sent, bytes(body) if unpack else sent


def _why(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return quoted(str(error)) if str(error).startswith("still") else "no answer in time"
    text = quoted(str(error)) or type(error).__name__
    return f"its certificate is not trusted: {text}" if "CERTIFICATE_VERIFY_FAILED" in text else text
