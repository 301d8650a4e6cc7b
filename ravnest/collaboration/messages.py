"""What a backbone and its volunteers say to each other, and the pieces in which vectors travel.

In: fields. Out: typed messages, whose fields are bounded where they are decoded. Nothing here is pickled.
"""

from typing import Annotated, Literal

from ring_allreduce.transport import Codec, Count, Message, Name, Seconds, Text, at_most, between

PROTOCOL = 11
"""Both sides of a line have the same; others are told so, and the line ends."""

CODE_BYTES = 1 << 20
"""The largest file of a job's code that travels."""

MOST_CODE_FILES = 200
MOST_NAME = 64
MOST_TENSORS = 100_000
MOST_SPANS = 4096
MOST_HELPERS = 16
MOST_VISITORS = 512
"""Lines of volunteers to one backbone machine."""

Digest = Annotated[str, at_most(64)]
Bytes = Annotated[bytes, at_most(256)]
Ticket = Annotated[bytes, at_most(32)]
Place = Annotated[str, at_most(200)]
Part = Annotated[int, between(0, MOST_HELPERS)]
Norm = Annotated[float, between(0.0, 1e38)]
Rate = Annotated[float, between(0.0, 1e15)]
What = Literal["contribution", "average", "state"]
"""What a transfer is: a peer's gradient, the mean of a step, or weights and optimizer state."""


class ChallengeMessage(Message, frozen=True, kw_only=True, tag="challenge"):
    """The first word of a backbone on a new line: a volunteer signs the nonce.

    `term` and `step` say how far this backbone is: of two that serve, the lesser one stops (stand_by.py). One that
    does not serve stands by, and may add up a share (helping.py).
    """

    protocol: Count
    nonce: Bytes
    term: Count = 0
    step: Count = 0
    serves: bool = True


class HelloMessage(Message, frozen=True, kw_only=True, tag="hello"):
    """A volunteer says who it is. The signature is of `signed_part`, by the private key of `public_key` (Ed25519)."""

    protocol: Count
    name: Annotated[str, at_most(MOST_NAME)]
    public_key: Bytes
    signature: Bytes


class CodeMessage(Message, frozen=True, kw_only=True, tag="code"):
    """One file of the job's folder."""

    path: Annotated[str, at_most(200)]
    data: Annotated[bytes, at_most(CODE_BYTES)]


class WelcomeMessage(Message, frozen=True, kw_only=True, tag="welcome"):
    """All files of the code were sent. `session` numbers the volunteers' visits, and seeds the order of its samples.

    `signatures`: of the code, by moderators: each a public key and what it has signed (signatures.py).
    """

    signatures: Annotated[list[Annotated[bytes, at_most(96)]], at_most(16)]
    files: Count
    job: Annotated[str, at_most(200)]
    session: Count


class RefusedMessage(Message, frozen=True, kw_only=True, tag="refused"):
    """The line ends, and why. `may_return`: it is no fault of the volunteer's, which may open another one."""

    reason: Text
    may_return: bool = False


class JoinMessage(Message, frozen=True, kw_only=True, tag="join"):
    """A volunteer has agreed to the code and made the model. `form` says in words what it averages; `order` seeds the
    order of its samples, so that a micro-batch of it can be computed again."""

    form: Digest
    order: Annotated[str, at_most(128)]


class FollowMessage(Message, frozen=True, kw_only=True, tag="follow"):
    """Another backbone machine stands by, and is sent what volunteers are, and the ledger. `proof`: of stand_by.py.
    `listens`: where volunteers may reach it; empty: nowhere. `bytes_per_s`: of its link each way; 0: not stated."""

    proof: Bytes
    code: Digest
    form: Text
    listens: Place = ""
    bytes_per_s: Rate = 0.0


class LedgerMessage(Message, frozen=True, kw_only=True, tag="ledger"):
    """Lines of curve.jsonl, and the content of people.json, empty where it has not changed."""

    entry: Annotated[bytes, at_most(65536)]
    people: Annotated[bytes, at_most(CODE_BYTES)]


