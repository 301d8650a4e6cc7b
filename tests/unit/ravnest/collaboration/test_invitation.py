import base64
import stat
from pathlib import Path

import pytest

from ravnest.collaboration.invitation import BACKBONE, Invitation, endpoint, read_invitation
from ravnest.errors import InvalidInput
from ring_allreduce.transport import KeyPair


def invitation() -> Invitation:
    backbone, guest = KeyPair.make(), KeyPair.make()
    return Invitation(("host.example:7800",), backbone.public, guest.public, guest.secret, "ab" * 16, "cd" * 32)


def test_an_invitation_is_one_line_that_gives_it_back() -> None:
    given = invitation()
    line = given.line()
    assert "\n" not in line
    assert read_invitation(f"  {line}\n") == given
    assert given.keys().public_of(BACKBONE) == given.backbone_public
    assert given.endpoints() == [("host.example", 7800)]


@pytest.mark.parametrize(
    "body",
    ["", "?", base64.urlsafe_b64encode(b"[]").decode(), base64.urlsafe_b64encode(b'{"addresses": ["a:1"]}').decode()],
)
def test_a_damaged_line_is_refused(body: str) -> None:
    with pytest.raises(InvalidInput, match="invitation"):
        read_invitation(f"ravnest-invitation-1:{body}")
    with pytest.raises(InvalidInput, match="invitation"):
        read_invitation(invitation().line()[:-8])


def test_another_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="begins with"):
        read_invitation("hello")


@pytest.mark.parametrize(("text", "found"), [("h:1", ("h", 1)), ("[::1]:65535", ("::1", 65535))])
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert endpoint(text) == found


@pytest.mark.parametrize("text", ["h", ":1", "h:0", "h:65536", "h:x", "::1:5"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidInput):
        endpoint(text)


def test_the_line_is_written_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "lend.txt"
    path.write_text("of an earlier run")
    given = invitation()
    given.write(path, "--line-file")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_invitation(path.read_text()) == given
    with pytest.raises(InvalidInput, match=r"--line-file.*cannot be written"):
        given.write(tmp_path / "nowhere" / "lend.txt", "--line-file")
