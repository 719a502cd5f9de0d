"""The services a record's artifacts lie at: one file a service, each with `read(artifact, client) -> Content`."""
