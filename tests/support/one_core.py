"""One node's core whose requests a test answers by hand."""

from collections.abc import Sequence

from ravnest.dht.contacts import Contact
from ravnest.dht.core import Core
from ravnest.dht.events import Instruction, Send
from ravnest.dht.messages import Find, Found, Store, StoreAnswer
from ravnest.dht.records import Record, Rules
from ravnest.dht.store import Stored
from ravnest.simulator.hash_table import ChecksumIdentity, Drawn

IP = bytes([10, 0, 0, 7])


class OneCore:
    """Knows the contacts that it is given, and remembers what it was asked to send."""

    def __init__(self, contacts: Sequence[Contact]) -> None:
        self.core = Core(ChecksumIdentity("me"), Drawn("me").bytes, listens=True, rules=Rules(), limits=None)
        for contact in contacts:
            self.core.table.add(contact, 0.0)
        self.others: list[Instruction] = []

    def sent(self) -> list[tuple[Contact, Find | Store]]:
        """The searches' requests since the last call, with the contact that each goes to: its port is its number."""
        found = []
        for one in self.core.out:
            if isinstance(one, Send) and isinstance(one.message, Find | Store):
                found.append((contact(one.address.port), one.message))
            elif not isinstance(one, Send):
                self.others.append(one)
        self.core.out.clear()
        return found

    def found(
        self,
        asked: tuple[Contact, Find | Store],
        *,
        records: Sequence[Record] = (),
        total: int | None = None,
        contacts: Sequence[Contact] = (),
        sender: Contact | None = None,
        now_s: float = 0.1,
    ) -> None:
        """The answer of the contact that was asked."""
        to, message = asked
        answer = Found(
            nonce=message.nonce,
            sender=(sender or to).id,
            token=bytes(8),
            total=len(records) if total is None else total,
            copies=False,
            records=tuple(records),
            contacts=tuple(contacts),
        )
        assert self.core.requests.arrived(to.address, answer, now_s)

    def stored(self, asked: tuple[Contact, Find | Store], *results: Stored, now_s: float = 0.2) -> None:
        to, message = asked
        assert self.core.requests.arrived(
            to.address, StoreAnswer(nonce=message.nonce, sender=to.id, results=results), now_s
        )

    def pass_all_time(self) -> float:
        """Let nobody answer any more. Returns the time at the end."""
        now_s = 0.0
        while (wakes_s := self.core.wakes_s) is not None:
            now_s = wakes_s
            self.core.pass_time(now_s)
        return now_s


def contact(number: int) -> Contact:
    """Number n is at the distance n from the id 0."""
    return Contact(number.to_bytes(20, "big"), IP, number)
