"""Who measures for `ravnest profile`: an agent on each node of a Ray cluster, or this process alone.

In: the address of a Ray cluster, or None. Out: a crew that answers calls, for the length of a `with` block.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ravnest.job.config import Job
    from ravnest.profiling.agents import Agents


@contextmanager
def crew_at(address: str | None, job: Job | None, job_file: Path | None, names: Mapping[str, str]) -> Iterator[Agents]:
    """`job`: whose code the nodes get. `names`: what nodes of given addresses are called. Raises InvalidInput where
    nothing listens at `address`, RunFailed where Ray cannot be joined."""
    if address is None:
        from ravnest.profiling.agents import LocalAgents

        name = next(iter(names.values())) if len(names) == 1 else socket.gethostname()
        yield LocalAgents(name, len(os.sched_getaffinity(0)))
        return
    from ravnest.driver.ray.code_shipping import job_code
    from ravnest.driver.ray.node_agents import RayAgents
    from ravnest.driver.ray.session import RaySession, check_address

    check_address(address)
    code = None if job is None or job_file is None else job_code(job, job_file)
    if code is not None and code.notice is not None:
        typer.echo(code.notice, err=True)
    session = RaySession(address, code)
    try:
        with RayAgents(session, names) as crew:
            yield crew
    finally:
        session.close()
