"""One volunteer as the backbone sees it: who it is, what is on its way to it, and what comes from it.

In: messages of its line. Out: contributions that are whole and valid, or why not. A volunteer proves its public key by
signing the backbone's nonce; what it says before is nothing but that.
"""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ravnest.collaboration.messages import (
    PROTOCOL,
    FollowMessage,
    HelloMessage,
    PieceMessage,
    TensorMessage,
    TransferMessage,
    signed_part,
)
from ravnest.collaboration.packing import Packing
from ravnest.collaboration.people import Person
from ravnest.collaboration.stand_by import proof
from ravnest.collaboration.transfers import Incoming, Outgoing, Said
from ravnest.dht import KeyIdentity
from ravnest.errors import InvalidInput

NONCE_BYTES = 32

HEAR_S = 20.0
"""Who was told that training has ended says so at once, or after its micro-batch. It need not be waited for then: what
was sent lies in its process."""

END_SIGN_IN_S = 10.0
"""At the end so long is waited for who has come and not joined yet: one that comes back needs no longer. Who has not
even said who it is by so long after the end began is waited for no more, however late it came."""


@dataclass
class Visitor:
    """The state of one line. It belongs to the backbone's thread."""

    line: int
    opened_s: float
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))
    name: str = ""
    person: Person | None = None
    """None until it has proved who it is."""
    follows: bool = False
    """It is another backbone machine, which stands by: it is sent what volunteers are, and gives nothing."""
    agreed: bool = False
    """It has agreed to the code and has made the model."""
    order: str = ""
    """Seeds the order of its samples."""
    joined: bool = False
    """It is sent the state, and every average from then on."""
    takes_state: bool = False
    """It is sent the state, some of which still waits."""
    takes_elsewhere: bool = False
    """It takes the state from another backbone machine, and has not said yet that it has it."""
    caught_up: bool = False
    """Since it joined, it has once had the state and every average."""
    outgoing: Outgoing = field(default_factory=Outgoing)
    rated: bool = False
    """It has said how fast it is, and was answered."""
    told_s: float | None = None
    """When it was told that training has ended."""
    incoming: Incoming | None = None
    packing: Packing | None = None
    """How that travels."""
    said: list[Said] | None = None
    """Its messages so far, where it is handed on."""
    gave: bool = False
    """A contribution of it has counted."""
    taken: int = 0
    """Pieces that have come from it."""

    @property
    def peer(self) -> str:
        """Its name in the step's state machine: no other visit has it."""
        return f"{self.name}#{self.line}"

    @property
    def counted(self) -> int | None:
        """The samples that are counted for its key."""
        return None if self.person is None else self.person.samples

    @property
    def holds_state(self) -> bool:
        """Whether it has joined and was sent the state."""
        return self.joined and not self.takes_state and not self.takes_elsewhere

    def is_awaited(self, now_s: float, ended_s: float) -> bool:
        """Whether the end of training, which began at `ended_s`, waits for it."""
        if self.told_s is not None:
            return now_s < self.told_s + HEAR_S
        since_s = self.opened_s if self.name else min(self.opened_s, ended_s)
        return self.agreed or now_s < since_s + END_SIGN_IN_S

    def prove(self, hello: HelloMessage, backbone_public: str, verifier: KeyIdentity) -> str:
        """Take its name and return its public key in hexadecimal digits. Raises InvalidInput."""
        if hello.protocol != PROTOCOL:
            raise InvalidInput(f"this backbone speaks version {PROTOCOL} of the protocol, not {hello.protocol}")
        if not hello.name.isprintable() or not hello.name.strip() or "#" in hello.name:
            raise InvalidInput("a name has printable characters, and no #")
        if not verifier.verify(hello.public_key, signed_part(self.nonce, backbone_public, hello.name), hello.signature):
            raise InvalidInput("the signature is not of this public key")
        self.name = hello.name
        return hello.public_key.hex()

    def prove_backbone(self, message: FollowMessage, secret: str, code: str, form: str) -> None:
        """Take it for another backbone machine, which knows the backbone's secret. Raises InvalidInput."""
        if not hmac.compare_digest(message.proof, proof(secret, self.nonce)):
            raise InvalidInput("it does not know this backbone's secret")
        if message.code != code or message.form != form:
            raise InvalidInput("its job's folder holds other code than this backbone's")
        self.name, self.follows, self.agreed = "another backbone", True, True

    def begin(self, message: TransferMessage, packing: Packing, most_samples: int, *, handed_on: bool = False) -> None:
        """A contribution begins. Raises InvalidInput where it cannot be one."""
        self.incoming = None
        if message.what != "contribution" or not 0 < message.samples <= most_samples:
            raise InvalidInput(f"a {message.what} of {message.samples} samples")
        self.incoming, self.packing = packing.incoming(message), packing
        self.said = [(message, ())] if handed_on else None

    def take(self, message: TensorMessage | PieceMessage, tensors: Sequence[Tensor]) -> Incoming | None:
        """The next part of it; returns the contribution when it is whole. Raises InvalidInput, and forgets the rest."""
        self.taken += isinstance(message, PieceMessage)
        incoming = self.incoming
        if incoming is None:
            return None  # the rest of what was refused
        try:
            if self.said is not None:
                self.said.append((message, tuple(tensors)))
            if isinstance(message, TensorMessage):
                incoming.take_tensor(message)
            else:
                incoming.take_piece(message, tensors)
            if incoming.whole and self.packing is not None:
                incoming.vectors = self.packing.whole(incoming.vectors, float(incoming.samples))
        except InvalidInput:
            self.incoming = None
            raise
        if not incoming.whole:
            return None
        self.incoming = None
        return incoming
