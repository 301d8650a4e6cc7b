"""What a process takes of a GPU. There is none here: what is asked of torch and of the other process is recorded."""

import io

import pytest
import torch

from ravnest.profiling.gpu_process import READY, process_bytes, train_a_little


class Other:
    """A process that says one line; `free` is told when it is gone."""

    def __init__(self, said: bytes, done: list[str]) -> None:
        self.stdout, self.done = io.BytesIO(said), done

    def __enter__(self) -> "Other":
        self.done.append("started")
        return self

    def __exit__(self, *exc: object) -> None:
        self.done.append("waited for")

    def kill(self) -> None:
        self.done.append("killed")


def measured(monkeypatch: pytest.MonkeyPatch, said: str | None, free: list[int]) -> tuple[int | None, list[str]]:
    done: list[str] = []
    commands: list[list[str]] = []

    def started(command: list[str], **streams: object) -> Other:
        commands.append(command)
        return Other((said or "").encode() + b"\n", done)

    def memory(index: int) -> tuple[int, int]:
        done.append(f"looked at {index}")
        return free.pop(0), 10**10

    monkeypatch.setattr("subprocess.Popen", started)
    monkeypatch.setattr("select.select", lambda r, w, x, s: (r if said is not None else [], [], []))
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    found = process_bytes("cuda:1")
    assert commands[0][1:] == ["-m", "ravnest.profiling.gpu_process", "cuda:1"]
    return found, done


def test_it_is_what_is_gone_while_a_process_that_has_trained_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found, done = measured(monkeypatch, READY, [9 * 10**9, 8 * 10**9])
    assert found == 10**9
    assert done == ["looked at 1", "started", "looked at 1", "killed", "waited for"]


@pytest.mark.parametrize(("said", "free"), [(None, [9, 8]), ("Traceback", [9, 8]), (READY, [8, 9])])
def test_a_process_that_fails_or_stays_silent_or_is_not_seen_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, said: str | None, free: list[int]
) -> None:
    found, done = measured(monkeypatch, said, free)
    assert found is None
    assert done[-2:] == ["killed", "waited for"]


def test_what_such_a_process_trains_runs() -> None:
    train_a_little("cpu")
