"""A volunteer: joins by an invitation, computes gradients at its own pace, and applies every average.

In: an invitation, a key of its own, and somebody who agrees to the code. Out: samples that the collaboration counts
under that key. It opens one connection outwards and listens to none. When the connection ends it comes back and takes
the state anew, from any of the backbone's addresses, until `patience_s` have passed without success. The address that
served it last is asked first: at the end of training it is waited for there, for not much longer than one dead address
takes (RETURN_S in backbone.py).
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

from ravnest.collaboration.beside import Beside, BesideInThread
from ravnest.collaboration.code_bundle import code_hash, written
from ravnest.collaboration.invitation import BACKBONE, Invitation
from ravnest.collaboration.messages import COLLABORATION, signed_part
from ravnest.collaboration.sign_in import Given, Member, Refused, TrainingOver
from ravnest.collaboration.stand_by import is_served_further
from ravnest.collaboration.trainer import Trainer
from ravnest.collaboration.visit import Diverged, Visit
from ravnest.dht import KeyIdentity
from ravnest.errors import InvalidInput, RavnestError, RunFailed
from ravnest.job.config import load_job
from ring_allreduce import DeadlinePassed
from ring_allreduce.transport import Lines

DIAL_S = 15.0
RETRY_S = 2.0
"""Between two tries; a visit that was shorter counts as none."""


MakeTrainer = Callable[[Path, dict[str, bytes], str], Trainer]
"""From the job's file, all files of its code, and what seeds the order of samples."""


class Volunteer:
    """One volunteer. `work` is all there is to do with it."""

    def __init__(
        self,
        invitation: Invitation,
        identity: KeyIdentity,
        name: str,
        home: Path,
        *,
        agree: Callable[[str, Path, list[str], tuple[bytes, ...]], bool],
        device: str = "cpu",
        tell: Callable[[str], None] = lambda _: None,
        patience_s: float = 600.0,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        beside: Callable[[], Beside] = BesideInThread,
        make: MakeTrainer | None = None,
    ) -> None:
        """`agree`: is called with the code's hash, its folder, its files and what may be signatures of moderators,
        before any of it is run. `home`: where the code is kept, by its hash. `beside`: see Visit. `make`: makes the
        trainer; None: one that holds the whole model on `device`."""
        self._invitation, self._identity, self._name, self._home = invitation, identity, name, home
        self._agree, self._device, self._tell, self._patience_s = agree, device, tell, patience_s
        self._now, self._sleep, self._beside = now, sleep, beside
        self._make = make or self._whole
        self._trainer: Trainer | None = None
        self.given = Given()
        self._member = Member(
            name,
            identity.public_key,
            self._signature,
            self.trainer,
            tell,
            self.given,
            is_served_after=self._is_served_after,
            keys=invitation.keys(),
        )

    def work(self, stop: Callable[[], bool] = lambda: False) -> Given:
        """Compute until the collaboration ends or `stop` says so.

        Raises InvalidInput for an invitation that leads to other code, or code that cannot run; Refused;
        Diverged; RunFailed when no backbone was reached for too long, or at all before `stop` said so.
        """
        since_s, why = self._now(), "nobody was asked"
        endpoints = self._invitation.endpoints()
        while not stop():
            for host, port in endpoints:
                lines = Lines(COLLABORATION, bytes.fromhex(self._invitation.token))
                visits, dialled_s = self.given.visits, self._now()
                try:
                    line = lines.dial(host, port, self._invitation.keys(), BACKBONE, DIAL_S)
                    visit = Visit(self._member, lines, line, self._now, self._beside)
                    if visit.run(stop):
                        return self.given
                    why = "its line ended"
                except TrainingOver as error:
                    self._tell(str(error))
                    return self.given
                except DeadlinePassed:
                    why = f"nobody has answered there for {DIAL_S:.0f} s"
                except (InvalidInput, Refused, Diverged):
                    raise
                except RavnestError as error:
                    why = str(error)
                finally:
                    lines.close()
                served = self.given.visits > visits and self._now() - dialled_s > RETRY_S
                if served:
                    since_s = self._now()
                if stop():
                    return self._left(why)
                left_s = max(0.0, since_s + self._patience_s - self._now())
                self._tell(f"{host}:{port}: {why}; trying again, for {left_s:.0f} s at most")
                self._sleep(RETRY_S)
                if served:
                    endpoints = sorted(endpoints, key=(host, port).__ne__)  # the others keep their order
                    break
            if self._now() - since_s > self._patience_s:
                raise RunFailed(f"no backbone was reached for {self._now() - since_s:.0f} s: {why}")
        return self._left(why)

    def trainer(self, files: dict[str, bytes], job_name: str, session: int) -> Trainer:
        """The model of the code that was sent, made once. Raises InvalidInput for other code than was invited to."""
        if code_hash(files) != self._invitation.code_hash or job_name not in files:
            raise InvalidInput(
                "the backbone sent other code than the invitation names",
                key="invitation",
                hint="if its job has changed, ask for the new invitation",
            )
        if self._trainer is None:
            folder = written(files, self._home)
            if not self._agree(self._invitation.code_hash, folder, sorted(files), self._member.signatures):
                raise InvalidInput("you did not agree to run this code", key="invitation")
            job_file = folder / job_name
            order = f"{self._identity.public_key.hex()}.{session}"
            self._trainer = self._make(job_file, files, order)
        self._trainer.ready()
        return self._trainer

    def _whole(self, job_file: Path, files: dict[str, bytes], order: str) -> Trainer:
        return Trainer(load_job(job_file), job_file, device=self._device, order=order)

    def _left(self, why: str) -> Given:
        if not self.given.visits:
            raise RunFailed(f"stopped before it had joined: {why}")
        return self.given

    def _is_served_after(self, term: int) -> bool:
        """A machine that lost its power ends no line: who has taken over is found sooner than that is sure."""
        addresses = self._invitation.addresses
        return len(addresses) > 1 and is_served_further((term, math.inf), self._invitation, addresses, self._now)

    def _signature(self, nonce: bytes) -> bytes:
        return self._identity.sign(signed_part(nonce, self._invitation.backbone_public, self._name))
