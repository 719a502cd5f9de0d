"""A small record of one's own, to be damaged; and a small public record behind stand-ins of all services."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from repro.record.cache import open_cache
from repro.record.fetch import Result, Wish, fetch
from repro.record.services.errors import TOKEN_VARIABLES
from repro.record.services.http import Client
from tests.record.world import World, running, write_record

SMALL = Path(__file__).with_name("small_record.toml")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "record.toml").write_text(SMALL.read_text())
    (folder / "ladder_grid.csv").write_text("rung,step,loss\nw64,99,3.5\nw64,199,3.25\nw128,199,3.0\n")
    return folder


@pytest.fixture(scope="module")
def stand_ins() -> Iterator[World]:
    with running() as world:
        yield world


@pytest.fixture
def public(stand_ins: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The stand-ins as they were made, with the environment that leads to them and no tokens."""
    for name in (*TOKEN_VARIABLES, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in stand_ins.environment.items():
        monkeypatch.setenv(name, value)
    with stand_ins.put_back():
        yield stand_ins


@pytest.fixture(scope="session")
def made_client() -> Iterator[Callable[..., Client]]:
    """Makes clients that do not sleep. Reading the trusted certificates takes most of the making of one, and no
    stand-in speaks TLS."""
    certificates = httpx.create_ssl_context()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx._transports.default, "create_ssl_context", lambda **options: certificates)
        yield lambda **options: Client(**{"timeout": 0.3, "attempts": 3, "sleep": lambda seconds: None, **options})


@pytest.fixture
def bring(public: World, tmp_path: Path, made_client: Callable[..., Client]) -> Callable[..., Result]:
    """Fetches the small public record into tmp_path/record through tmp_path/cache; takes what Wish and Client do."""

    def run(folder: str = "record", *, offline: bool = False, **options: Any) -> Result:
        place = tmp_path / folder
        if not place.exists():
            write_record(place)
        wish = Wish(**{name: options.pop(name) for name in tuple(options) if name in Wish.__dataclass_fields__})
        with open_cache(tmp_path / "cache") as cache:
            if offline:
                return fetch(place, wish, cache, None)
            with made_client(answers=cache.answers, **options) as client:
                return fetch(place, wish, cache, client)

    return run
