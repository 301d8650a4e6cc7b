"""How the tests share three workers (`pytest -n 3`, as `make test` runs them), and which of them `make quick` runs.

Tests that start processes form three groups. Each group runs in one worker, one test after another, since two runs of
four processes at once would take longer than one after the other. They come first, since they take the longest, and
spend much of it waiting: three at once keep two cores busy. All other files are given out one by one, as wholes: what
the tests of a file share, captured models for instance, is made once.

A test that takes more than SLOW_S is marked `slow`: `make quick` leaves it out, and names those whose mark is missing.
The slow unit tests stand in tests/support/slow_tests.py.

How long one example of hypothesis takes says nothing on a machine that others use: none has a deadline of its own.
Hypothesis looks for new examples in each run here, and tries the same ones in each run of CI (the variable CI), which
judges the change, not the luck of the day.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads would spin on the other workers' cores; read at its import

from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import settings

from tests.support.slow_tests import SLOW, SLOW_FILES

settings.register_profile("shared machine", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("shared machine")

os.environ.pop("COLUMNS", None)  # a worker has it, and what commands say would be broken as if a user asked for it
os.environ["RAVNEST_CACHE"] = ""  # what one test checked is nothing to another one

SLOW_S = 0.7
"""Seconds that a test without the mark `slow` may take on a machine of two cores, its fixtures not counted."""

GROUPS = {
    "tests/faults/": "runs",
    "tests/integration/test_cli_": "runs",
    "tests/integration/test_run_": "runs",
    "tests/integration/experiments/": "experiments",
    "tests/integration/": "sockets",
}
"""The start of a test's node id → its group; the first that fits counts."""

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module", autouse=True)
def _forget_users_code() -> Iterator[None]:
    """Let no file of tests leave its users' modules (`data`, `model`) to the next, where others have these names."""
    path, before = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    came = set(sys.modules) - before
    theirs = {name for name in came if _is_users(sys.modules[name])}
    for name in came:  # a package goes with all that is in it
        if name.partition(".")[0] in theirs:
            del sys.modules[name]


def _is_users(module: ModuleType) -> bool:
    """Say whether a module lies in an example's folder, or in the temporary one; the project itself may lie in that."""
    file = Path(getattr(module, "__file__", None) or "/").resolve()
    if file.is_relative_to(EXAMPLES.parent):
        return file.is_relative_to(EXAMPLES) and file.parent != EXAMPLES
    return file.is_relative_to(Path(tempfile.gettempdir()).resolve())


@pytest.fixture(autouse=True)
def _no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let no run outlive a test that failed or was tried again, where tests start processes in a folder of theirs."""
    if "tmp_path" not in request.fixturenames or not request.node.nodeid.startswith(tuple(GROUPS)):
        yield
        return
    from tests.support.commands import nothing_left_in  # it imports all that a command needs

    with nothing_left_in(request.getfixturevalue("tmp_path")):
        yield


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # this is a worker, and the other core is another worker's
        torch.set_num_threads(1)
    elif config.getoption("numprocesses", None):  # workers get this environment: support/local.py
        os.environ["RAVNEST_TESTS_CAPTURES"] = folder = tempfile.mkdtemp(prefix="ravnest-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give out groups as wholes. `--dist loadgroup` sees no groups with pytest 9.2 and this version of xdist."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((group for start, group in GROUPS.items() if file.startswith(start)), file)

    config.option.loadscopereorder = False  # the order is that of the folders: faults, fuzz, integration, unit
    return Groups(config, log)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        named = isinstance(item, pytest.Function) and item.originalname in SLOW
        if named or item.nodeid.startswith(SLOW_FILES):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the tests of a run without slow ones (`-m "not slow"`) that were slow: the mark is missing."""
    if config.getoption("markexpr") != "not slow" or hasattr(config, "workerinput"):
        return
    reports: Sequence[pytest.TestReport] = terminalreporter.getreports("passed")
    slow = sorted(
        ((report.duration, report.nodeid) for report in reports if report.when == "call" and report.duration > SLOW_S),
        reverse=True,
    )
    if slow:
        terminalreporter.section(f"took more than {SLOW_S:g} s without the mark slow")
        for duration_s, nodeid in slow:
            terminalreporter.write_line(f"{duration_s:6.2f} s  {nodeid}")
