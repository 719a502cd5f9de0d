from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from repro.record.artifacts import Artifact, ArtifactKind
from repro.record.services import readers
from repro.record.services.errors import Malformed
from repro.record.services.http import Client

PIN = "a" * 40
ARTIFACT = Artifact(id="x", role="config", kind="page", address="https://a.example/", digest="none")


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        ("github-file", "o/r:../x"),
        ("github-file", "o/r:/etc/passwd"),
        ("github-file", "o/r:a\\..\\x"),
        ("github-file", "../..:x"),
        ("github-tree", "o/r:a/../../x"),
        ("github-issue", "../..#1"),
        ("wandb-run", "../../x"),
        ("wandb-report", "../../x"),
        ("hub-file", "models/o/r/../../../x"),
        ("hub-file", "models/o/r/a\0b"),
        ("hub-tree", "datasets/../.."),
        ("hub-tree", "datasets/o/r:.."),
        ("object", "https://a.example/%2e%2e/x"),
        ("object", "https://a.example/a/%2e%2e/"),
        ("page", "https://a.example/a%00"),
        ("page", "https://a.example/C:/x"),
        ("page", f"https://a.example/{'x' * 300}"),
    ],
)
def test_no_address_leads_out_of_the_record_and_none_of_these_is_asked_for(
    client: Client, monkeypatch: pytest.MonkeyPatch, kind: ArtifactKind, address: str
) -> None:
    def ask(*arguments: object, **options: object) -> None:
        raise AssertionError("asked for")

    monkeypatch.setattr(client, "exchange", ask)
    pin = PIN if kind.startswith("github") or kind == "hub-file" else ""
    with pytest.raises(Malformed, match="no name for a file of a record"):
        readers.read(replace(ARTIFACT, kind=kind, address=address, pin=pin), client)


@pytest.mark.parametrize(("kind", "loaded"), [("page", False), ("hub-tree", True)])
def test_the_hubs_library_is_loaded_only_for_the_hub(kind: str, loaded: bool) -> None:
    address = {"page": "https://127.0.0.1:1/", "hub-tree": "datasets/o/r"}[kind]
    program = (
        "import sys; from repro.record.artifacts import Artifact; from repro.record.services import readers\n"
        "from repro.record.services.http import Client; from repro.record.services.errors import ServiceError\n"
        f"artifact = Artifact(id='x', role='config', kind={kind!r}, address={address!r}, digest='none')\n"
        "try: readers.read(artifact, Client(attempts=1))\n"
        "except ServiceError as error: print(type(error).__name__)\n"
        "print('huggingface_hub' in sys.modules)"
    )
    environment = {"HF_ENDPOINT": "http://127.0.0.1:1", "PATH": "/usr/bin"}
    out = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert out.split() == ["Unreachable", str(loaded)]
