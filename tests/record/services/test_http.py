from __future__ import annotations

import base64
import email.utils
import gzip
import json
import logging
import re
import shutil
import ssl
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from repro.errors import UsageError
from repro.record.services import http
from repro.record.services.content import safe_name
from repro.record.services.errors import (
    Forbidden,
    Gone,
    Malformed,
    RateLimited,
    ServiceError,
    TooLarge,
    Unreachable,
    clock_time,
    shown,
    without_secrets,
)
from repro.record.services.http import Client
from tests.servers.base import Answer, Request, Server

TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"


@dataclass
class Plain(Server):
    """Answers everything with `reply`, or what `reply` makes of the request."""

    reply: Answer | Callable[[Request], Answer] = field(default_factory=lambda: Answer(body=b"hello\n"))

    def answer(self, request: Request) -> Answer:
        return self.reply if isinstance(self.reply, Answer) else self.reply(request)


@pytest.fixture
def server() -> Iterator[Plain]:
    with Plain() as server:
        yield server


@pytest.fixture
def other() -> Iterator[Plain]:
    with Plain() as server:
        yield server


def test_a_token_stays_with_its_host(server: Plain, other: Plain, client: Client) -> None:
    def reply(request: Request) -> Answer:
        target = {"/start": "/inside", "/inside": f"{other.url}/outside"}[request.path]
        return Answer(302, (("location", target),))

    server.reply = reply
    other.reply = lambda request: (
        Answer(302, (("location", f"{other.url}/end"),)) if request.path == "/outside" else Answer()
    )
    client.get(f"{server.url}/start", headers={"Authorization": f"Bearer {TOKEN}"})
    assert [request.headers.get("authorization") for request in server.requests] == [f"Bearer {TOKEN}"] * 2
    assert [request.path for request in other.requests] == ["/outside", "/end"]
    assert not any(TOKEN in f"{request.headers}{request.target}" for request in other.requests)


def test_a_token_that_went_out_does_not_come_back(server: Plain, other: Plain, client: Client) -> None:
    server.reply = lambda request: (
        Answer(302, (("location", f"{other.url}/x"),)) if request.path == "/start" else Answer()
    )
    other.reply = Answer(302, (("location", f"{server.url}/again"),))
    client.get(f"{server.url}/start", headers={"authorization": f"Bearer {TOKEN}"})
    assert "authorization" not in server.asked("/again")[0].headers


def test_another_port_is_another_host(server: Plain, other: Plain, client: Client) -> None:
    server.reply = Answer(307, (("location", f"{other.url}/x"),))
    client.get(server.url, headers={"authorization": f"Bearer {TOKEN}"})
    assert "authorization" not in other.requests[0].headers


def test_cookies_are_not_kept(server: Plain, client: Client) -> None:
    server.reply = Answer(200, (("set-cookie", "session=1; Path=/"),))
    client.get(server.url)
    client.get(server.url)
    assert "cookie" not in server.requests[1].headers


@pytest.mark.parametrize("status", [200, 401, 403, 404, 418, 429, 500])
def test_no_message_holds_a_token_even_where_the_service_repeats_it(
    server: Plain, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "an unusual token, of a proxy")
    caplog.set_level(logging.DEBUG)
    words = (
        f"Bad credentials an unusual token, of a proxy and {TOKEN} and hf_abcdefghijklmnopqrst and Bearer zyxwvutsrq"
    )
    server.reply = Answer(status, (("retry-after", "9999"),), json.dumps({"message": words})[:-1].encode())
    with pytest.raises(ServiceError) as caught:
        client.get(f"{server.url}/x?token={TOKEN}", headers={"authorization": f"Bearer {TOKEN}"}).json()
    shown_to_user = f"{caught.value} {caught.value!r} {caplog.text}"
    if status != 200:
        assert "Bad credentials" in shown_to_user
    for secret in ("unusual", "hf_abc", "zyxwv"):
        assert secret not in shown_to_user
    assert TOKEN not in f"{caught.value} {caught.value!r}"


