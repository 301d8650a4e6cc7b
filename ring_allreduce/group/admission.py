"""Rules that decide who may join a group: what a JoinMessage from the network has to say before anyone uses it.

In: the message, the members there are, and the rendezvous's allow-list. Out: the reason of a refusal, or None. No
socket is used.
"""

import ipaddress
from collections.abc import Mapping

from ring_allreduce.errors import InvalidInput
from ring_allreduce.group.control_messages import MOST_MEMBERS, JoinMessage
from ring_allreduce.transport.endpoint import PeerAddress

MAX_NAME_CHARACTERS = 100
"""The longest name, since all names and addresses of a group travel in one control frame."""

COMPLETE = "the group is complete"


def require_size(size: object) -> None:
    """Raise InvalidInput for what cannot be the size of a group."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_MEMBERS:
        raise InvalidInput(f"a group's size is a whole number from 1 to {MOST_MEMBERS}, got {size!r}")


def why_not(
    join: JoinMessage, size: int, members: Mapping[str, JoinMessage], allowed: Mapping[str, str] | None = None
) -> str | None:
    """Return why `join` is refused by a group of `size` that has `members` now, or None when it is welcome.

    `allowed`: the rendezvous's allow-list, as a JoinMessage has it; None without keys.
    """
    if join.size != size:
        return f"it expects {join.size} members, the rendezvous {size}"
    if len(members) >= size:
        return COMPLETE
    if not 0 < len(join.name) <= MAX_NAME_CHARACTERS:
        return f"a name has 1 to {MAX_NAME_CHARACTERS} characters"
    if join.name in members:
        return "a member has that name"
    where = join.address
    try:
        PeerAddress(where.host, where.pipeline_port, where.bulk_port).require_usable(join.name)
    except InvalidInput as error:
        return str(error)
    return _unreachable(join, members) or (None if allowed is None else _other_list(join.allowed, allowed))


def is_loopback(host: str) -> bool:
    """Say whether `host` means the machine that uses it, whichever that is."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name


def _unreachable(join: JoinMessage, members: Mapping[str, JoinMessage]) -> str | None:
    """Return why some member could not connect to who joins, or it to that one: what each says of its machine is
    compared.
    """
    local = f"its host {join.address.host!r} means each machine itself"
    advice = "give join() host=, this machine's address as the others reach it"
    if is_loopback(join.address.host) and join.comes_from:
        return f"{local}, and the rendezvous is on another one: {advice}, such as {join.comes_from}"
    for name, member in members.items():
        if is_loopback(join.address.host) and member.comes_from:
            return f"{local}, and {name!r} is on another one, at {member.comes_from}: {advice}"
        if is_loopback(member.address.host) and join.comes_from:
            return (
                f"it cannot reach {name!r}, which gave {member.address.host!r} as its host and is on another machine: "
                f"let {name!r} join with host=, its address as the others reach it"
            )
    return None


def _other_list(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """Return the difference between two allow-lists, in words, or None if there is none."""
    differences = {
        "lacks": sorted(ours.keys() - theirs.keys()),
        "has besides": sorted(theirs.keys() - ours.keys()),
        "has another key for": sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]),
    }
    said = [f"{what} {', '.join(map(repr, names[:3]))}" for what, names in differences.items() if names]
    if not said:
        return None
    return f"its allow-list {', '.join(said)}, compared with the rendezvous's: all members need the same list"
