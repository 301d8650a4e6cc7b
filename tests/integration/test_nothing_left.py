"""A test of runs that fails leaves none of their processes, whoever started them and whatever they do."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.commands import gone, nothing_left_in

STARTS_ANOTHER = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"


def failing(folder: Path, below: Path) -> list[psutil.Process]:
    """What it has started: a frozen process, and one whose parent has ended."""
    frozen = psutil.Popen(["sleep", "600"], cwd=below, start_new_session=True)
    frozen.suspend()
    subprocess.run([sys.executable, "-c", STARTS_ANOTHER], cwd=folder, check=True)
    every = psutil.process_iter(["cwd", "cmdline"])
    return [frozen, *(each for each in every if each.info["cwd"] == str(folder) and "600" in each.info["cmdline"])]


def test_a_test_that_fails_leaves_no_process_in_its_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "run", tmp_path / "other"
    for folder in (inside / "below", outside):
        folder.mkdir(parents=True)
    started = list[psutil.Process]()

    def fail() -> None:
        with nothing_left_in(inside):
            started.extend(failing(inside, inside / "below"))
            raise ZeroDivisionError

    with subprocess.Popen(["sleep", "600"], cwd=outside) as spared:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert len(started) == 2
        assert gone(started, within_s=0.0)
        assert spared.poll() is None
        spared.kill()
