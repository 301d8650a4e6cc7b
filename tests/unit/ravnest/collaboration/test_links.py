import math

import pytest

from ravnest.collaboration.links import Collaboration, PeerLinks
from ravnest.errors import InvalidInput


def peer(name: str, rate: float = 10.0, samples: float = 1.0) -> PeerLinks:
    return PeerLinks(name, rate, rate, samples)


def test_a_pair_carries_the_least_of_both_links_and_its_own_limit() -> None:
    given = Collaboration((peer("a", 10), peer("b", 4)), 1.0, 1.0, {("b", "a"): 2.0})
    assert given.pair_limit(0, 1) == 4.0
    assert given.pair_limit(1, 0) == 2.0


@pytest.mark.parametrize(
    ("peers", "pairs", "key"),
    [
        ((), {}, "peers"),
        ((peer("a"), peer("a")), {}, "peers"),
        ((peer("a", math.inf),), {}, "up_bytes_per_s"),
        ((peer("a", samples=-1.0),), {}, "samples_per_s"),
        ((peer("a"),), {("a", "b"): 1.0}, "pairs"),
        ((peer("a"), peer("b")), {("a", "b"): math.nan}, "pairs"),
    ],
)
def test_what_no_collaboration_can_be_is_refused(
    peers: tuple[PeerLinks, ...], pairs: dict[tuple[str, str], float], key: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        Collaboration(peers, 1.0, 1.0, pairs)
    assert refused.value.key == key
