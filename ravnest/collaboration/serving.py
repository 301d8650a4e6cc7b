"""One backbone machine, from its start to its end: it serves, or it stands by while another one does.

In: a state, where it listens, and the addresses of the other backbone machines. Out: what has come of all.
"""

import time
from collections.abc import Callable

from ravnest.collaboration.backbone import Backbone
from ravnest.collaboration.backbone_state import BackboneResult, BackboneState
from ravnest.collaboration.stand_by import StandBy
from ravnest.errors import RavnestError


def serve_or_stand_by(
    state: BackboneState,
    *,
    listen: str,
    addresses: tuple[str, ...],
    others: tuple[str, ...] = (),
    serves_first: bool,
    bytes_per_s: float = 0.0,
    stop: Callable[[], bool] = lambda: False,
    ready: Callable[[Backbone], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> BackboneResult:
    """Work until training has ended, or `stop` says so.

    `addresses`: HOST:PORT where this machine is found. `others`: of the other backbone machines. `serves_first`: begin
    to serve without looking for them, as a new collaboration does. `bytes_per_s`: of this machine's link each way; 0:
    it is measured. `ready` is called whenever this machine begins to serve. Raises InvalidInput, TransportError.
    """
    if others and not serves_first:
        found = _stood_by(state, listen, addresses, others, bytes_per_s, stop, tell, now, sleep)
        if found is not None:
            return found
    while True:
        try:
            backbone = Backbone(
                state, listen=listen, addresses=addresses, others=others, bytes_per_s=bytes_per_s, tell=tell, now=now
            )
        except RavnestError:  # its port is taken, say: the same start is to work later
            if serves_first:
                state.store.forget()
            raise
        serves_first = False
        state.serves()
        with backbone:
            ready(backbone)
            result = backbone.serve(stop)
        if not result.stepped_down:
            return result
        tell("another backbone machine serves and is further: this one stands by")
        found = _stood_by(state, listen, addresses, others, bytes_per_s, stop, tell, now, sleep)
        if found is not None:
            return found


def _stood_by(
    state: BackboneState,
    listen: str,
    addresses: tuple[str, ...],
    others: tuple[str, ...],
    bytes_per_s: float,
    stop: Callable[[], bool],
    tell: Callable[[str], None],
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> BackboneResult | None:
    """Stand by; None where this machine has to serve then."""
    place = sum(other < min(addresses) for other in others)
    standing_by = StandBy(
        state,
        state.invitation((*addresses, *others)),
        others,
        place=place,
        listen=listen,
        found_at=addresses[0],
        bytes_per_s=bytes_per_s,
        tell=tell,
        now=now,
        sleep=sleep,
    )
    found = standing_by.follow(stop)
    if found == "serve":
        return None
    if state.holds_state:  # else what it has is a state of nothing, by which it would take over one day
        state.save()
    weights = state.save_weights() if found == "ended" else None
    return BackboneResult(state.trainer.step, weights, state.trainer.weights_hash())
