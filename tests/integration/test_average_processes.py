"""Groups of processes that average alone: the mean, and a clear end for those that want one when a member is lost.

What becomes of those who go on: tests/faults/test_group.py.
"""

import multiprocessing
import os
import signal
import time

import pytest
import torch

from ring_allreduce import Group, RavnestError, Rendezvous

pytestmark = pytest.mark.timeout(120)

NAMES = ("a", "b", "c")
CONTEXT = multiprocessing.get_context("spawn")


def average_thrice(rendezvous, name, results):
    torch.set_num_threads(1)
    rank = NAMES.index(name)
    with Group.join(rendezvous, name=name, size=3) as group:
        for size in (0, 7, 600_000):
            tensors = [
                torch.full((size,), float(rank)),
                torch.arange(6.0).reshape(2, 3).T * rank,
                torch.tensor(float(rank)).bfloat16(),
            ]
            total = group.average(tensors, weight=rank + 1.0)
            big, view, scalar = tensors
            results.send((name, size, total, big.unique().tolist(), view.tolist(), scalar.item()))


def average_until_lost(rendezvous, name, results, deadline_s):
    torch.set_num_threads(1)
    group = Group.join(rendezvous, name=name, size=3, on_loss="fail")
    started = time.monotonic()
    try:
        for count in range(10_000):
            group.average([torch.ones(300_000)], timeout_s=deadline_s)
            if count == 0:
                results.send((name, os.getpid(), ""))
    except RavnestError as error:
        results.send((name, time.monotonic() - started, f"{type(error).__name__}: {error}"))
    finally:
        group.close()


def start(target, *arguments):
    """One process for each name, and the pipe that its results come through.

    A pipe each, no shared queue: a process that is killed while it holds a queue's lock would silence the others.
    """
    processes, pipes = {}, {}
    for name in NAMES:
        pipes[name], results = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=target, args=(arguments[0], name, results, *arguments[1:]), daemon=True)
        process.start()
        results.close()
        processes[name] = process
    return processes, pipes


def take(pipe, timeout_s):
    """The next result of one process."""
    assert pipe.poll(timeout_s), f"no result within {timeout_s} s"
    return pipe.recv()


def stop(processes):
    for process in processes.values():
        process.kill()
        process.join()


def test_three_processes_average():
    with Rendezvous(size=3) as rendezvous:
        processes, pipes = start(average_thrice, rendezvous.address)
        try:
            collected = [take(pipes[name], 60) for name in NAMES for _ in range(3)]
            for process in processes.values():
                process.join(30)
            assert [process.exitcode for process in processes.values()] == [0, 0, 0]
        finally:
            stop(processes)
        rendezvous.wait(10)
    # Weights 1, 2, 3 on the values 0, 1, 2.
    mean = 8 / 6
    for name in NAMES:
        for (_, size, total, big, view, scalar), expected in zip(
            [entry for entry in collected if entry[0] == name], (0, 7, 600_000), strict=True
        ):
            assert (size, total) == (expected, 6.0)
            assert big == pytest.approx([mean] if size else [])
            torch.testing.assert_close(torch.tensor(view), torch.arange(6.0).reshape(2, 3).T * mean)
            assert scalar == pytest.approx(mean, rel=0.01)
    assert len({(size, *big) for _, size, _, big, _, _ in collected}) == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_member_ends_the_others_with_a_clear_error(how):
    deadline_s = 60.0 if how == signal.SIGKILL else 6.0
    with Rendezvous(size=3) as rendezvous:
        processes, pipes = start(average_until_lost, rendezvous.address, deadline_s)
        try:
            assert [take(pipes[name], 60)[0] for name in NAMES] == list(NAMES)
            os.kill(processes["b"].pid, how)
            # A death is noticed long before the time-out of 60 s, a freeze some signs of life after one of 6 s.
            ends = {name: take(pipes[name], 25)[2] for name in "ac"}
        finally:
            stop(processes)
    # A frozen member holds its connections open: only who has waited long enough says that something is wrong.
    assert all(text.startswith("PeerLost: member 'b' is lost") for text in ends.values()), ends
    if how == signal.SIGSTOP:
        assert any("silent for" in text and "waited for round" in text for text in ends.values()), ends
