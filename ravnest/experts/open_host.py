"""Opens a host of experts: its identity, its token, its node of the table and its endpoint, and how many it can hold.

In: what the command line says. Out: an `ExpertHost` that is ready to serve, and what to close after it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ravnest.dht import new_identity, read_identity
from ravnest.errors import InvalidInput, naming
from ravnest.experts.config import ExpertsConfig, build_expert
from ravnest.experts.expert import HostedExpert, NotFinite
from ravnest.experts.expert_files import ExpertFiles
from ravnest.experts.grid import member_name
from ravnest.experts.host import LOOK_S, ExpertHost
from ravnest.experts.kept_copies import KeptCopies
from ravnest.experts.known_members import local_token, members_endpoint
from ravnest.experts.table_thread import TableThread
from ravnest.free_memory import free_bytes
from ravnest.training.optimizer_memory import state_bytes_per_parameter_byte
from ring_allreduce import TransportError
from ring_allreduce.transport import TOKEN_BYTES

MEMORY_PART = 0.5
"""Of the free memory, what experts may take. The rest is for batches, messages and others."""

COPY_SLACK, COPY_SLACK_BYTES = 2, 1 << 16
"""A copy of another host's expert may have so many times the bytes that are counted for one, and so many more: counters
and small tensors of optimizers are not counted, and an optimizer may keep more of small matrices than of large ones."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")
KEY_FILE = "host.key"


def shared_token(path: Path | None, host: str, name: str) -> bytes:
    """The token that all members of a grid show each other: from a file that each of them has.

    The file is made where there is none. Without a file, only members on this machine can take part, and whoever is on
    this machine. Raises InvalidInput.
    """
    if path is None:
        if host not in LOOPBACK:
            message = f"expected a file that all members share, since others can reach {host}"
            raise InvalidInput(message, key="token_file", hint="the file is made where there is none; copy it")
        return local_token(name)
    if not path.exists():
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(TOKEN_BYTES) + "\n")
    try:
        token = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot be read as a token: {error}", path=str(path)) from error
    if len(token) != TOKEN_BYTES:
        raise InvalidInput(f"expected {2 * TOKEN_BYTES} hexadecimal digits", path=str(path))
    return token


