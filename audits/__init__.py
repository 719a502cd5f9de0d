"""The auditor: published claims, relations between them, and findings, all on intervals."""
