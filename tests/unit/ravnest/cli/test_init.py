from pathlib import Path

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app


def test_options_answer_the_questions_and_the_next_commands_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "my job"
    done = CliRunner().invoke(app, ["init", str(folder), "--machines", "desk, attic", "--kind", "images"])
    assert done.exit_code == 0, done.output
    assert f"Wrote {folder / 'job.yaml'}" in done.output
    assert f"Next: cd '{folder}' && ravnest plan nodes.yaml && ravnest run" in done.output
    assert 'name: "attic"' in (folder / "nodes.yaml").read_text()


@pytest.mark.parametrize("there", [False, True])
def test_where_a_device_is_not_here_the_first_try_is_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    given = ["init", str(tmp_path / "a"), "--machines", "one,two", "--hardware", "rtx 3060,laptop", "--yes"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    command = "ravnest run" if there else "ravnest rehearse plan.yaml"
    assert done.stdout.endswith(f"ravnest plan nodes.yaml && {command}\n")
    lacks = "note: `ravnest run` needs cuda, which this machine lacks, or --address of machines that have it\n"
    assert done.stderr == ("" if there else lacks)


def test_where_nobody_can_be_asked_it_is_said_what_was_taken(tmp_path: Path) -> None:
    given = ["init", str(tmp_path / "a"), "--machines", "desk", "--kind", "images"]
    done = CliRunner().invoke(app, given, input="desktop\n100\n2\n")  # lines that are piped are no answers
    assert (
        done.stderr
        == "note: questions are asked on a terminal only; assumed: --hardware laptop --mbps 40 --minutes 5\n"
    )
    assert 'hardware: "laptop"' in (tmp_path / "a/nodes.yaml").read_text()
    assert CliRunner().invoke(app, ["init", str(tmp_path / "b"), "--yes"]).stderr == ""


def test_a_terminal_is_asked_what_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ravnest.cli.init.asks_here", lambda: True)
    said = "numbers\ndesk\nrtx 3060\n100\n2\n"
    done = CliRunner().invoke(app, ["init", str(tmp_path / "job")], input=said)
    assert done.exit_code == 0, done.output
    assert done.output.count("?") == 5
    nodes = (tmp_path / "job/nodes.yaml").read_text()
    assert '{name: "desk", hardware: "rtx 3060", gflops: 0.656, up_mbps: 100, down_mbps: 100}' in nodes
    assert "minutes: 2" in (tmp_path / "job/job.yaml").read_text()


def test_an_answer_that_cannot_be_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ravnest.cli.init.asks_here", lambda: True)
    said = "poems\ntext\ndesk,desk\ndesk,attic\ntoaster\nlaptop\nfast\n0\n40\nnan\n5\n"
    done = CliRunner().invoke(app, ["init", str(tmp_path / "job")], input=said)
    assert done.exit_code == 0, done.output
    assert done.output.count("Error: ") == 6
    assert "no hardware is known as 'toaster'" in done.output
    again = CliRunner().invoke(app, ["init", str(tmp_path / "job")], input=said)
    assert "job.yaml is there already" in str(again.exception)
    assert "?" not in again.output  # nobody answers five questions for nothing


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--kind", "poems"], "--kind: must be text or images or numbers, not 'poems'"),
        (["--hardware", "toaster"], "--hardware: no hardware is known as 'toaster'"),
        (["--machines", "desk,a/b"], "--machines: must be a letter or digit, followed by at most 63 letters"),
        (["--mbps", "0"], "--mbps: expected a number above 0, not 0"),
    ],
)
def test_an_option_that_cannot_be_is_refused(tmp_path: Path, given: list[str], said: str) -> None:
    refused = CliRunner().invoke(app, ["init", str(tmp_path / "job"), *given])
    assert str(refused.exception).startswith(said)
    assert not (tmp_path / "job").exists()
