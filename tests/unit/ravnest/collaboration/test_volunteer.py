"""A volunteer's visit is tested over real lines, in tests/integration/test_collaboration.py."""

from pathlib import Path

import pytest

from ravnest.collaboration.code_bundle import code_hash, collected
from ravnest.collaboration.invitation import Invitation
from ravnest.collaboration.volunteer import Volunteer
from ravnest.dht import new_identity
from ravnest.errors import InvalidInput
from ring_allreduce.transport import KeyPair
from tests.unit.ravnest.collaboration.jobs import job_in


def volunteer(home: Path, code: str, asked: list[str], *, answer: bool = True) -> Volunteer:
    backbone, guest = KeyPair.make(), KeyPair.make()
    invitation = Invitation(("127.0.0.1:1",), backbone.public, guest.public, guest.secret, "ab" * 16, code)

    def agree(shown: str, folder: Path, files: list[str], signatures: tuple[bytes, ...]) -> bool:
        asked.append(shown)
        return answer

    return Volunteer(invitation, new_identity(), "ada", home, agree=agree)


def test_code_runs_only_as_invited_and_agreed(tmp_path: Path) -> None:
    files = collected(job_in(tmp_path / "job"))
    asked: list[str] = []
    with pytest.raises(InvalidInput, match="other code"):
        volunteer(tmp_path, "00" * 32, asked).trainer(files, "job.yaml", 1)
    assert asked == []
    with pytest.raises(InvalidInput, match="not agree"):
        volunteer(tmp_path, code_hash(files), asked, answer=False).trainer(files, "job.yaml", 1)
    assert asked == [code_hash(files)]
