"""The file that takes what Ray says. The descriptors of a process: tests/integration/test_local_ray.py."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ravnest.driver.ray import ray_log
from ravnest.driver.ray.ray_log import RayLog
from ravnest.errors import RunFailed


def printing(data: dict[str, Any], file: Any, ignore_prefix: bool = False) -> None:
    print(f"\x1b[36m(pid={data['pid']})\x1b[0m {data['line']}", file=file)


def test_lines_of_workers_and_records_come_as_plain_text_and_everything_is_put_back(tmp_path: Path) -> None:
    worker = SimpleNamespace(print_worker_logs=printing)
    logger = logging.getLogger("ray")
    before = (list(logger.handlers), logger.propagate)
    with RayLog(tmp_path / "logs" / "ray.log") as log:
        log.take_workers(worker)
        worker.print_worker_logs({"pid": 7, "line": "lost a node"}, None, ignore_prefix=False)
        logging.getLogger("ray.some.part").error("did not start")
    text = (tmp_path / "logs" / "ray.log").read_text()
    assert "(pid=7) lost a node\n" in text
    assert "ERROR ray.some.part: did not start" in text
    assert "\x1b" not in text
    assert worker.print_worker_logs is printing
    assert (list(logger.handlers), logger.propagate) == before


def test_a_second_session_appends(tmp_path: Path) -> None:
    for words in ("first\n", "second\n"):
        with RayLog(tmp_path / "ray.log") as log:
            log.write(words)
    assert (tmp_path / "ray.log").read_text() == "first\nsecond\n"


def test_the_file_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_log, "LARGEST_BYTES", 10)
    with RayLog(tmp_path / "ray.log") as log:
        for _ in range(5):
            log.write("1234567\n")
    assert (tmp_path / "ray.log").read_text() == "1234567\n" * 2


def test_what_comes_after_the_end_is_dropped(tmp_path: Path) -> None:
    with RayLog(tmp_path / "ray.log") as log:
        pass
    log.write("late")
    assert (tmp_path / "ray.log").read_text() == ""


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(RunFailed, match=r"could not open .*ray\.log for Ray's log: "):
        RayLog(tmp_path / "logs" / "ray.log").__enter__()