def test_addresses_are_shown_without_what_may_be_a_key() -> None:
    signed = "https://user:password@bucket.example/key?X-Amz-Signature=abc#part"
    assert shown(signed) == "https://bucket.example/key"
    assert shown("//a@b@host/x?y") == "//host/x"
    assert without_secrets("github_pat_11ABCDEFGHIJKLMNOPQRST_x") == "•••"


def test_words_of_a_service_are_one_short_printable_line(server: Plain, client: Client) -> None:
    server.reply = Answer(404, (("x-error-message", "gone\x1b[2J " + "x" * 1000),))
    with pytest.raises(Gone) as caught:
        client.get(server.url)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Forbidden), (403, Forbidden), (404, Gone), (410, Gone), (451, Gone), (400, Malformed), (304, Malformed)],
)
def test_refusals_keep_their_status(server: Plain, client: Client, status: int, kind: type[ServiceError]) -> None:
    server.reply = Answer(status)
    with pytest.raises(kind, match=f"status {status}") as caught:
        client.get(server.url)
    if kind is not Malformed:
        assert caught.value.status == status  # type: ignore[attr-defined]
    assert len(server.requests) == 1


@pytest.mark.parametrize("skew", [0, -7200, 7200])
def test_a_date_to_come_back_is_read_by_the_services_own_clock(server: Plain, client: Client, skew: int) -> None:
    server.skew = skew
    server.reply = Answer(503, (("retry-after", email.utils.formatdate(time.time() + skew + 900, usegmt=True)),))
    with pytest.raises(Unreachable):
        client.get(server.url)
    server.reply = Answer(429, (("retry-after", email.utils.formatdate(time.time() + skew + 900, usegmt=True)),))
    with pytest.raises(RateLimited) as caught:
        client.get(server.url)
    assert caught.value.retry_at is not None
    assert abs(caught.value.retry_at - datetime.now(UTC) - timedelta(seconds=900)) < timedelta(seconds=5)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ((("ratelimit", '"api";r=0;t=55'), ("ratelimit-policy", '"fixed window";"api";q=500;w=300')), 55),
        ((("ratelimit-remaining", "0"), ("ratelimit-reset", "77")), 77),
        ((("retry-after", "soon"),), 60),
        ((), 60),
    ],
)
def test_every_service_says_its_own_way_how_long(
    server: Plain, client: Client, headers: tuple[tuple[str, str], ...], seconds: int
) -> None:
    server.reply = Answer(429, headers)
    with pytest.raises(RateLimited) as caught:
        client.get(server.url)
    assert caught.value.retry_at is not None
    assert abs((caught.value.retry_at - datetime.now(UTC)).total_seconds() - seconds) < 5


def test_short_waits_are_waited_and_long_ones_told_at_once(
    server: Plain, make_client: Callable[..., Client], slept: list[float]
) -> None:
    server.reply = Answer(429, (("retry-after", "15"),))
    with pytest.raises(RateLimited):
        make_client(patience=20).get(server.url)
    assert [round(pause) for pause in slept] == [15, 15]
    slept.clear()
    with pytest.raises(RateLimited):
        make_client(patience=10).get(server.url)
    assert slept == []


def test_pauses_grow_and_differ(server: Plain, make_client: Callable[..., Client], slept: list[float]) -> None:
    server.reply = Answer(500)
    for _ in range(20):
        with pytest.raises(Unreachable):
            make_client(attempts=4, pause=1.0).get(server.url)
    for index, base in enumerate((1, 2, 4)):
        pauses = slept[index::3]
        assert all(0.5 * base <= pause <= 1.5 * base for pause in pauses)
        assert len(set(pauses)) == 20


def test_a_body_that_trickles_is_given_up(server: Plain, make_client: Callable[..., Client]) -> None:
    server.reply = Answer(body=b"x" * 100, wait=0.02)
    start = time.monotonic()
    with pytest.raises(Unreachable, match="still sending when its time was over"):
        make_client(deadline=0.2).get(server.url)
    assert time.monotonic() - start < 1.5


