"""examples/averaging as its README runs it, on a port of its own.

Members are processes; what needs no other member is run within the test's process.
"""

import contextlib
import io
import os
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
README = (ROOT / "examples/averaging/README.md").read_text(encoding="utf-8")
MEMBERS = ("desk", "attic", "shed")
DEADLINE_S = 120
MEAN = "mean of 3 members: [4.333333492279053, 4.333333492279053, 4.333333492279053] [0.0, 4.333"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example with a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for path in (ROOT / "examples/averaging").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        (tmp_path / path.name).write_text(source.replace("29500", port), encoding="utf-8")
    return tmp_path


@contextlib.contextmanager
def started(folder: Path, *commands: str) -> Iterator[list[subprocess.Popen[str]]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, *command.split()],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def run_here(folder: Path, command: str) -> tuple[int, str, str]:
    """The exit code, the output and the complaints of one script."""
    script, *arguments = command.split()
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.chdir(folder),
        mock.patch.object(sys, "argv", [script, *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code = int(str(end.code or 0))
    return code, out.getvalue(), err.getvalue()


def of_readme(name: str) -> list[str]:
    """The commands of the README that run `name`, as they have to be typed in the copy."""
    commands = re.findall(rf"^    python examples/averaging/({name} .*)$", README, re.MULTILINE)
    return [command.replace("/tmp/group-keys", "keys") for command in commands]


def outputs(running: list[subprocess.Popen[str]]) -> list[str]:
    said = [process.communicate(timeout=DEADLINE_S)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), said
    return said


def test_the_members_of_the_readme_average(folder: Path) -> None:
    commands = [*of_readme("rendezvous.py"), *of_readme("average.py")]
    assert commands == ["rendezvous.py 3", *(f"average.py {name} 3" for name in MEMBERS)]
    with started(folder, *commands) as running:
        said = outputs(running)
    for name, line in zip(MEMBERS, said[1:], strict=True):
        assert line.startswith(f"{name}: {MEAN}")


def test_the_encrypted_members_of_the_readme_average(folder: Path) -> None:
    make, rendezvous, desk = of_readme("encrypted.py")
    code, _, complaints = run_here(folder, make)
    assert code == 0, complaints
    assert {path.name for path in (folder / "keys").iterdir()} == {
        "allowed.keys",
        *(f"{name}.key" for name in (*MEMBERS, "rendezvous")),
    }
    with started(folder, rendezvous, desk, *(desk.replace("desk", name) for name in MEMBERS[1:])) as running:
        said = outputs(running)
    for name, line in zip(MEMBERS, said[1:], strict=True):
        assert line.startswith(f"{name}: {MEAN}")


def test_the_script_has_ten_lines() -> None:
    source = (ROOT / "examples/averaging/average.py").read_text(encoding="utf-8")
    lines = [line for line in source[source.index("import") :].splitlines() if line]
    assert len(lines) <= 10


@pytest.mark.parametrize(
    "command",
    ["average.py", "average.py desk three", "rendezvous.py", "rendezvous.py x", "encrypted.py", "encrypted.py keys k"],
)
def test_who_gives_other_arguments_is_told_what_is_expected(folder: Path, command: str) -> None:
    code, _, complaints = run_here(folder, command)
    assert code == 2
    assert f"python examples/averaging/{command.split()[0]}" in complaints


def test_a_key_that_is_not_there_is_named(folder: Path) -> None:
    code, _, complaints = run_here(folder, "encrypted.py desk nowhere 3")
    assert code == 2
    assert complaints.startswith("InvalidInput: nowhere/desk.key")
    assert len(complaints.splitlines()) == 1
