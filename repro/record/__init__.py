"""The public record: which artifacts it consists of, their checksums, and the typed facts read from them."""
