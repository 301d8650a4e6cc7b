"""What a few searches of random ids tell about a whole table: how many nodes it has, and how well they answer. Pure.

In a table of n nodes the distance to the j-th nearest of an id is j/n of the space, on average. So n is estimated by
the number of nodes found, divided by the part of the space in which they were found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ravnest.dht.contacts import ID_BITS, distance, key_id
from ravnest.dht.events import KeyFound
from ravnest.dht.node import Health
from ravnest.dht.search import NEAREST


@dataclass(frozen=True)
class Survey:
    """nodes: how many the table has, by estimate; exact where it has fewer than a search looks for. met: how many
    different ones have answered. complete: the part of the searches that ended before their deadline."""

    nodes: float
    met: int
    searches: int
    complete: float
    requests_per_search: float
    unanswered: float
    round_trip_s: float | None


def surveyed(found: Mapping[bytes, KeyFound], health: Health) -> Survey:
    """What the searches for random keys, and the state of the node that made them, tell. Needs one key at least."""
    met = {contact.id for one in found.values() for contact in one.nearest}
    counted, space = 0, 0.0
    for key, one in found.items():
        if len(one.nearest) == NEAREST:
            # The farthest of them marks the end of the part; the others lie inside.
            counted += NEAREST - 1
            space += distance(one.nearest[-1].id, key_id(key)) / 2.0**ID_BITS
    return Survey(
        nodes=max(counted / space, float(len(met))) if space else float(len(met)),
        met=len(met),
        searches=len(found),
        complete=sum(one.complete for one in found.values()) / len(found),
        requests_per_search=sum(one.requests for one in found.values()) / len(found),
        unanswered=health.requests_failed / health.requests_sent if health.requests_sent else 0.0,
        round_trip_s=health.round_trip_s,
    )
