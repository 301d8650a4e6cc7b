import re

import pytest
from typer.testing import CliRunner

from ravnest.cli.main import app, describe

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["profile", "--seconds", "0.1"], "--seconds: must be from 0.5 to 60, not 0.1"),
        (["profile", "--seconds", "61"], "--seconds: must be from 0.5 to 60, not 61"),
        (["profile", "--seconds", "nan"], "--seconds: must be from 0.5 to 60, not nan"),
        (["profile", "--seconds", "long"], "--seconds: expected a number, not long"),
        (["profile", "--peers", "1"], "--peers: must be 2 or more, not 1"),
        (["profile", "--seed", "1.5"], "--seed: expected a whole number, not 1.5"),
        (["export", "run", "--part-gb", "-1"], "--part-gb: expected 0 or more, not -1"),
        (["plan", "nodes.yaml", "--seed", "one"], "--seed: expected a whole number, not one"),
        (["simulate", "--samples", "1e3"], "--samples: expected a whole number, not 1e3"),
        (["simulate", "--hours", "one"], "--hours: expected a number, not one"),
        (["rehearse", "--speed", "fast"], "--speed: expected a number, not fast"),
        (["rehearse", "--samples", "2.5"], "--samples: expected a whole number, not 2.5"),
        (["evaluate", "run", "--data", "all"], "--data: 'all' is not one of 'held_out', 'train'."),
    ],
)
def test_a_value_that_cannot_be_is_told_in_one_line(given: list[str], said: str) -> None:
    result = CliRunner().invoke(app, given)
    assert isinstance(result.exception, Exception)
    assert describe(result.exception) == ([said], 2)
    assert result.output == ""


def test_what_is_missing_or_unknown_is_told_with_the_usage() -> None:
    for given in (["plan"], ["simulate", "--sampels", "3"]):
        result = CliRunner().invoke(app, given)
        assert result.exit_code == 2
        assert "Usage: ravnest" in result.output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ravnest st", {"status", "stop"}),
        ("ravnest check", {"checkpoint"}),
        ("ravnest status --j", {"--json"}),
        ("ravnest experts s", {"serve", "show"}),
        ("ravnest nothing-like-it", set()),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, offered: set[str]) -> None:
    asks = {"_RAVNEST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    result = RUNNER.invoke(app, [], prog_name="ravnest", env=asks)
    assert (result.exit_code, set(result.output.split())) == (0, offered)


def test_the_script_for_a_shell_asks_ravnest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    result = RUNNER.invoke(app, ["--show-completion", "bash"], prog_name="ravnest")
    assert result.exit_code == 0
    assert "_RAVNEST_COMPLETE=complete_bash" in result.output
    assert re.search(r"^complete .* ravnest$", result.output, flags=re.MULTILINE)
