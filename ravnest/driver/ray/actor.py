"""The Ray actor that hosts one stage. Ray carries its setup and its outcome; tensors never pass through Ray.

Two calls: `prepare` binds the stage's endpoint and says where it listens; `run` trains until the driver says stop.
"""

import os
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ravnest.stage.setup import StageAddress, StageSetup
from ring_allreduce.transport import PeerAddress


@dataclass(frozen=True)
class StageOutcome:
    """How a stage's process ended. `error` is one line, `details` the traceback behind it; None when all was well."""

    error: str | None = None
    details: str | None = None


class StageActor:
    """One stage of one cluster, in a process of its own."""

    def __init__(self, setup: StageSetup, host: str, shipped: str | None = None) -> None:
        """`shipped`: the name of the job file in the folder that this process works in, where Ray brought the job's
        code; None: it lies here where it lies for the driver."""
        if shipped is not None:
            here = Path.cwd()
            setup = replace(setup, job_file=str(here / shipped), search_dirs=(str(here),))
        self._setup = setup
        self._host = host

    def prepare(self) -> StageAddress:
        """Import torch, load the data, bind the endpoint."""
        sys.path[:0] = [path for path in self._setup.search_dirs if path not in sys.path]
        from ravnest.stage.process import (
            StageProcess,
        )  # torch's import: here, so that actors import in parallel

        self._process = StageProcess(self._setup, self._host)
        cores = len(os.sched_getaffinity(0))
        samples = self._process.samples
        return StageAddress(self._process.address, socket.gethostname(), os.getpid(), cores, samples)

    def run(self, peers: Mapping[str, PeerAddress]) -> StageOutcome:
        """Train. Every failure is an outcome, not an exception, so that the driver can name the stage in one line."""
        try:
            self._process.run(peers)
        except BaseException as error:  # noqa: BLE001 - the boundary of the process: reported, not swallowed
            line = " ".join(str(error).split()) or type(error).__name__
            return StageOutcome(line, traceback.format_exc())
        return StageOutcome()