class TransferMessage(Message, frozen=True, kw_only=True, tag="transfer"):
    """A transfer begins: `tensors` vectors, behind which stand `samples` samples. A contribution names its
    micro-batches, as spans: the number of the first one, and how many follow each other. Where shares are added up it
    is a `part` of an `epoch`; epoch 0: all of it."""

    what: What
    step: Count
    tensors: Annotated[int, between(0, MOST_TENSORS)]
    samples: Count
    micro_batches: Annotated[tuple[tuple[Count, Count], ...], at_most(MOST_SPANS)] = ()
    epoch: Count = 0
    part: Part = 0


class TensorMessage(Message, frozen=True, kw_only=True, tag="tensor"):
    """The next vector of a transfer: its name, dtype and number of elements."""

    name: Name
    dtype: Annotated[str, at_most(16)]
    elements: Count


class PieceMessage(Message, frozen=True, kw_only=True, tag="piece"):
    """The next elements of a vector, as tensors in the form on the wire."""

    start: Count
    stop: Count


class GotMessage(Message, frozen=True, kw_only=True, tag="got"):
    """So many pieces were taken since the line was opened: as many more may be sent."""

    pieces: Count


class ProgressMessage(Message, frozen=True, kw_only=True, tag="progress"):
    """How far a volunteer is in a step. `loss`: the mean over the samples since the last report, if there were any."""

    step: Count
    samples: Count
    samples_per_s: Annotated[float, between(0.0, 1e12)]
    micro_batch: Annotated[int, between(1, 1 << 40)]
    every_s: Seconds
    loss: Annotated[float, between(-1e30, 1e30)] | None
    loss_samples: Count


class OpenMessage(Message, frozen=True, kw_only=True, tag="open"):
    """Send what there is as soon as it is `stop` samples. `most_next`: how many may be computed for the next step
    before that one is opened, where steps are delayed. `epoch`: by whose ranges it is sent; 0: all to the backbone."""

    step: Count
    stop: Count
    most_next: Count | None = None
    epoch: Count = 0


class AliveMessage(Message, frozen=True, kw_only=True, tag="alive"):
    """The backbone lives, while there is nothing else to say. It has made `step` steps.

    `epoch`: a helper answers a ticket of this one; 0: it answers none. `counted`: so many samples are counted for the
    volunteer's key by now; None: nobody says so.
    """

    step: Count
    epoch: Count = 0
    counted: Count | None = None


class CollectMessage(Message, frozen=True, kw_only=True, tag="collect"):
    """Go on computing for the same step."""

    step: Count


class EndMessage(Message, frozen=True, kw_only=True, tag="end"):
    """The collaboration has come to its end. Who is told says the same back, as its last word; a volunteer that leaves
    before says it by itself. `counted`: as above."""

    step: Count
    counted: Count | None = None


class SharesMessage(Message, frozen=True, kw_only=True, tag="shares"):
    """Who adds up which range of the gradient in an epoch. The backbone has the elements before bounds[0], and the
    machine at addresses[p] those from bounds[p] to bounds[p + 1]. The ticket is the volunteer's own."""

    epoch: Count
    bounds: Annotated[tuple[Count, ...], at_most(MOST_HELPERS + 1)]
    addresses: Annotated[tuple[Place, ...], at_most(MOST_HELPERS)]
    ticket: Ticket


class TicketMessage(Message, frozen=True, kw_only=True, tag="ticket"):
    """A volunteer's first word to a helper, which answers by an AliveMessage."""

    ticket: Ticket


class ReachedMessage(Message, frozen=True, kw_only=True, tag="reached"):
    """A volunteer reaches all helpers of an epoch, or not the one that has the part `lost`."""

    epoch: Count
    lost: Part = 0


class MissingMessage(Message, frozen=True, kw_only=True, tag="missing"):
    """A volunteer lacks a part of an average that was made."""

    step: Count
    part: Part


class MadeMessage(Message, frozen=True, kw_only=True, tag="made"):
    """All parts of the average of a step are made: it may be applied."""

    step: Count


