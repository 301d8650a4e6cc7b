"""The actor of a stage, without Ray: how the end of a process is told."""

import pytest

from ravnest.driver.ray.stage_host import StageActor, ended_how


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (137, "killed (SIGKILL), as the system does where a machine runs out of memory"),
        (-9, "killed (SIGKILL)"),
        (139, "ended by SIGSEGV"),
        (3, "exit code 3"),
        (255, "exit code 255"),
    ],
)
def test_the_end_of_a_process_is_told_in_words(code: int, said: str) -> None:
    assert said in ended_how(code)


def test_a_stage_that_was_never_started_may_be_ended() -> None:
    StageActor("c0.s0", b"").end()
