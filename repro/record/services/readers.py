"""Which service reads an artifact."""

from __future__ import annotations

from repro.record.artifacts import Artifact
from repro.record.services import github, objects, pages, wandb
from repro.record.services.content import Content
from repro.record.services.http import Client


def read(artifact: Artifact, client: Client, steps: tuple[int, int | None] | None = None) -> Content:
    """What an artifact is now. `steps`: first and end (exclusive) of a W&B run's own segment. Raises a ServiceError."""
    match artifact.kind:
        case "github-file" | "github-tree" | "github-issue":
            return github.read(artifact, client)
        case "wandb-run" | "wandb-report":
            return wandb.read(artifact, client, steps)
        case "hub-file" | "hub-tree":
            from repro.record.services import hub  # its library takes 0.2 s to import

            return hub.read(artifact, client)
        case "object":
            return objects.read(artifact, client)
        case "page":
            return pages.read(artifact, client)