class WithoutMessage(Message, frozen=True, kw_only=True, tag="without"):
    """An epoch is over. What was sent by its ranges for a step from `step` on is to be sent again, whole."""

    epoch: Count
    step: Count


class TakeMessage(Message, frozen=True, kw_only=True, tag="take"):
    """A volunteer is to take the state at another backbone machine, of `step` or a later one. All averages from `step`
    on come on this line."""

    address: Place
    ticket: Ticket
    step: Count


class GiveMessage(Message, frozen=True, kw_only=True, tag="give"):
    """Who brings this ticket is the volunteer of this visit, and takes the state of `step` or a later one. An empty
    ticket: it needs none any more."""

    visit: Count
    ticket: Ticket
    step: Count


class TookMessage(Message, frozen=True, kw_only=True, tag="took"):
    """A volunteer holds the state of `step`, from where it was to take it; None: it got none there, and takes the
    backbone's own. `slow`: because it holds too many averages meanwhile, which is no fault of that machine's."""

    step: Count | None
    slow: bool = False


class HelpMessage(Message, frozen=True, kw_only=True, tag="help"):
    """A machine that stands by adds up a part, from now on."""

    epoch: Count
    part: Part
    bounds: Annotated[tuple[Count, ...], at_most(MOST_HELPERS + 1)]


class AdmitMessage(Message, frozen=True, kw_only=True, tag="admit"):
    """Who brings this ticket is the volunteer of this visit. An empty one: that volunteer has left."""

    visit: Count
    ticket: Ticket


class PartMessage(Message, frozen=True, kw_only=True, tag="part"):
    """A helper has its part of a volunteer's contribution of that number in the epoch, so far from the last mean; or
    refuses it, and why."""

    epoch: Count
    visit: Count
    number: Count
    step: Count
    samples: Count
    deviation: Norm
    refused: Text = ""


class RelayMessage(Message, frozen=True, kw_only=True, tag="relay"):
    """The part of a contribution that follows is the volunteer's of this visit, which does not reach the helper."""

    epoch: Count
    visit: Count


class CountMessage(Message, frozen=True, kw_only=True, tag="count"):
    """Add the volunteer's contribution of that number in the epoch, scaled; or forget it."""

    epoch: Count
    visit: Count
    number: Count
    scale: Annotated[float, between(0.0, 1.0)] | None


class MakeMeanMessage(Message, frozen=True, kw_only=True, tag="make_mean"):
    """Send the mean of what was added to the backbone, and to the volunteers of these visits."""

    epoch: Count
    step: Count
    visits: Annotated[tuple[Count, ...], at_most(MOST_VISITORS)]


class RatesMessage(Message, frozen=True, kw_only=True, tag="rates"):
    """All volunteers have taken a helper's means up to this step. What it has measured of its link; 0: nothing yet."""

    step: Count
    up_bytes_per_s: Rate
    down_bytes_per_s: Rate


COLLABORATION = Codec(
    [
        ChallengeMessage,
        HelloMessage,
        CodeMessage,
        WelcomeMessage,
        RefusedMessage,
        JoinMessage,
        FollowMessage,
        LedgerMessage,
        TransferMessage,
        TensorMessage,
        PieceMessage,
        GotMessage,
        ProgressMessage,
        OpenMessage,
        AliveMessage,
        CollectMessage,
        EndMessage,
        SharesMessage,
        TicketMessage,
        ReachedMessage,
        MissingMessage,
        MadeMessage,
        WithoutMessage,
        TakeMessage,
        GiveMessage,
        TookMessage,
        HelpMessage,
        AdmitMessage,
        PartMessage,
        RelayMessage,
        CountMessage,
        MakeMeanMessage,
        RatesMessage,
    ]
)


def signed_part(nonce: bytes, backbone_key: str, name: str) -> bytes:
    """What a volunteer signs: that it, under this name, answers this nonce of the backbone with this Curve key."""
    return b"ravnest collaboration 1 " + nonce + backbone_key.encode() + name.encode()
