"""A real Ray cluster in wanlab: a Ray node in each namespace, the head and the run's driver in one of their own.

The head's namespace has fast links, so that control takes none of the nodes' rates but at their own ends. One cluster
serves several plans: only the lab's rates and delays change between them.
"""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.allreduce.lab import Lab
from experiments.fidelity.plans import pairs
from experiments.fidelity.programs import answer, end
from experiments.fidelity.sites import Site

HEAD = "driver"
PORT = 6379
HEAD_MBPS, HEAD_ONE_WAY_S = 1000.0, 0.0005
START_S = 120.0
OBJECT_STORE_BYTES = 80_000_000
_STARTED = "Ray runtime started"


class RayInLab:
    """`count` nodes called n0, n1…, for the length of a `with` block."""

    def __init__(self, program: Path, count: int) -> None:
        """Raises RuntimeError where Ray does not start in time."""
        self._names = [f"n{index}" for index in range(count)]
        self._folder = tempfile.TemporaryDirectory(prefix="rfid-")
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        fast = (HEAD_MBPS, HEAD_MBPS)
        self._lab = Lab(program, dict.fromkeys([*self._names, HEAD], fast), HEAD_ONE_WAY_S)
        self._running: list[subprocess.Popen[Any]] = []
        try:
            for name in [*self._names, HEAD]:  # Ray asks for the address by which it would reach the world
                subprocess.run([*self._lab.inside(name), "ip", "route", "add", "default", "dev", "wl0"], check=True)
            self._start([HEAD])
            self._start(self._names)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"{self._lab.addresses[HEAD]}:{PORT}"

    def shape(self, site: Site) -> None:
        """Give the lab the site's rates and delays."""
        self._lab.change_nodes({node.name: (node.up_mbps, node.down_mbps) for node in site.nodes})
        self._lab.change_pairs(pairs(site))

    def run(self, plan: Path, *, seconds: float, deadline_s: float, out: Path) -> Any:
        """The plan's run on the cluster, as experiments.fidelity.driver prints it."""
        program = [sys.executable, "-m", "experiments.fidelity.driver", str(plan), "--address", self.address]
        return answer(
            [*self._lab.inside(HEAD), *program, "--seconds", str(seconds), "--out", str(out)],
            self.environment,
            deadline_s=deadline_s,
            log=out.with_suffix(".log"),
        )

    def close(self) -> None:
        """End Ray, and take the lab down."""
        for running in reversed(self._running):
            end(running)
        self._lab.__exit__(None, None, None)
        self._folder.cleanup()

    def __enter__(self) -> "RayInLab":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, names: Sequence[str]) -> None:
        """Start Ray on these, at once, and wait until it says that it has started."""
        logs, started = {}, {}
        for name in names:
            logs[name] = Path(self._folder.name) / f"{name}.log"
            place = ["--node-ip-address", self._lab.addresses[name], "--object-store-memory", str(OBJECT_STORE_BYTES)]
            if name == HEAD:
                place += ["--head", "--port", str(PORT), "--num-cpus", "0", "--include-dashboard", "false"]
            else:
                place += ["--address", self.address, "--num-cpus", "1"]
            # Nodes of one machine that share a folder choose the same names for their sockets.
            place += ["--temp-dir", str(Path(self._folder.name) / name)]
            ray = str(Path(sys.executable).with_name("ray"))
            with logs[name].open("w", encoding="utf-8") as output:
                started[name] = subprocess.Popen(
                    [*self._lab.inside(name), ray, "start", *place, "--disable-usage-stats", "--block"],
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
            self._running.append(started[name])
        deadline_s = time.monotonic() + START_S
        waiting = set(names)
        while waiting:
            waiting = {name for name in waiting if _STARTED not in logs[name].read_text(errors="replace")}
            ended = [name for name in waiting if started[name].poll() is not None]
            if ended or (waiting and time.monotonic() > deadline_s):
                name = min(ended or waiting)
                why = "ended" if ended else f"has not started within {START_S:.0f} s"
                raise RuntimeError(f"Ray {why} on {name}: {logs[name].read_text(errors='replace')[-600:]}")
            time.sleep(0.2)
