"""How tests share two workers (`pytest -n 2`, as `make test` runs them). Without -n nothing changes.

Tests that start processes are sensitive to time: they form one unit of work, which one worker runs in order. It is the
first that xdist gives out, since it is the largest. The other worker runs the unit tests meanwhile, one by one.

How long one example of hypothesis takes says nothing on a machine that others use: none has a deadline of its own.
"""

import pytest
import torch
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

PROCESSES = ("tests/integration/", "tests/faults/")
"""Folders whose tests start processes."""


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker: the other core is another one's
        torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`--dist loadgroup` is meant for this, but with pytest 9.2 the xdist of constraints.txt sees no groups."""
    from xdist.scheduler import LoadScopeScheduling

    class ProcessesInOne(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "processes" if nodeid.startswith(PROCESSES) else nodeid

    return ProcessesInOne(config, log)
