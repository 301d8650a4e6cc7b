"""A backbone machine that does not serve: it follows the one that does, and takes over when that one is gone.

In: the addresses of the other backbone machines, and the secrets that all of them share. Out: a state that has applied
every average that was made, and the moment at which this machine has to serve. It follows over a line like a
volunteer's: it proves that it knows the backbone's secret, takes the state and then every average, the curve and the
people, and computes nothing. It may add up a share of the gradient (helping.py): for that it listens where it would
serve, and says at once that it does not.

Whose word counts where two serve is said by (term, step). A machine that takes over raises the term by one; who hears
of a greater one stops to serve and follows. A machine that holds no state yet never takes over.
"""

import hashlib
import hmac
from collections.abc import Callable
from contextlib import closing
from typing import Literal

from torch import Tensor

from ravnest.collaboration.average_parts import AverageParts
from ravnest.collaboration.backbone_state import BackboneState
from ravnest.collaboration.giving import Giving
from ravnest.collaboration.helping import Helping
from ravnest.collaboration.invitation import BACKBONE, Invitation, endpoint, listening_at
from ravnest.collaboration.messages import (
    COLLABORATION,
    PROTOCOL,
    AdmitMessage,
    AliveMessage,
    ChallengeMessage,
    CollectMessage,
    CountMessage,
    EndMessage,
    FollowMessage,
    GiveMessage,
    GotMessage,
    HelpMessage,
    LedgerMessage,
    MadeMessage,
    MakeMeanMessage,
    OpenMessage,
    PieceMessage,
    RefusedMessage,
    RelayMessage,
    TensorMessage,
    TransferMessage,
    WithoutMessage,
)
from ravnest.collaboration.transfers import Incoming, form_in_words
from ravnest.errors import InvalidInput, RavnestError, RunFailed
from ring_allreduce.transport import LineClosed, LineOpened, Lines, LineSaid, Message

LOOK_SERVING_S = 1.0
"""While it serves, a machine looks no longer than this: the collaboration waits for it."""

LOOK_S = 5.0
"""A machine that is looked for has so long to answer."""

SILENT_S = 30.0
MOST_SILENT_S = 300.0
"""A backbone that said nothing for so long is looked for again. It may only write: then it answers the
handshake, and is not left before MOST_SILENT_S."""

TAKE_OVER_S = 10.0
"""Nobody has to have been found for so long, and for the same again for each address that comes before this one's."""

RETRY_S = 2.0


def proof(secret: str, nonce: bytes) -> bytes:
    """What a backbone machine answers to a nonce. `secret`: the backbone's, in hexadecimal digits."""
    return hmac.new(bytes.fromhex(secret), b"ravnest stand-by 1 " + nonce, hashlib.sha256).digest()


def is_served_further(
    standing: tuple[int, float], invitation: Invitation, others: tuple[str, ...], now: Callable[[], float]
) -> bool:
    """Whether one of the other machines serves with a greater (term, step). Takes 2 LOOK_SERVING_S each at most."""
    for address in others:
        lines = Lines(COLLABORATION, bytes.fromhex(invitation.token))
        try:
            lines.dial(*endpoint(address), invitation.keys(), BACKBONE, LOOK_SERVING_S)
            ends_s = now() + LOOK_SERVING_S
            while now() < ends_s:
                for event in lines.take(LOOK_SERVING_S):
                    said = event.message if isinstance(event, LineSaid) else None
                    if isinstance(said, ChallengeMessage) and said.serves and (said.term, said.step) > standing:
                        return True
                    ends_s = now()
        except RavnestError:
            continue  # nobody serves there
        finally:
            lines.close()
    return False


