from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from repro.record.digests import Digest, crc32c, git_blob_sha1, git_tree_sha1, matches, md5, sha256

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


def test_checksums_of_object_stores() -> None:
    # RFC 1321, appendix A.5, and RFC 3720, appendix B.4 (32 bytes of zeros: aa 36 91 8a, least significant byte first)
    assert str(md5(b"message digest")) == "md5:f96b697d7cb7938d525a2f31aaf161d0"
    assert str(crc32c(bytes(32))) == "crc32c:8a9136aa"
    assert matches(b"message digest", Digest("etag-md5", "f96b697d7cb7938d525a2f31aaf161d0"))
    assert not matches(bytes(31), Digest("crc32c", "8a9136aa"))


def test_tree_ids_are_those_git_gives(tmp_path: Path) -> None:
    for name in ("b.txt", "b/inner.txt", "b-c", "run.sh", "é"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("run.sh")
    for arguments in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    tree = subprocess.check_output(["git", "write-tree"], cwd=tmp_path, text=True).strip()
    lines = subprocess.check_output(["git", "ls-tree", "-z", tree], cwd=tmp_path, text=True).split("\0")[:-1]
    entries = [(line.split()[0].lstrip("0"), line.partition("\t")[2], line.split()[2]) for line in lines]
    assert len(entries) == 6
    assert git_tree_sha1(reversed(entries)).value == tree
    assert git_tree_sha1(entries[1:]).value != tree


def test_the_empty_tree_has_the_id_that_git_knows() -> None:
    assert str(git_tree_sha1([])) == "git-sha1:4b825dc642cb6eb9a060e54bf8d69288fbee4904"