def test_sizes_are_bounded_before_and_while_reading(server: Plain, client: Client) -> None:
    server.reply = Answer(body=bytes(1000))
    assert len(client.get(server.url, limit=1000).body) == 1000
    with pytest.raises(TooLarge, match="1,000 bytes; at most 999"):
        client.get(server.url, limit=999)
    server.reply = Answer(200, (("content-encoding", "gzip"),), gzip.compress(bytes(1001)))
    with pytest.raises(TooLarge, match="more than 1,000 bytes after unpacking"):
        client.get(server.url, limit=1000)
    assert len(client.get(server.url, limit=1001).body) == 1001


def test_a_long_refusal_is_read_only_to_see_why(server: Plain, client: Client) -> None:
    server.reply = Answer(403, (), b"<Error><Code>AccessDenied</Code>" + bytes(5 * 2**20))
    with pytest.raises(Forbidden, match="status 403, AccessDenied"):
        client.get(server.url)


@pytest.mark.parametrize(
    ("coding", "body", "words"),
    [
        ("br", b"x", "packed as 'br', which nobody asked for"),
        ("gzip", b"not gzip", "does not unpack as gzip"),
        ("gzip", gzip.compress(b"a" * 100, mtime=0)[:-9], "packed body was cut off"),
        ("gzip", gzip.compress(b"a", mtime=0) + gzip.compress(b"b", mtime=0), "goes on after its end"),
    ],
)
def test_packings_that_do_not_unpack(server: Plain, client: Client, coding: str, body: bytes, words: str) -> None:
    server.reply = Answer(200, (("content-encoding", coding),), body)
    with pytest.raises(Malformed, match=words):
        client.get(server.url)


def test_bodies_are_asked_for_unpacked_unless_said_otherwise(server: Plain, client: Client) -> None:
    client.get(server.url)
    client.get(server.url, headers={"accept-encoding": "gzip"})
    assert [request.headers["accept-encoding"] for request in server.requests] == ["identity", "gzip"]
    assert server.requests[0].headers["user-agent"].startswith("marin-repro/")


def test_packed_bodies_are_kept_as_sent_too(server: Plain, client: Client) -> None:
    for coding, packed in (("gzip", gzip.compress(b"text")), ("deflate", zlib.compress(b"text"))):
        server.reply = Answer(200, (("content-encoding", coding),), packed)
        response = client.get(server.url)
        assert (response.body, response.wire) == (b"text", packed)


@pytest.mark.parametrize("location", ["", "//", "https:", "javascript:alert(1)", "data:text/plain,x"])
def test_odd_redirects_are_refused(server: Plain, client: Client, location: str) -> None:
    server.reply = Answer(302, (("location", location),))
    with pytest.raises(Malformed):
        client.get(server.url)


