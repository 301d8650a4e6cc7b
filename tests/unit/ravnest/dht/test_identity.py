from pathlib import Path

import pytest

from ravnest.dht.identity import new_identity, read_identity
from ravnest.errors import InvalidInput


def test_a_written_key_is_read_back_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path, mine = tmp_path / "node.key", new_identity()
    mine.write(path)
    again = read_identity(path)
    assert again.public_key == mine.public_key
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidInput, match=r"node\.key"):
        mine.write(path)


def test_a_signature_counts_for_its_data_and_its_owner_only() -> None:
    mine, other = new_identity(), new_identity()
    signature = mine.sign(b"data")
    assert other.verify(mine.public_key, b"data", signature)
    assert not other.verify(mine.public_key, b"date", signature)
    assert not other.verify(other.public_key, b"data", signature)
    assert not other.verify(b"\xff" * 32, b"data", signature)
    assert not other.verify(b"short", b"data", signature)


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused_with_the_files_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "wrong.key"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"wrong\.key"):
        read_identity(path)
    with pytest.raises(InvalidInput, match="missing"):
        read_identity(tmp_path / "missing")