@dataclass(frozen=True)
class Room:
    """What fits into a part of this machine's memory."""

    budget_bytes: int
    state_bytes: int
    """Of one expert: its weights, its optimizer's state and its buffers."""
    gradient_bytes: int
    places: int

    @property
    def experts(self) -> int:
        """How many experts fit, each with its gradient and with a copy of another host's; at most the whole grid."""
        return min(self.budget_bytes // (2 * self.state_bytes + self.gradient_bytes), self.places)

    def copies(self, experts: int) -> int:
        """How many copies fit beside so many experts; as many as those at least, since they count on others, too."""
        left = self.budget_bytes - experts * (self.state_bytes + self.gradient_bytes)
        return min(max(left // self.state_bytes, experts), self.places)


def room_for(config: ExpertsConfig, search_dirs: Sequence[Path], path: str | None, free: int) -> Room:
    """What MEMORY_PART of `free` bytes holds. Raises InvalidInput when that is not one expert."""
    first = build_expert(config, (0,) * len(config.grid), search_dirs, path)
    weights = sum(one.nbytes for one in first.parameters())
    state = int(weights * (1 + state_bytes_per_parameter_byte(config.optimizer)))
    buffers = sum(one.nbytes for one in first.buffers())
    room = Room(int(free * MEMORY_PART), state + buffers, weights, len(config.places))
    if not room.experts:
        each = (2 * room.state_bytes + room.gradient_bytes) / 2**20
        raise InvalidInput(f"one expert takes {each:.0f} MiB, and {free / 2**20:.0f} MiB are free", path=path)
    return room


def require_same_kind(config: ExpertsConfig, folder: Path, search_dirs: Sequence[Path], path: str | None) -> None:
    """Raises InvalidInput, which names the file, where a folder's experts are not of the kind that the config makes:
    they would be begun anew, and overwritten. They are all alike, so one of them is tried."""
    files = ExpertFiles(folder, config.places)
    for expert in list(files.stored())[:1]:
        state, kept = files.read(expert)
        made = HostedExpert(build_expert(config, expert, search_dirs, path), config)
        with naming(files.path(expert)):
            made.restore(state, kept)


def warm_up(config: ExpertsConfig, search_dirs: Sequence[Path], path: str | None) -> None:
    """Make one update of an expert that is thrown away. The first step of an optimizer loads parts of torch for a
    second or two, for which the first caller would otherwise wait beyond its deadline."""
    tried = HostedExpert(build_expert(config, (0,) * len(config.grid), search_dirs, path), config)
    with contextlib.suppress(NotFinite):  # of a module that has no gradient there: its first update is late
        tried.backward(torch.ones(1, *config.input_shape), torch.zeros(1, *config.out_shape), 1)


@contextlib.contextmanager
def opened_host(
    config: ExpertsConfig,
    peers: Sequence[str],
    *,
    host: str = "127.0.0.1",
    table_port: int = 0,
    label: str = "host",
    token_file: Path | None = None,
    experts: Sequence[str] = (),
    most_experts: int | None = None,
    folder: Path | None = None,
    search_dirs: Sequence[Path] = (),
    path: str | None = None,
    outwards_only: bool = False,
    look_s: float = LOOK_S,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[ExpertHost]:
    """A host that has joined the table through any of `peers`, or has begun one where there are none.

    Arguments:
        host: this machine's address as callers and other hosts reach it.
        experts: patterns of experts to claim as soon as nobody else does (`0.*`).
        most_experts: that it claims; as many as half of the free memory holds without it.
        outwards_only: listen nowhere, as behind a router: it opens the connections to callers and hosts that listen.
        folder: for checkpoints, and for the host's private key, which makes it the same host after a restart.

    For other arguments see ExpertHost. Raises InvalidInput, TableUnreachable.
    """
    token = shared_token(token_file, host, config.name)
    try:
        wanted = [one for pattern in experts for one in config.places.matching(pattern)]
    except InvalidInput as error:
        raise InvalidInput(error.message, key="experts") from error
    room = room_for(config, search_dirs, path, free_bytes())
    most = room.experts if most_experts is None else most_experts
    if most > room.experts:
        report(f"{most} experts may take more than half of the free memory, which holds {room.experts}")
    identity = new_identity()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / KEY_FILE).exists():
            identity = read_identity(folder / KEY_FILE)
        else:
            identity.write(folder / KEY_FILE)
        require_same_kind(config, folder, search_dirs, path)
    warm_up(config, search_dirs, path)
    name = member_name(label, identity.public_key)
    shown = f"[{host}]" if ":" in host else host
    with contextlib.ExitStack() as stack:
        try:
            endpoint = members_endpoint(name, identity, token, config.name, host, outwards_only=outwards_only)
        except TransportError as error:
            hint = "give an address that this machine has; behind a router that has it, only open connections outwards"
            raise InvalidInput(str(error), key="host", hint=hint) from error
        stack.callback(endpoint.close)
        table = TableThread([f"{shown}:{table_port}"], peers, identity, outwards_only=outwards_only)
        stack.callback(table.close)
        place = "only opens connections" if outwards_only else f"listens at {shown}:{endpoint.address.pipeline_port}"
        report(f"{name} {place}, its node of the table at {table.addresses[0]}")
        yield ExpertHost(
            config,
            endpoint,
            table,
            token=token,
            most_experts=most,
            copies=KeptCopies(room.copies(most), COPY_SLACK * room.state_bytes + COPY_SLACK_BYTES),
            wanted=wanted,
            folder=folder,
            search_dirs=search_dirs,
            path=path,
            look_s=look_s,
            report=report,
        )
