"""Averaging among processes without a run: join a group, average lists of tensors, leave.

    with Group.join("127.0.0.1:29500", name="desk", size=3) as group:
        group.average([p.data for p in model.parameters()], weight=samples)

One process serves a `Rendezvous`; the numbers travel between the members themselves. A member that is lost is left out
and the others go on (or, when told so, fail). Every wait has a deadline. A group belongs to the thread that joined.
"""

import math
from collections.abc import Iterable, Mapping
from types import TracebackType

from torch import Tensor

from ring_allreduce.errors import InvalidInput
from ring_allreduce.group.admission import MAX_NAME_CHARACTERS, require_size
from ring_allreduce.group.calls import Call, flatten, listed
from ring_allreduce.group.control_messages import RING
from ring_allreduce.group.member import GroupMember, GroupOptions, OnLoss
from ring_allreduce.ring.events import LEAST_WEIGHT, MOST_WEIGHT, weight_fits
from ring_allreduce.ring.statistics import RingStatistics
from ring_allreduce.ring.wire_forms import WIRES, Wire, check_wire
from ring_allreduce.transport.endpoint import PeerAddress
from ring_allreduce.transport.security.keys import Keys


class Group:
    """Processes that average together. Made by `Group.join`."""

    def __init__(self, options: GroupOptions, rendezvous: tuple[str, int]) -> None:
        """Use `Group.join`."""
        self.name = options.name
        self._options = options
        self._member = GroupMember(options, rendezvous)

    @classmethod
    def join(
        cls,
        rendezvous: str,
        *,
        name: str,
        size: int,
        host: str = "127.0.0.1",
        timeout_s: float = 60.0,
        wire: Wire = "exact",
        on_loss: OnLoss = "continue",
        keys: Keys | None = None,
    ) -> "Group":
        """Join at `rendezvous` ("host:port"): wait until all `size` members have; or, when they have met before and a
        place is free, until those who are left have called average() once more.

        `host`: this machine's address as the others reach it. `timeout_s`: the deadline of joining and, unless told
        otherwise, of each average. `wire`: how numbers travel, the same at all members. `on_loss`: "fail" ends the
        group when any member is lost. `keys`: encrypt everything; their allow-list holds all members and "rendezvous",
        and all of them have keys. Raises InvalidInput, DeadlinePassed, PeerLost, TransportError.
        """
        where = host_and_port(rendezvous)
        require_size(size)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
            raise InvalidInput(f"a name has 1 to {MAX_NAME_CHARACTERS} characters, got {name!r}")
        if not isinstance(host, str) or not host:
            raise InvalidInput(f"host is this machine's address as the others reach it, got {host!r}")
        if wire not in WIRES or on_loss not in ("continue", "fail"):
            raise InvalidInput(f'wire is one of {WIRES}, on_loss "continue" or "fail"; got {wire!r}, {on_loss!r}')
        _require_time(timeout_s)
        if keys is not None:
            keys.require_own_name(name)
        return cls(GroupOptions(name, size, host, timeout_s, wire, on_loss, keys), where)

    @property
    def members(self) -> tuple[str, ...]:
        """Return who takes part, this member included, as this one last heard: in join() or in the last average()."""
        return self._member.members

    @property
    def epoch(self) -> int:
        """Return the epoch of membership; it rises each time that a member is left out or joins."""
        return self._member.epoch

    @property
    def rounds(self) -> int:
        """Return how many rounds the group has committed, those before this member joined among them."""
        return self._member.rounds

    def average(self, tensors: Iterable[Tensor], *, weight: float = 1.0, timeout_s: float | None = None) -> float:
        """Replace each tensor's content by its weighted mean over all members; returns the total weight.

        All members call it, as often and with the same shapes. Computed in float32, or float64 when a tensor is. A
        member that is lost is left out, and the mean is that of the others; so is one that has not called within
        `timeout_s` (with on_loss="fail" it is PeerLost instead, which names that one). After twice that time, or six
        signs of life more when that is later (with on_loss="fail" always), it is DeadlinePassed.

        A member that joined later and wants what the others have calls it with weight 0 first.

        Raises LeftOut when the others go on without this member, ContributionRefused for what cannot be averaged,
        PeerLost, DeadlinePassed: the tensors are then unchanged, and the group is closed. Raises InvalidInput for what
        cannot be tried at all; the group is then as it was before.
        """
        if self._member.closed:
            raise InvalidInput("this group was closed")
        chosen = listed(tensors)
        vector = flatten(chosen, self._member.flat)
        check_wire(self._options.wire, vector.dtype)
        limit_s = self._options.timeout_s if timeout_s is None else timeout_s
        _require_time(limit_s)
        return self._member.run(Call(chosen, vector, weight_of(weight), limit_s))

    def statistics(self) -> Mapping[str, RingStatistics]:
        """Ring → what its rounds cost this member since it joined: bytes, seconds, and the rate of each hop to it."""
        return {RING: self._member.statistics()}

    def close(self) -> None:
        """Leave the group. Idempotent; also done at the end of a `with` block."""
        self._member.close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def host_and_port(rendezvous: object) -> tuple[str, int]:
    """Return the host and port of "host:port"; an IPv6 address may stand in brackets. Raises InvalidInput."""
    host, _, port = rendezvous.rpartition(":") if isinstance(rendezvous, str) else ("", "", "")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        number = int(port) if port.isascii() and port.isdecimal() else 0
        PeerAddress(host, number, number).require_usable("rendezvous")
    except InvalidInput:
        raise InvalidInput(f'a rendezvous is "host:port", got {rendezvous!r}') from None
    return host, number


def weight_of(weight: object) -> float:
    """Return a plain float of any kind of number: a bool, numpy's scalars and a tensor of one number are numbers, too.

    Raises InvalidInput for anything else, and for what is out of bounds.
    """
    try:
        number = math.nan if isinstance(weight, str) else float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not weight_fits(number):
        raise InvalidInput(f"a weight is 0, or a number from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, got {weight!r}")
    return number


def _require_time(timeout_s: object) -> None:
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
        raise InvalidInput(f"a time-out must be finite and more than 0 s, got {timeout_s!r}")
