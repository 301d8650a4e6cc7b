import json
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import TimeoutExpired
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from ravnest.checkpoints.run_lock import RunLock
from ravnest.cli.collaborate import is_signed
from ravnest.cli.main import app
from ravnest.collaboration import lent_machines, volunteer
from ravnest.collaboration.code_bundle import code_hash, collected
from ravnest.collaboration.invitation import Invitation
from ravnest.collaboration.people import FILE, People
from ravnest.collaboration.sign_in import Given
from ravnest.collaboration.signatures import read_signatures
from ravnest.collaboration.volunteer import MakeTrainer
from ravnest.errors import InvalidInput
from ring_allreduce.transport import KeyPair
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin


def test_the_leaderboard_is_shown(tmp_path: Path) -> None:
    people = People()
    people.came("ab" * 32, "ada").samples = 1234
    (tmp_path / FILE).write_text(people.text())
    shown = CliRunner().invoke(app, ["collaborate", "people", str(tmp_path)])
    assert shown.exit_code == 0
    assert "ada" in shown.stdout
    assert "1,234" in shown.stdout
    as_json = CliRunner().invoke(app, ["collaborate", "people", str(tmp_path), "--json"])
    assert json.loads(as_json.stdout)[0]["samples"] == 1234


def test_what_is_no_invitation_is_told_without_the_words_of_the_operating_system(tmp_path: Path) -> None:
    nothing = CliRunner().invoke(app, ["collaborate", "join", str(tmp_path / "nothing")]).exception
    assert isinstance(nothing, InvalidInput)
    assert "Errno" not in str(nothing)
    said = "INVITATION: expected an invitation, or a file that holds one: No such file or directory"
    assert str(nothing) == f"{tmp_path / 'nothing'}: {said}"
    assert "invitation.txt" in str(nothing.hint)


def test_a_file_that_holds_no_invitation_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mode: collaborative\n")
    wrong = CliRunner().invoke(app, ["collaborate", "join", str(tmp_path / "job.yaml")]).exception
    assert isinstance(wrong, InvalidInput)
    assert (wrong.path, wrong.key) == (str(tmp_path / "job.yaml"), "INVITATION")
    assert "begin with ravnest-invitation" in str(wrong)


def test_who_cannot_be_asked_is_told_of_the_option(invited: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Asks:
        def __init__(self, *_: object, agree: Callable[..., bool], **__: object) -> None:
            self.agree = agree

        def work(self, stop: Callable[[], bool]) -> None:
            self.agree("cd" * 32, Path("code"), ["job.yaml"], ())

    monkeypatch.setattr(volunteer, "Volunteer", Asks)
    error = CliRunner().invoke(app, invited[:3], input="").exception
    assert isinstance(error, InvalidInput)
    assert error.key == "--yes"
    assert not Path("code.agreed").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["people", "nowhere"],
        ["people", "."],
        ["join", "no-such-file"],
        ["join", "ravnest-invitation-1:damaged"],
        ["start", "no-such-job.yaml", "--listen", "127.0.0.1:0"],
        ["start", "job.yaml"],
        ["lend", "no-such-file"],
    ],
)
def test_wrong_input_is_the_users_to_mend(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = CliRunner().invoke(app, ["collaborate", *arguments])
    assert isinstance(found.exception, InvalidInput)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [(["--other", "two.example.net:7800"], "--address"), (["--address", "one:7800", "--other", "nowhere"], "address")],
)
def test_backbone_machines_that_cannot_find_each_other_are_refused(
    arguments: list[str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["collaborate", "start", "job.yaml", "--listen", "127.0.0.1:0", *arguments])
    assert isinstance(found.exception, InvalidInput)
    assert key in str(found.exception)


def test_a_moderator_signs_a_job_and_only_signed_code_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job_in(tmp_path / "job")
    arguments = ["collaborate", "sign", str(path), "--key-file", str(tmp_path / "keys" / "moderator.key")]
    found = [CliRunner().invoke(app, arguments) for _ in range(2)]
    assert [one.exit_code for one in found] == [0, 0]
    code = code_hash(collected(path))
    lines = [one.stdout for one in found]
    assert lines[0] == lines[1]  # the key is made once
    (tmp_path / "signatures.txt").write_text(lines[0])
    signatures = tuple(read_signatures(tmp_path, code))
    ring = [signatures[0][:32].hex()]
    assert is_signed(code, signatures, ring)
    assert not is_signed(code, signatures, ["ab" * 32])
    assert "signed by none of your 1 moderators" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "key"),
    [(["--name", "x" * 65], "--name"), (["--name", "a#b"], "--name"), (["--device", "abacus"], "--device")],
)
def test_what_no_backbone_can_mend_is_told_before_one_is_dialled(
    arguments: list[str], key: str, invited: list[str]
) -> None:
    error = CliRunner().invoke(app, [*invited, *arguments]).exception
    assert isinstance(error, InvalidInput)
    assert error.key == key