class StandBy:
    """One machine that stands by. `follow` is all there is to do with it."""

    def __init__(
        self,
        state: BackboneState,
        invitation: Invitation,
        others: tuple[str, ...],
        *,
        place: int,
        listen: str = "",
        found_at: str = "",
        bytes_per_s: float = 0.0,
        tell: Callable[[str], None],
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """`others`: HOST:PORT of the other machines. `place`: how many of them would take over before this one.

        `listen`: HOST:PORT where it would serve; volunteers send their shares there, who find it at `found_at`; empty:
        it adds up none. `bytes_per_s`: of its link each way; 0: it is measured. Raises InvalidInput.
        """
        self._listen = listening_at(listen) if listen else None
        self._found_at, self._bytes_per_s = found_at, bytes_per_s
        self._state, self._invitation, self._others, self._place = state, invitation, others, place
        self._tell, self._now, self._sleep = tell, now, sleep
        self._incoming: Incoming | None = None
        self._taken = 0
        self._mean: dict[str, Tensor] | None = None
        self._averages: AverageParts
        self._helping: Helping

    def follow(self, stop: Callable[[], bool]) -> Literal["serve", "ended", "stopped"]:
        """Follow whoever serves, until this machine has to, until training has ended, or until `stop` says so.

        Raises InvalidInput where those who serve train something else.
        """
        with closing(self._opened()) as lines:
            return self._follow(lines, stop)

    def _opened(self) -> Lines:
        token = bytes.fromhex(self._invitation.token)
        if self._listen is None:
            return Lines(COLLABORATION, token)
        return Lines(COLLABORATION, token, listen=(*self._listen, self._state.store.secrets.keys()))

    def _follow(self, lines: Lines, stop: Callable[[], bool]) -> Literal["serve", "ended", "stopped"]:
        alone_s: float | None = None
        while not stop():
            found = False
            for address in self._others:
                line: int | None = None
                try:
                    host, port = endpoint(address)
                    line = lines.dial(host, port, self._invitation.keys(), BACKBONE, LOOK_S)
                    found = True  # somebody answers there, however busy
                    if self._followed(lines, line, address, stop):
                        return "ended"
                    self._tell(f"{address}: its line has ended")
                except InvalidInput:
                    raise
                except _Lesser as lesser:
                    self._tell(f"{address} serves at {lesser}, this machine is further")
                    return "serve"
                except _StandsBy:
                    found = False
                except RavnestError as error:
                    self._tell(f"{address}: {error}")
                finally:
                    if line is not None:
                        lines.hang_up(line, "it looks for a backbone that serves")
            if found:
                alone_s = None
            elif alone_s is None:
                alone_s = self._now()
            elif self._state.holds_state and self._now() - alone_s >= TAKE_OVER_S * (1 + self._place):
                self._state.begin_term(self._state.term + 1)
                self._tell(f"no other backbone answers: takes over at step {self._state.trainer.step}")
                return "serve"
            self._sleep(RETRY_S)
            self._turn_away(lines)
        return "stopped"

    def _turn_away(self, lines: Lines) -> None:
        """Tell who looks for a backbone that serves that this one does not, while it follows none."""
        term, step = self._state.standing
        for event in lines.take(0.0):
            if isinstance(event, LineOpened):
                away = ChallengeMessage(protocol=PROTOCOL, nonce=b"", term=term, step=step, serves=False)
                lines.send(event.line, away)
                lines.hang_up(event.line, "it stands by")

    def _followed(self, lines: Lines, line: int, address: str, stop: Callable[[], bool]) -> bool:
        """Follow on one line until it ends (False), or training has (True). Raises _Lesser, _StandsBy, RavnestError."""
        packing = self._state.trainer.packing
        self._incoming, self._taken, self._mean = None, 0, None
        self._averages = AverageParts(packing)
        giving = Giving(self._state.of_joiners, lambda: self._state.trainer.step, lines)
        self._helping = Helping(
            packing,
            self._state.most_samples,
            lines,
            line,
            last_mean=lambda: self._mean,
            standing=lambda: self._state.standing,
            giving=giving,
            now=self._now,
            delayed=self._state.trainer.job.delayed_step,
        )
        try:
            return self._heard_out(lines, line, address, stop)
        finally:
            self._helping.end()
            giving.end()

    def _heard_out(self, lines: Lines, line: int, address: str, stop: Callable[[], bool]) -> bool:
        heard_s = looked_s = self._now()
        challenged = False
        while not stop():
            for event in lines.take(1.0):
                if event.line != line:
                    self._helping.take(event)
                    continue
                heard_s = self._now()
                if isinstance(event, LineClosed):
                    return False
                assert isinstance(event, LineSaid)
                message = event.message
                if isinstance(message, EndMessage) and challenged:
                    lines.send(line, message)
                    return True
                if isinstance(message, ChallengeMessage) and not challenged:
                    challenged = True
                    lines.send(line, self._answer(message))
                elif challenged:
                    self._take(lines, line, message, event.tensors)
                else:
                    raise RunFailed(f"it sent {type(message).__name__} out of turn")
            if challenged:
                self._helping.tend()
            now_s = self._now()
            if now_s > heard_s + MOST_SILENT_S:
                raise RunFailed(f"it said nothing for {MOST_SILENT_S:.0f} s")
            if now_s > max(heard_s, looked_s) + SILENT_S:
                seen = lines.dial(*endpoint(address), self._invitation.keys(), BACKBONE, LOOK_S)
                lines.hang_up(seen, "it answers")
                looked_s = self._now()
        return False

    def _answer(self, challenge: ChallengeMessage) -> FollowMessage:
        """Raises _Lesser where this machine's own state is the one that counts, RunFailed for another protocol."""
        if challenge.protocol != PROTOCOL:
            raise RunFailed(f"it speaks version {challenge.protocol} of the protocol, not {PROTOCOL}")
        if not challenge.serves:
            raise _StandsBy
        if self._state.holds_state and self._state.standing > (challenge.term, challenge.step):
            raise _Lesser(f"term {challenge.term}, step {challenge.step}")
        self._state.begin_term(challenge.term)
        secret = self._state.store.secrets.backbone_secret
        form = form_in_words(self._state.trainer.packing.sent)
        return FollowMessage(
            proof=proof(secret, challenge.nonce),
            code=self._state.code,
            form=form,
            listens="" if self._listen is None else self._found_at,
            bytes_per_s=self._bytes_per_s,
        )

    def _take(self, lines: Lines, line: int, message: Message, tensors: tuple[Tensor, ...]) -> None:
        """Raises InvalidInput, RunFailed for what a backbone never says."""
        match message:
            case RefusedMessage(reason=reason, may_return=may_return):
                raise (RunFailed if may_return else InvalidInput)(f"the backbone refuses this machine: {reason}")
            case RelayMessage():
                self._helping.relays(message)
            case TransferMessage(what="contribution") | TensorMessage() | PieceMessage() if self._helping.takes_relayed:
                self._helping.take_relayed(message, tensors)
                if isinstance(message, PieceMessage):
                    self._taken += 1
                    lines.send(line, GotMessage(pieces=self._taken))
            case TransferMessage(what="state"):
                self._helping.relay_ends()
                self._incoming = Incoming(message, self._state.trainer.state_forms(message.step))
            case TransferMessage(what="average", step=step) if step >= self._state.trainer.step:
                self._helping.relay_ends()
                self._incoming = self._averages.incoming(message, self._state.trainer.step)
            case HelpMessage():
                self._averages.know(message.epoch, message.bounds)
                self._helping.hear(message)
            case MakeMeanMessage():
                (epoch, part), made = self._helping.epoch, self._helping.hear(message)
                if made is not None:
                    self._averages.put(message.step, epoch, part, made)
            case MadeMessage():
                self._averages.made(message.step)
            case WithoutMessage():
                self._averages.not_made(message.epoch)
                self._helping.hear(message)
            case AdmitMessage() | CountMessage() | GiveMessage() | GotMessage():
                self._helping.hear(message)
            case TensorMessage() if self._incoming is not None:
                self._incoming.take_tensor(message)
            case PieceMessage() if self._incoming is not None:
                self._incoming.take_piece(message, tensors)
                self._taken += 1
                lines.send(line, GotMessage(pieces=self._taken))
            case LedgerMessage():
                self._state.take_ledger(message.entry, message.people)
            case AliveMessage() | OpenMessage() | CollectMessage():
                pass
            case _:
                raise RunFailed(f"it sent {type(message).__name__} out of turn")
        if self._incoming is not None and self._incoming.whole:
            incoming, self._incoming = self._incoming, None
            if incoming.what == "state":
                self._state.take_state(incoming.vectors, incoming.step)
                self._tell(f"stands by with the state of step {incoming.step}")
            else:
                self._averages.put(incoming.step, incoming.epoch, incoming.part, incoming.vectors)
                self._averages.made(incoming.step)  # it sends nothing of one that it does not hold whole
                while (mean := self._averages.ready(self._state.trainer.step)) is not None:
                    self._mean = mean
                    self._state.follow(mean)


class _Lesser(RavnestError):
    """Who serves knows less than this machine."""


class _StandsBy(RavnestError):
    """Who answers stands by, too."""