def test_https_is_not_left_for_http(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = http.Response("https://a.example/x", 302, {"location": "http://a.example/x"}, b"", b"")
    monkeypatch.setattr(client, "_send", lambda *arguments: answer)
    with pytest.raises(Malformed, match=r"redirects to http://a\.example/x; only https"):
        client.get("https://a.example/x")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a.example/x", "https://", "https:x", "no address"])
def test_only_http_addresses_are_read(client: Client, url: str) -> None:
    with pytest.raises(Malformed, match="Check the address"):
        client.get(url)


def test_a_service_that_is_not_there_is_unreachable(client: Client, slept: list[float]) -> None:
    with Plain() as gone:
        address = gone.url
    with pytest.raises(Unreachable, match=r"3 tries.*SSL_CERT_FILE"):
        client.get(address)
    assert len(slept) == 2


def test_requests_go_through_the_proxy_of_the_environment(
    server: Plain, make_client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.url.replace("http://", "http://user:secret@"))
    monkeypatch.setenv("NO_PROXY", "")
    assert make_client().get("http://service.invalid/file").body == b"hello\n"
    assert server.requests[0].target == "http://service.invalid/file"
    assert base64.b64decode(server.requests[0].headers["proxy-authorization"].split()[1]) == b"user:secret"
    server.faults.clear()
    server.fault("no answer")
    with pytest.raises(Unreachable) as caught:
        make_client().get("http://service.invalid/file")
    assert "secret" not in str(caught.value)


def test_certificates_and_proxies_that_cannot_be_used_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(httpx._transports.default, "create_ssl_context", httpx.create_ssl_context)
    monkeypatch.setenv("SSL_CERT_FILE", f"{tmp_path}/none.pem")
    with pytest.raises(UsageError, match="SSL_CERT_FILE"):
        Client()
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("HTTPS_PROXY", "quic://proxy.example:1")
    with pytest.raises(UsageError, match="proxy"):
        Client()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:port", "http://user:s3cret/word@127.0.0.1:80"])
def test_a_proxy_that_is_no_address_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(UsageError, match="HTTPS_PROXY, holds no address") as caught:
        Client()
    assert "s3cret" not in str(caught.value)


def test_certificates_of_one_s_own_are_trusted_where_ssl_cert_file_names_them(
    server: Plain, make_client: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(httpx._transports.default, "create_ssl_context", httpx.create_ssl_context)
    names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1")
    files = ("-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, *files], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    address = server.url.replace("http:", "https:")
    with pytest.raises(Unreachable, match=r"its certificate is not trusted.*SSL_CERT_FILE"):
        make_client(timeout=5.0, attempts=1).get(address)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    assert make_client(timeout=5.0).get(address).body == b"hello\n"


def test_an_address_of_the_environment_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_REPRO_GITHUB_API", "ghe.example/api/")
    with pytest.raises(UsageError, match=r"MARIN_REPRO_GITHUB_API='ghe\.example/api/' is no address"):
        http.base_address("MARIN_REPRO_GITHUB_API", "https://api.github.com")
    monkeypatch.setenv("MARIN_REPRO_GITHUB_API", "https://ghe.example/api/")
    assert http.base_address("MARIN_REPRO_GITHUB_API", "https://api.github.com") == "https://ghe.example/api"


def test_few_requests_run_at_one_host_at_once(server: Plain, make_client: Callable[..., Client]) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def reply(request: Request) -> Answer:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return Answer()

    server.reply = reply
    client = make_client(per_host=3, timeout=5.0)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: client.get(server.url), range(24)))
    assert most == 3


def test_what_is_asked_for_once_is_made_once_and_errors_are_not_kept(client: Client) -> None:
    made = []

    def make() -> int:
        made.append(1)
        time.sleep(0.02)
        if len(made) == 1:
            raise Gone("first", 404)
        return len(made)

    with pytest.raises(Gone):
        client.once("key", make)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: client.once("key", make), range(8))) == {2}
    assert len(made) == 2


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        "",
        "a\0b",
        "C:/x",
        "c:x",
        "a\\..\\b",
        "a/.",
        "x\n",
        "é" * 128,
        "a\x7f",
    ],
)
def test_names_that_lead_out_or_cannot_be_written_are_refused(name: str) -> None:
    with pytest.raises(Malformed, match="no name for a file of a record"):
        safe_name("github", name)


def test_names_that_may_stay() -> None:
    assert safe_name("github", "a/b", "ü..x", "..y", "é" * 127) == f"github/a/b/ü..x/..y/{'é' * 127}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xff{}", "not UTF-8 at byte 0"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b"\n<!-- x --><!DOCTYPE html>", "an HTML page came instead of JSON"),
        (b"<html lang=en>", "an HTML page came instead of JSON"),
    ],
)
def test_answers_that_are_not_json(server: Plain, client: Client, body: bytes, words: str) -> None:
    server.reply = Answer(body=body)
    with pytest.raises(Malformed, match=words):
        client.get(server.url).json()


def test_a_time_of_today_is_said_without_its_date() -> None:
    now = datetime.now(UTC).replace(hour=14, minute=5)
    assert clock_time(now) == "14:05 UTC"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d 14:05 UTC", clock_time(now + timedelta(days=1)))


def test_a_connection_that_was_closed_between_requests_is_opened_again(server: Plain, client: Client) -> None:
    server.reply = Answer(body=b"abcdefghij", length=3)
    assert client.get(server.url).body == b"abc"
    server.reply = Answer(body=b"whole")
    assert client.get(server.url).body == b"whole"


def test_the_answer_is_not_changed_by_the_fault_of_another_path(server: Plain, client: Client) -> None:
    server.fault("status 500", where="/bad")
    assert client.get(f"{server.url}/good").status == 200
