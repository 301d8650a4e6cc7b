from pathlib import Path

import pytest

from ravnest.collaboration.signatures import FILE, read_keyring, read_signatures, signed, signers
from ravnest.dht import new_identity
from ravnest.errors import InvalidInput

CODE, OTHER = "ab" * 32, "cd" * 32


def test_code_that_a_key_of_the_ring_has_signed_is_signed_by_it(tmp_path: Path) -> None:
    moderator, stranger = new_identity(), new_identity()
    (tmp_path / FILE).write_text(f"# who has read it\n{signed(moderator, CODE)}\n\n{signed(stranger, CODE)}\n")
    signatures = read_signatures(tmp_path, CODE)
    (tmp_path / "ring").write_text(f"{moderator.public_key.hex()}  # ada\n")
    assert signers(signatures, CODE, read_keyring(tmp_path / "ring")) == [moderator.public_key.hex()]
    assert signers(signatures, OTHER, read_keyring(tmp_path / "ring")) == []


def test_what_is_no_signature_of_its_key_counts_for_nothing() -> None:
    moderator, liar = new_identity(), new_identity()
    forged = moderator.public_key + liar.sign(b"anything")
    ring = [moderator.public_key.hex()]
    assert signers([forged, b"", b"x" * 96, moderator.public_key], CODE, ring) == []


@pytest.mark.parametrize("kind", ["garbage", "short", "other code", "forged"])
def test_a_line_that_a_backbone_could_not_use_is_named(tmp_path: Path, kind: str) -> None:
    line = signed(new_identity(), CODE)
    lines = {
        "garbage": "hello",
        "short": line[:-2],
        "other code": signed(new_identity(), OTHER),
        "forged": line[:-2] + ("00" if line[-2:] != "00" else "11"),
    }
    (tmp_path / FILE).write_text(f"{line}\n{lines[kind]}\n")
    with pytest.raises(InvalidInput, match="line 2"):
        read_signatures(tmp_path, CODE)


def test_no_file_is_no_signature(tmp_path: Path) -> None:
    assert read_signatures(tmp_path, CODE) == []


@pytest.mark.parametrize("text", ["", "# nobody\n", "xyz\n", "ab\n"])
def test_a_ring_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ring").write_text(text)
    with pytest.raises(InvalidInput):
        read_keyring(tmp_path / "ring")
    with pytest.raises(InvalidInput):
        read_keyring(tmp_path / "none")
