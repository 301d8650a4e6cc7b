import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ravnest.cli import main as cli
from ravnest.cli.runs import RUN_HELP
from ravnest.errors import Interrupted, InvalidInput, NodeLost
from ring_allreduce.errors import DeadlinePassed
from tests.support.commands import ROOT

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("error", "lines", "code"),
    [
        (InvalidInput("must be 1 or more", path="job.yaml", key="micro_batch"), 1, 2),
        (InvalidInput.several([("nodes[0].name", "a"), ("nodes[1].name", "b")], path="nodes.yaml"), 2, 2),
        (NodeLost("node desk is silent"), 1, 1),
        (DeadlinePassed("a reply", 3.0), 1, 1),
    ],
)
def test_errors_of_ravnest_read_as_lines(error: Exception, lines: int, code: int) -> None:
    said, exit_code = cli.describe(error)
    assert (len(said), exit_code) == (lines, code)
    assert "\n".join(said) == str(error)


def test_what_others_have_sent_does_nothing_to_a_terminal() -> None:
    sent = "\x1b[2J\r"
    for error in (NodeLost(f"c0.s1 failed: {sent}"), OSError(28, "full", f"/{sent}"), KeyError(f"{sent}\x07")):
        (line,), _ = cli.describe(error)
        assert line.isprintable()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "/mnt/run"), "/mnt/run: Permission denied"),
        (IsADirectoryError(21, "Is a directory", Path("here")), "here: Is a directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_what_the_operating_system_refuses_about_a_file_is_the_users_to_mend(error: OSError, line: str) -> None:
    assert cli.describe(error) == ([line], 2)


def test_a_connection_that_breaks_is_still_a_mistake() -> None:
    (line,), code = cli.describe(ConnectionResetError(104, "Connection reset by peer"))
    assert "this is a mistake in ravnest" in line
    assert code == 1


def test_any_other_error_is_called_a_mistake_of_ravnest() -> None:
    (line,), code = cli.describe(KeyError("x\ny"))
    assert line.startswith("KeyError: 'x\\ny' (this is a mistake in ravnest")
    assert code == 1


def raised_by_main(monkeypatch: pytest.MonkeyPatch, error: Exception) -> object:
    def app() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


def test_main_prints_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAVNEST_TRACEBACK", raising=False)
    assert raised_by_main(monkeypatch, InvalidInput("no such file", path="nodes.yaml")) == 2
    assert capsys.readouterr().err == "ravnest: error: nodes.yaml: no such file\n"
    raised_by_main(monkeypatch, InvalidInput("no such file", path="nodes.yaml", hint="write it"))
    assert capsys.readouterr().err.splitlines()[1:] == ["ravnest: hint: write it"]


def test_an_end_that_was_asked_for_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAVNEST_TRACEBACK", raising=False)
    assert raised_by_main(monkeypatch, Interrupted("stopped at once, as it was asked to")) == 130
    assert capsys.readouterr().err == "ravnest: stopped at once, as it was asked to\n"


def test_ctrl_c_in_a_command_is_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cluster_planner.load_fleet", interrupted)
    result = RUNNER.invoke(cli.app, ["plan", str(tmp_path / "nodes.yaml")])
    told = "note: there was no plan yet, so that plan.yaml was not written\nravnest: interrupted\n"
    assert (result.exit_code, result.stderr) == (130, told)


def test_ctrl_c_ends_the_process_with_its_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cluster_planner.load_fleet", interrupted)
    monkeypatch.setattr(sys, "argv", ["ravnest", "plan", str(tmp_path / "nodes.yaml")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 130


def test_ctrl_c_at_a_question_is_answered_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("ravnest.cli.init.asks_here", lambda: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    result = RUNNER.invoke(cli.app, ["init", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (130, "\nravnest: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_paragraph_of_a_help_is_broken_where_the_terminal_ends_and_not_where_the_source_does() -> None:
    said = RUNNER.invoke(cli.app, ["join", "--help"]).output
    assert "by itself." in said
    lines = [line.strip() for line in said.splitlines()]
    begin, end = lines.index(""), next(at for at, line in enumerate(lines) if line.startswith("╭"))
    paragraphs = "\n".join(lines[begin:end]).strip().split("\n\n")
    for paragraph in paragraphs[1:]:
        *full, _ = paragraph.splitlines()
        assert all(len(line) > 60 for line in full), paragraph


def _commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield f"{above}{name}", command
        yield from _commands(command, f"{above}{name} ") if hasattr(command, "commands") else ()


def test_the_docs_name_each_command_that_has_json() -> None:
    text = " ".join((ROOT / "docs/training.md").read_text(encoding="utf-8").split())
    said = re.search(r"With `--json`, (.*?) prints one in each line\.", text)
    assert said is not None
    named = {name.removeprefix("ravnest ") for name in re.findall(r"`([\w -]+)`", said[1])}
    commands = _commands(typer.main.get_command(cli.app))
    assert named == {name for name, command in commands if any("--json" in param.opts for param in command.params)}


def test_a_run_is_described_in_one_way_wherever_it_is_named() -> None:
    told = {
        name: str(param.help)
        for name, command in _commands(typer.main.get_command(cli.app))
        for param in command.params
        if (param.metavar or "").startswith("RUN")
    }
    assert len(told) >= 11
    assert {name: said for name, said in told.items() if not said.startswith(RUN_HELP)} == {}


def test_a_traceback_is_there_for_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAVNEST_TRACEBACK", "1")

    def app() -> None:
        raise InvalidInput("no")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(InvalidInput):
        cli.main()


@pytest.mark.parametrize("command", [[], ["plan"], ["run"]])
def test_every_help_ends_with_an_example(command: list[str]) -> None:
    result = RUNNER.invoke(cli.app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example: ravnest" in " ".join(result.output.split()[-20:])


@pytest.mark.parametrize("command", [[], ["run"], ["logs"], ["dht", "health"], ["collaborate", "people"]])
def test_a_help_shows_no_value_behind_a_flag_and_no_brackets_in_brackets(command: list[str]) -> None:
    told = RUNNER.invoke(cli.app, [*command, "--help"])
    assert "--help" in told.output
    assert "<bool>" not in told.output
    assert "[[" not in told.output


def test_version() -> None:
    result = RUNNER.invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output.split()[0]) == (0, "ravnest")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, ravnest.cli.main; "
        "print(sorted({'torch', 'ray', 'sklearn', 'matplotlib', 'networkx', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plan_without_a_job_says_where_the_job_was_looked_for(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes: [{name: a, gflops: 1, memory_gb: 1, up_mbps: 1, down_mbps: 1}]")
    result = RUNNER.invoke(cli.app, ["plan", str(nodes)])
    assert isinstance(result.exception, InvalidInput)
    assert cli.describe(result.exception) == ([f"{tmp_path / 'job.yaml'}: no such file"], 2)
    assert "--job" in str(result.exception.hint)
