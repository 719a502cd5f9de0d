from __future__ import annotations

import pytest

from repro.record.digests import Digest, git_blob_sha1, matches, sha256

# `git hash-object` of an empty file, and of "hello\n"; SHA-256 of the empty string from FIPS 180-4's examples
EMPTY_BLOB = "git-sha1:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
HELLO_BLOB = "git-sha1:ce013625030ba8dba906f756967f9e9ca394464a"
EMPTY_SHA256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_git_blob_ids_are_those_git_gives() -> None:
    assert str(git_blob_sha1(b"")) == EMPTY_BLOB
    assert str(git_blob_sha1(b"hello\n")) == HELLO_BLOB


def test_sha256_of_nothing() -> None:
    assert str(sha256(b"")) == EMPTY_SHA256
    assert matches(b"", Digest.parse(EMPTY_SHA256))
    assert not matches(b"x", Digest.parse(EMPTY_SHA256))


def test_forty_digits_are_never_a_sha256() -> None:
    with pytest.raises(ValueError, match=r"40 characters\) is not a sha256: its form is that of git-sha1"):
        Digest.parse("sha256:" + "a" * 40)


def test_a_digest_of_another_kind_is_unequal_even_with_equal_digits() -> None:
    assert Digest("sha256", "a" * 64) != Digest("canonical", "a" * 64)


def test_a_link_in_place_of_a_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="no digest of any known kind"):
        Digest.parse("sha256:https://example.org/issues/80")


def test_a_misspelt_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'sha256'"):
        Digest.parse("sha265")


@pytest.mark.parametrize("text", ["none", "canonical", "git-sha1"])
def test_a_kind_without_value_is_known_but_not_comparable(text: str) -> None:
    assert str(Digest.parse(text)) == text
    with pytest.raises(ValueError, match="cannot compare"):
        matches(b"", Digest.parse(text))