def test_a_line_may_be_copied_with_quotes_and_a_user_need_not_have_a_name(
    invited: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    class Joins:
        def __init__(self, given: Invitation, identity: object, name: str, *_: object, **__: object) -> None:
            names.append(name)

        def work(self, stop: Callable[[], bool]) -> Given:
            return Given(visits=1)

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr(volunteer, "Volunteer", Joins)
    found = CliRunner().invoke(app, ["collaborate", "join", f' "{invited[2]}"\n'])
    assert found.exit_code == 0, found.output
    (tmp_path / "line.txt").write_text(f"'{invited[2]}'\r\n")
    assert CliRunner().invoke(app, ["collaborate", "join", str(tmp_path / "line.txt")]).exit_code == 0
    assert names == ["a volunteer"] * 2


def test_one_machine_at_a_time_keeps_its_state_in_a_folder(tmp_path: Path) -> None:
    job = job_in(tmp_path / "job")
    out = tmp_path / "out"
    out.mkdir()
    lock = RunLock(out)
    start = ["collaborate", "start", str(job), "--listen", "127.0.0.1:0", "--out", str(out)]
    for arguments in (start, [*start, "--resume"]):
        error = CliRunner().invoke(app, arguments).exception
        assert isinstance(error, InvalidInput)
        assert "is in use by process" in str(error)
    assert list(out.iterdir()) == [out / ".lock"]
    lock.release()


def test_ctrl_c_answers_the_question_whether_code_may_run(invited: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Asks:
        def __init__(self, *_: object, agree: Callable[..., bool], **__: object) -> None:
            self.agree = agree

        def work(self, stop: Callable[[], bool]) -> None:
            self.agree("cd" * 32, Path("code"), ["job.yaml"], ())

    def asked(_: str) -> bool:
        signal.raise_signal(signal.SIGINT)
        return True

    monkeypatch.setattr("typer.confirm", asked)
    monkeypatch.setattr(volunteer, "Volunteer", Asks)
    found = CliRunner().invoke(app, invited[:3])
    assert found.exit_code == 130
    assert not Path("code.agreed").exists()


def test_a_keyring_without_keys_and_a_job_that_is_none_are_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "ring").write_text("")
    for arguments in (["join", "ravnest-invitation-1:x", "--moderators", str(tmp_path / "ring")], ["sign", "no.yaml"]):
        assert isinstance(CliRunner().invoke(app, ["collaborate", *arguments]).exception, InvalidInput)


def test_what_a_backbone_says_does_nothing_to_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Turned:
        def __init__(self, *_: object, tell: Callable[[str], None], **__: object) -> None:
            tell("192.0.2.1:7800: \x1b]0;title\x07; trying again")

        def work(self, stop: object) -> SimpleNamespace:
            return Given(visits=1)

    monkeypatch.setattr("ravnest.collaboration.volunteer.Volunteer", Turned)
    monkeypatch.setattr("ravnest.collaboration.invitation.read_invitation", lambda line: line)
    words = ["collaborate", "join", "ravnest-invitation", "--key-file", str(tmp_path / "key"), "--yes"]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[0] == "192.0.2.1:7800: ?]0;title?; trying again"


@pytest.mark.parametrize("rate", ["0", "nan", "inf", "1e10"])
def test_a_link_that_is_none_is_refused_before_others_are_told_of_it(rate: str, tmp_path: Path) -> None:
    words = ["collaborate", "start", str(tmp_path / "job.yaml"), "--listen", "127.0.0.1:0", "--link-mbit", rate]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, InvalidInput)
    assert error.key == "--link-mbit"


@pytest.fixture
def invited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of a volunteer whose model several machines hold; nothing is dialled, and no process is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(lent_machines, "Lines", lambda *_, **__: LinesTwin())
    backbone, guest = KeyPair.make(), KeyPair.make()
    given = Invitation(("127.0.0.1:1",), backbone.public, guest.public, guest.secret, "ab" * 16, "cd" * 32)
    return ["collaborate", "join", given.line(), "--stages", "2"]


@pytest.mark.parametrize("listen", ["0.0.0.0:7801", "[::]:7801"])
def test_other_machines_need_an_address_that_they_find(listen: str, invited: list[str]) -> None:
    error = CliRunner().invoke(app, [*invited, "--listen", listen]).exception
    assert isinstance(error, InvalidInput)
    assert error.key == "--listen"
    assert not Path("lend.txt").exists()


def test_this_machines_own_stage_is_held_by_a_process_that_ends_with_the_command(
    invited: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, ends = list[list[str]](), list[str]()

    class Process:
        def __init__(self, command: list[str]) -> None:
            assert Path("lend.txt").exists()
            commands.append(command)

        def terminate(self) -> None:
            ends.append("terminate")

        def wait(self, timeout_s: float | None = None) -> None:
            ends.append("wait")
            if timeout_s is not None:
                raise TimeoutExpired("lend", timeout_s)

        def kill(self) -> None:
            ends.append("kill")

    class Joins:
        def __init__(self, *_: object, make: MakeTrainer, **__: object) -> None:
            self.make = make

        def work(self, stop: Callable[[], bool]) -> None:
            assert stop()  # --minutes are over at once
            self.make(Path("no-such-job.yaml"), {}, "ada")

    monkeypatch.setattr("subprocess.Popen", Process)
    monkeypatch.setattr(volunteer, "Volunteer", Joins)
    words = [*invited, "--threads", "1", "--minutes", "0"]
    assert isinstance(CliRunner().invoke(app, words).exception, InvalidInput)
    (command,) = commands
    assert command[command.index("--threads") + 1] == "1"
    assert ends == ["terminate", "wait", "kill", "wait"]
    assert not Path("lend.txt").exists()
