"""For all tests: eight CPU devices, and no network but this machine's own addresses."""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

import pytest

# Read by XLA when its first device is made, by whichever test touches JAX first: so it stands here, for all of them.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

# Tracing makes objects by the million that stay; looking through them again and again took a tenth of the tests' time.
gc.set_threshold(200_000, 50, 1000)

LOOPBACK = ("127.", "::1", "localhost")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections to other machines: a test that needs one is a test of the network."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not str(address[0]).startswith(LOOPBACK):
            raise RuntimeError(f"a test wanted to reach {address[0]}; tests use this machine only")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
