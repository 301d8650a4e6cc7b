"""Ray in wanlab: a node in each namespace, which sees the files of this machine but for one folder that is hidden.

The first machine is the head, and sees all: commands run there. Ray starts over fast links, which are then shaped.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from experiments.allreduce.lab import Lab
from experiments.machines.site import Site

PORT = 6379
FAST_MBPS, FAST_ONE_WAY_S = 500.0, 0.0005
START_S, ATTEMPTS = 180.0, 4
OBJECT_STORE_BYTES = 80_000_000
_STARTED = "Ray runtime started"
_END_S = 10.0
AGAIN = 'while true; do "$@"; sleep 5; done'
"""The loop in which docs/operating.md starts the Ray of a machine that is to come back by itself."""
_ALIVE = """
import json, sys, ray
ray.init(sys.argv[1], _node_ip_address=sys.argv[1].split(":")[0], logging_level="ERROR", log_to_driver=False)
print(json.dumps([node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]))
"""


class LabCluster:
    """For the length of a `with` block."""

    def __init__(self, program: Path, site: Site, hidden: Path, again: Collection[str] = ()) -> None:
        """`hidden`: a folder that only the head can see; `again`: machines whose Ray is started in a loop. Raises
        RuntimeError where Ray does not start in time."""
        self._site, self._hidden, self._again = site, hidden, again
        self._program = program
        self._logs = tempfile.TemporaryDirectory(prefix="rprof-")
        self._environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "COLUMNS": "1000",
        }
        self._lab = Lab(program, dict.fromkeys(site.names, (FAST_MBPS, FAST_MBPS)), FAST_ONE_WAY_S)
        self._running: list[subprocess.Popen[Any]] = []
        try:
            for name in site.names:  # Ray asks for the address by which it would reach the world
                subprocess.run([*self._lab.inside(name), "ip", "route", "add", "default", "dev", "wl0"], check=True)
            for name in site.names:  # one after the other, since they share the processors
                self._start(name)
            self._lab.change_nodes({each.name: (each.up_mbps, each.down_mbps) for each in site.machines})
            self._lab.change_pairs(site.pairs())
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Of Ray's head."""
        return f"{self._lab.addresses[self._site.names[0]]}:{PORT}"

    def ravnest(self, folder: Path, *words: str, deadline_s: float) -> subprocess.CompletedProcess[str]:
        """A command of ravnest's on the head. Raises subprocess.TimeoutExpired."""
        return subprocess.run(
            [*self._lab.inside(self._site.names[0]), sys.executable, "-m", "ravnest", *words],
            cwd=folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
        )

    def begin(self, folder: Path, *words: str, log: Path) -> "subprocess.Popen[bytes]":
        """Begin a command of ravnest's on the head, and let it run; what it says goes to `log`."""
        with log.open("wb") as output:
            running = subprocess.Popen(
                [*self._lab.inside(self._site.names[0]), sys.executable, "-m", "ravnest", *words],
                cwd=folder,
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        self._running.append(running)
        return running

    def cut(self, name: str) -> None:
        """Take a machine off the net."""
        self._link("cut", name)

    def heal(self, name: str) -> None:
        """Put it back."""
        self._link("heal", name)

    def alive(self) -> set[str]:
        """The machines whose Ray the head calls alive. Raises subprocess.SubprocessError where it does not answer."""
        asked = subprocess.run(
            [*self._lab.inside(self._site.names[0]), sys.executable, "-c", _ALIVE, self.address],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60.0,
            check=True,
        )
        found = json.loads(asked.stdout.splitlines()[-1])
        return {name for name in self._site.names if self._lab.addresses[name] in found}

    def processes(self, name: str) -> list[str]:
        """The command lines of what lives in a machine's namespace."""
        listed = subprocess.run(["ip", "netns", "pids", f"wl-{name}"], capture_output=True, text=True, check=True)
        found = []
        for word in listed.stdout.split():
            try:
                process = psutil.Process(int(word))
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue  # it has ended since
        return found

    def close(self) -> None:
        """End Ray, and take the lab down."""
        for running in reversed(self._running):
            running.terminate()
        for running in self._running:
            try:
                running.wait(_END_S)
            except subprocess.TimeoutExpired:
                running.kill()
        self._lab.__exit__(None, None, None)
        self._logs.cleanup()

    def __enter__(self) -> "LabCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _link(self, verb: str, name: str) -> None:
        subprocess.run([sys.executable, str(self._program), verb, name], check=True, capture_output=True, timeout=30.0)

    def _start(self, name: str) -> None:
        """Start Ray there, and wait until it says that it has started. A busy machine may need several attempts: Ray
        gives a node 30 s, and no setting changes that."""
        deadline_s = time.monotonic() + START_S
        log = Path(self._logs.name) / f"{name}.log"
        for attempt in range(ATTEMPTS):
            with log.open("w", encoding="utf-8") as output:
                running = subprocess.Popen(
                    [*self._lab.inside(name), *self._command(name, attempt)],
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    env=self._environment,
                )
            self._running.append(running)
            while running.poll() is None and time.monotonic() < deadline_s:
                if _STARTED in log.read_text(errors="replace"):
                    return
                time.sleep(0.2)
        raise RuntimeError(f"Ray did not start on {name}: {log.read_text(errors='replace')[-600:]}")

    def _command(self, name: str, attempt: int) -> list[str]:
        ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
        ray += ["--node-ip-address", self._lab.addresses[name], "--num-cpus", "1"]
        ray += ["--object-store-memory", str(OBJECT_STORE_BYTES), "--resources", json.dumps({f"ravnest-{name}": 1})]
        # Nodes of one machine that share a folder choose the same names for their sockets.
        ray += ["--temp-dir", str(Path(self._logs.name) / f"{name}-{attempt}")]
        if name == self._site.names[0]:
            return [*ray, "--head", "--port", str(PORT), "--include-dashboard", "false"]
        hide = 'mount -t tmpfs none "$0" && exec "$@"'
        ray += ["--address", self.address]
        again = ["sh", "-c", AGAIN, "again"] if name in self._again else []
        return ["unshare", "-m", "sh", "-c", hide, str(self._hidden), *again, *ray]
