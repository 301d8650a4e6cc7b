"""Who may join a group: what a Join from the network has to say before anyone uses it. Knows no socket."""

from collections.abc import Collection

from ring_allreduce.control import Join
from ring_allreduce.errors import InvalidInput
from ring_allreduce.transport.endpoint import PeerAddress

MAX_NAME_CHARACTERS = 100
"""All names and addresses of a group travel in one control frame."""

COMPLETE = "the group is complete"


def why_not(join: Join, size: int, members: Collection[str]) -> str | None:
    """Why `join` is refused by a group of `size` that has `members` now; None when it is welcome."""
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
    return None
