"""A real HTTP server on this machine that a service's stand-in derives from, and the faults it can be given.

    with GitHub() as server:
        server.fault("rate limit 429", where="/issues/", times=2)
        ...                                   # ask server.url
        assert server.asked("/issues/")       # what came in, with headers

A fault changes the answers to requests whose path contains `where`, for the first `times` of them (None: all).
"""

from __future__ import annotations

import email.utils
import gzip
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

LOGIN = b"""<!DOCTYPE html><html><head><title>Sign in</title></head><body><h1>Sign in to continue</h1>
<form action="/session" method="post"><input type="text" name="login"><input type="password" name="password"></form>
</body></html>"""
BOMB = gzip.compress(bytes(8 * 2**20))  # 8 kB that unpack to 8 MiB
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 4096\n"


@dataclass(frozen=True)
class Request:
    method: str
    target: str  # path and query, as sent
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.target).query).items()}


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    length: int | None = None  # said in Content-Length; None: the body's
    cut: int | None = None  # bytes sent before the connection is closed; None: all
    wait: float = 0.0  # seconds before every byte of the body

    def having(self, *headers: tuple[str, str]) -> Answer:
        named = {name.lower() for name, _ in headers}
        return replace(self, headers=(*(pair for pair in self.headers if pair[0].lower() not in named), *headers))


def _text(body: bytes) -> Callable[[Request, Answer], Answer]:
    return lambda request, answer: replace(answer, body=body, headers=(("content-type", "text/plain"),))


def _redirect(target: str) -> Callable[[Request, Answer], Answer]:
    return lambda request, answer: Answer(302, (("location", target.replace("{path}", request.target)),))


def _limited(status: int, *headers: tuple[str, str]) -> Callable[[Request, Answer], Answer]:
    body = b'{"message": "You have exceeded a secondary rate limit.", "documentation_url": "https://docs.github.com"}'
    return lambda request, answer: Answer(status, (("content-type", "application/json"), *headers), body)


def _flip(request: Request, answer: Answer) -> Answer:
    middle = len(answer.body) // 2
    flipped = bytes([answer.body[middle] ^ 1]) if answer.body else b""
    return replace(answer, body=answer.body[:middle] + flipped + answer.body[middle + 1 :])


def _bomb(request: Request, answer: Answer) -> Answer:
    return replace(answer, body=BOMB).having(("content-encoding", "gzip"))


FAULTS: Mapping[str, Callable[[Request, Answer], Answer]] = {
    "rate limit 429": _limited(429, ("retry-after", "3600")),
    "rate limit 403": _limited(403, ("retry-after", "3600")),
    "short rate limit": _limited(429, ("retry-after", "1")),
    "status 500": lambda request, answer: Answer(500, (), b"Internal Server Error"),
    "status 503": lambda request, answer: Answer(503, (("retry-after", "1"),), b"Service Unavailable"),
    "status 403": lambda request, answer: Answer(403, (("content-type", "application/json"),), b'{"message": "No"}'),
    "status 404": lambda request, answer: Answer(
        404, (("content-type", "application/json"),), b'{"message": "Not Found"}'
    ),
    "status 451": lambda request, answer: Answer(451, (), b'{"message": "Repository access blocked"}'),
    "no answer": lambda request, answer: replace(answer, cut=-1),
    "slow body": lambda request, answer: replace(answer, wait=0.4),
    "truncated body": lambda request, answer: replace(answer, cut=len(answer.body) // 2),
    "length too long": lambda request, answer: replace(answer, length=len(answer.body) + 10),
    "length too short": lambda request, answer: replace(answer, length=max(1, len(answer.body) - 10)),
    "redirect to file": _redirect("file:///etc/passwd"),
    "redirect to ftp": _redirect("ftp://127.0.0.1/file"),
    "redirect loop": _redirect("{path}"),
    "long redirects": lambda request, answer: Answer(
        302, (("location", f"/hop/{len(request.target)}{request.target}"),)
    ),
    "login page": lambda request, answer: Answer(200, (("content-type", "text/html; charset=utf-8"),), LOGIN),
    "LFS pointer": _text(POINTER),
    "gzip bomb": _bomb,
    "flipped byte": _flip,
    "invalid UTF-8": lambda request, answer: replace(answer, body=b"\xff\xff" + answer.body),
    "CRLF": lambda request, answer: replace(answer, body=re.sub(rb"(?<!\r)\n", b"\r\n", answer.body)),
    "empty body": lambda request, answer: replace(answer, body=b""),
}


@dataclass
class Fault:
    change: Callable[[Request, Answer], Answer]
    where: str
    times: int | None


@dataclass
class Server:
    """A stand-in; derive from it and write `answer`."""

    skew: float = 0.0  # seconds by which the server's clock goes ahead of ours
    delay: float = 0.0  # seconds before every answer
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        """What the service says."""
        raise NotImplementedError

    def fault(self, name: str, where: str = "", times: int | None = None) -> None:
        """Give it a fault of FAULTS; "redirect to <address>" for any other address."""
        change = FAULTS[name] if name in FAULTS else _redirect(name.removeprefix("redirect to "))
        self.faults.append(Fault(change, where, times))

    def change(self, change: Callable[[Request, Answer], Answer], where: str = "") -> None:
        """Give it a fault that is not in FAULTS."""
        self.faults.append(Fault(change, where, None))

    def asked(self, where: str = "") -> list[Request]:
        """Requests whose path and query contain `where`."""
        return [request for request in self.requests if where in request.target]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Server:
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, request: Request) -> Answer:
        """Note the request and answer it, faults included."""
        with self._lock:
            self.requests.append(request)
        if self.delay:
            time.sleep(self.delay)
        answer = self.answer(request)
        for fault in self.faults:
            with self._lock:
                active = fault.where in request.target and fault.times != 0
                if active and fault.times is not None:
                    fault.times -= 1
            if active:
                answer = fault.change(request, answer)
        return answer


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5
        disable_nagle_algorithm = True  # headers and body are two writes; the second would wait 40 ms for an ACK

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = server.take(Request(self.command, self.path, headers, body))
            if answer.cut == -1:
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            self.send_header("date", email.utils.formatdate(time.time() + server.skew, usegmt=True))
            for name, value in answer.headers:
                self.send_header(name, value)
            if answer.status != 304:
                self.send_header("content-length", str(len(answer.body) if answer.length is None else answer.length))
            self.end_headers()
            if self.command == "HEAD" or answer.status == 304:
                return
            sent = answer.body[: answer.cut]
            if answer.wait:
                for byte in sent:
                    time.sleep(answer.wait)
                    self.wfile.write(bytes([byte]))
            else:
                self.wfile.write(sent)
            if len(sent) != (len(answer.body) if answer.length is None else answer.length):
                self.close_connection = True

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True  # the client had enough

        do_GET = do_POST = do_HEAD = answer

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    return Handler
