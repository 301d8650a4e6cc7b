"""A volunteer's visit is tested over real lines, in tests/integration/test_collaboration.py; here, what it asks."""

from pathlib import Path

import pytest

from ravnest.collaboration import volunteer as module
from ravnest.collaboration.code_bundle import code_hash, collected
from ravnest.collaboration.invitation import Invitation
from ravnest.collaboration.sign_in import TrainingOver
from ravnest.collaboration.volunteer import Volunteer
from ravnest.dht import new_identity
from ravnest.errors import InvalidInput, RunFailed
from ring_allreduce import DeadlinePassed
from ring_allreduce.transport import KeyPair
from tests.unit.ravnest.collaboration.jobs import job_in


def invited(code: str, *addresses: str) -> Invitation:
    backbone, guest = KeyPair.make(), KeyPair.make()
    return Invitation(addresses, backbone.public, guest.public, guest.secret, "ab" * 16, code)


def volunteer(home: Path, code: str, asked: list[str], *, answer: bool = True) -> Volunteer:
    def agree(shown: str, folder: Path, files: list[str], signatures: tuple[bytes, ...]) -> bool:
        asked.append(shown)
        return answer

    return Volunteer(invited(code, "127.0.0.1:1"), new_identity(), "ada", home, agree=agree)


def test_code_runs_only_as_invited_and_agreed(tmp_path: Path) -> None:
    files = collected(job_in(tmp_path / "job"))
    asked: list[str] = []
    with pytest.raises(InvalidInput, match="other code"):
        volunteer(tmp_path, "00" * 32, asked).trainer(files, "job.yaml", 1)
    assert asked == []
    with pytest.raises(InvalidInput, match="not agree"):
        volunteer(tmp_path, code_hash(files), asked, answer=False).trainer(files, "job.yaml", 1)
    assert asked == [code_hash(files)]


def test_the_address_that_served_last_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, served, dialled, told = [0.0], iter([2, 1, None]), list[int](), list[str]()
    serves = [next(served)]

    class OneLine:
        def __init__(self, *_: object) -> None: ...

        def dial(self, host: str, port: int, *_: object) -> int:
            dialled.append(port)
            now_s[0] += 1.0
            if port != serves[0]:
                raise RunFailed("nobody serves there")
            return 0

        def close(self) -> None: ...

    class Served:
        """Its line breaks after a while; then another one serves."""

        def __init__(self, *_: object) -> None: ...

        def run(self, stop: object) -> bool:
            ada.given.visits += 1
            now_s[0] += 60.0
            serves[0] = next(served)
            return False

    monkeypatch.setattr(module, "Lines", OneLine)
    monkeypatch.setattr(module, "Visit", Served)
    ada = Volunteer(
        invited("00" * 32, "a:1", "a:2", "a:3"),
        new_identity(),
        "ada",
        tmp_path,
        agree=lambda *_: True,
        tell=told.append,
        patience_s=1.0,
        now=lambda: now_s[0],
        sleep=lambda _: None,
    )
    with pytest.raises(RunFailed, match="no backbone was reached"):
        ada.work()
    assert dialled == [1, 2, 2, 1, 1, 2, 3]
    assert told[0] == "a:1: nobody serves there; trying again, for 0 s at most"
    assert told[1] == "a:2: its line ended; trying again, for 1 s at most"


@pytest.mark.parametrize("turns", [0, 3])
def test_who_is_stopped_before_it_has_joined_anybody_has_failed(
    turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its time is over or somebody has stopped it: there is nothing to thank it for."""

    class Deaf:
        def __init__(self, *_: object) -> None: ...

        def dial(self, *_: object) -> int:
            raise DeadlinePassed("an encrypted handshake", 15.0)

        def close(self) -> None: ...

    monkeypatch.setattr(module, "Lines", Deaf)
    ada = Volunteer(
        invited("00" * 32, "a:1"),
        new_identity(),
        "ada",
        tmp_path,
        agree=lambda *_: True,
        now=lambda: 0.0,
        sleep=lambda _: None,
    )
    left = iter(range(turns))
    why = "nobody has answered there for 15 s" if turns else "nobody was asked"
    with pytest.raises(RunFailed, match=f"stopped before it had joined: {why}"):
        ada.work(lambda: next(left, None) is None)


def test_who_hears_that_training_has_ended_looks_for_no_backbone_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[str]()

    class NoLines:
        def __init__(self, *_: object) -> None: ...

        def dial(self, *_: object) -> int:
            return 1

        def close(self) -> None: ...

    class Over:
        def __init__(self, *_: object) -> None: ...

        def run(self, stop: object) -> bool:
            raise TrainingOver("training has ended before this volunteer had the state")

    monkeypatch.setattr(module, "Lines", NoLines)
    monkeypatch.setattr(module, "Visit", Over)
    ada = Volunteer(invited("00" * 32, "a:1"), new_identity(), "ada", tmp_path, agree=lambda *_: True, tell=told.append)
    assert ada.work().weights == ""
    assert told == ["training has ended before this volunteer had the state"]
