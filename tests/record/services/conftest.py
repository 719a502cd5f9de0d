"""A client that does not sleep but notes what it would have slept, and no tokens but those a test sets."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator

import httpx
import pytest

from repro.record.services.errors import TOKEN_VARIABLES
from repro.record.services.http import Client

TIMEOUT = 0.3  # seconds of silence that a client of these tests bears; the slow fault sends a byte every 0.4


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TOKEN_VARIABLES, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="session")
def certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()


@pytest.fixture(autouse=True)
def certificates_read_once(monkeypatch: pytest.MonkeyPatch, certificates: ssl.SSLContext) -> None:
    """Reading the trusted certificates takes most of the making of a client, and no stand-in speaks TLS."""
    monkeypatch.setattr(httpx._transports.default, "create_ssl_context", lambda **options: certificates)


@pytest.fixture
def slept() -> list[float]:
    """Seconds of every pause that the client would have made."""
    return []


@pytest.fixture
def make_client(slept: list[float]) -> Iterator[Callable[..., Client]]:
    made = []

    def make(**options: object) -> Client:
        made.append(Client(**{"timeout": TIMEOUT, "attempts": 3, "sleep": slept.append, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for client in made:
        client.__exit__(None, None, None)


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()
