"""Machines of one site: network namespaces on a bridge, whose links can be cut and slowed. It needs root.

In: a site, which names machines and their addresses. Out: namespaces, for the length of a `with` block, and faults of
their links. Sites are apart, so that a run on each can be under way at once.
"""

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

MBPS = 100.0
COMMAND_S = 20.0


@dataclass(frozen=True)
class Site:
    """Four machines and that of the driver, in one /24. Site 0 has the addresses of job/nodes.yaml."""

    number: int = 0

    @property
    def network(self) -> str:
        """What all addresses of the site begin with."""
        return f"10.77.{self.number}."

    @property
    def bridge(self) -> str:
        """The name of the bridge to which all links lead."""
        return f"rvfaults{self.number}"

    @property
    def driver(self) -> str:
        """The address of the driver, on the machine that everything else runs on."""
        return f"{self.network}1"

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses of the machines by name."""
        return {name: f"{self.network}{11 + index}" for index, name in enumerate(("a0", "a1", "b0", "b1"))}

    def space(self, machine: str) -> str:
        """The name of a machine's network namespace."""
        return f"rvf{self.number}-{machine}"

    def netns(self, machine: str) -> Path:
        """The file of that namespace."""
        return Path("/run/netns") / self.space(machine)


class Machines:
    """The namespaces of a site. The driver's machine is the one that everything else runs on."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.addresses = dict(site.addresses)

    def __enter__(self) -> "Machines":
        self._remove()
        _ip("link", "add", self.site.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.site.driver}/24", "dev", self.site.bridge)
        _ip("link", "set", self.site.bridge, "up")
        for name, address in self.addresses.items():
            space = self.site.space(name)
            _ip("netns", "add", space)
            _ip("link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", space, "master", self.site.bridge, "up")
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
        space, shape = self.site.space(name), ("root", "tbf", "rate", f"{mbps}mbit", "burst", "32k", "latency", "200ms")
        _run("tc", "qdisc", "replace", "dev", space, *shape)
        _run("ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", "eth0", *shape)

    def cut(self, name: str, *, off: bool) -> None:
        """Take the machine's link down, or bring it back: nothing is told to either end."""
        _ip("link", "set", self.site.space(name), *(("nomaster",) if off else ("master", self.site.bridge)))

    def ports(self, name: str) -> list[int]:
        """The TCP ports at which something listens on the machine."""
        said = _run("ip", "netns", "exec", self.site.space(name), "ss", "-Hltn")
        return sorted({int(line.split()[3].rpartition(":")[2]) for line in said.splitlines()})

    def _remove(self) -> None:
        for name in self.addresses:
            with suppress(RuntimeError):
                _ip("netns", "del", self.site.space(name))
            with suppress(RuntimeError):
                _ip("link", "del", self.site.space(name))
        with suppress(RuntimeError):
            _ip("link", "del", self.site.bridge)


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
