"""A small internet on this machine: network namespaces joined by links of given rates and delays.

Drives `wanlab`, a program beside this repository that needs root. Where it is not to be had, the parts that want it say
so and are left out; nothing else depends on it.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

COMMAND_S = 60.0


def find(given: str | None) -> tuple[Path | None, str]:
    """The program, or None and why it cannot be used. `given`: a path, or None to look where it usually is."""
    beside = Path(__file__).parents[3] / "shared" / "wanlab" / "wanlab"
    path = Path(given or os.environ.get("WANLAB") or beside)
    if not path.is_file():
        return None, f"there is no wanlab at {path} (--wanlab PATH or the variable WANLAB name another place)"
    if os.geteuid() != 0:
        return None, "wanlab makes network namespaces, which needs root"
    return path, ""


class Lab:
    """Nodes in namespaces of their own, for the length of a `with` block."""

    def __init__(self, program: Path, mbps: Mapping[str, tuple[float, float]], one_way_s: float) -> None:
        """`mbps`: node → (up, down) in Mbit/s; `one_way_s`: the delay between any two of them."""
        self._program = [sys.executable, str(program)]
        nodes = {name: {"region": "here", "up_mbps": up, "down_mbps": down} for name, (up, down) in mbps.items()}
        topology = {"mtu": 9000, "nodes": nodes, "rtt_ms": {"here-here": 2e3 * one_way_s}}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(topology, file)  # YAML reads JSON
            file.flush()
            self._run("up", file.name)
        self.addresses: dict[str, str] = {}
        for line in self._run("addr").splitlines():
            name, address = line.split()
            self.addresses[name] = address

    def inside(self, node: str) -> Sequence[str]:
        """The words in front of a command that is to run as that node."""
        return [*self._program, "exec", node, "--"]

    def sent_bytes(self) -> dict[str, int]:
        """What each node has put on its link so far, with all headers."""
        stats: Mapping[str, Any] = json.loads(self._run("stats"))
        return {name: counts["sent_bytes"] for name, counts in stats["nodes"].items()}

    def change(self, mbps: Mapping[str, tuple[float, float]], one_way_s: float) -> None:
        """Other rates and another delay from now on."""
        names = list(self.addresses)
        self.change_nodes(mbps)
        self.change_pairs([(a, b, one_way_s) for index, a in enumerate(names) for b in names[index + 1 :]])

    def change_nodes(self, mbps: Mapping[str, tuple[float, float]]) -> None:
        """Other rates of these nodes from now on: (up, down) in Mbit/s."""
        for name, (up, down) in mbps.items():
            self._run("set", name, f"up_mbps={up}", f"down_mbps={down}")

    def change_pairs(self, one_way_s: Iterable[tuple[str, str, float]]) -> None:
        """Other delays between these pairs from now on."""
        for a, b, seconds in one_way_s:
            self._run("link", a, b, f"rtt_ms={2e3 * seconds}")

    def __enter__(self) -> "Lab":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run("down")

    def _run(self, *arguments: str) -> str:
        # To a file: the switch that `up` leaves running holds on to stderr, and a pipe would not end before it.
        with tempfile.TemporaryFile("w+") as complaints:
            done = subprocess.run(
                [*self._program, *arguments],
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                timeout=COMMAND_S,
                check=False,
            )
            if done.returncode:
                complaints.seek(0)
                raise RuntimeError(f"wanlab {' '.join(arguments)}: {complaints.read().strip()}")
        return done.stdout
