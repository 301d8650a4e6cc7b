"""Machines of one site: network namespaces on a bridge, whose links can be cut and slowed. It needs root.

In: names with addresses. Out: namespaces, for the length of a `with` block, and faults of their links.
"""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

BRIDGE, DRIVER_ADDRESS = "rvfaults", "10.77.0.1"
SITE = {"a0": "10.77.0.11", "a1": "10.77.0.12", "b0": "10.77.0.13", "b1": "10.77.0.14"}
"""The addresses of the machines, as in job/nodes.yaml."""
PREFIX = "rvf-"
MBPS = 100.0
COMMAND_S = 20.0


class Machines:
    """The namespaces of a site. The driver's machine is the one that everything else runs on."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        """`addresses`: by name, in one /24 with the driver's."""
        self.addresses = dict(addresses)

    def __enter__(self) -> "Machines":
        self._remove()
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{DRIVER_ADDRESS}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for name, address in self.addresses.items():
            space, outside = f"{PREFIX}{name}", f"{PREFIX}{name}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outside, "master", BRIDGE, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            self.rate(name, MBPS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def rate(self, name: str, mbps: float) -> None:
        """Give the machine's link this rate in both directions."""
        space, shape = f"{PREFIX}{name}", ("root", "tbf", "rate", f"{mbps}mbit", "burst", "32k", "latency", "200ms")
        _run("tc", "qdisc", "replace", "dev", space, *shape)
        _run("ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", "eth0", *shape)

    def cut(self, name: str, *, off: bool) -> None:
        """Take the machine's link down, or bring it back: nothing is told to either end."""
        _ip("link", "set", f"{PREFIX}{name}", *(("nomaster",) if off else ("master", BRIDGE)))

    def ports(self, name: str) -> list[int]:
        """The TCP ports at which something listens on the machine."""
        said = _run("ip", "netns", "exec", f"{PREFIX}{name}", "ss", "-Hltn")
        return sorted({int(line.split()[3].rpartition(":")[2]) for line in said.splitlines()})

    def _remove(self) -> None:
        for name in self.addresses:
            with suppress(RuntimeError):
                _ip("netns", "del", f"{PREFIX}{name}")
            with suppress(RuntimeError):
                _ip("link", "del", f"{PREFIX}{name}")
        with suppress(RuntimeError):
            _ip("link", "del", BRIDGE)


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
