"""What a backbone keeps on disk: keys and the invitation, the last states, the curve and the people.

In: a folder. Out: files that a crash at any moment leaves usable: each is written beside its place and renamed.

    term.txt            how often another machine has taken over (stand_by.py)
    keys.json           the Curve keys of the backbone and its guests, and the token; only the owner may read it
    invitation.txt      the line that volunteers are given
    curve.jsonl         a line for each step
    people.json         who gave how many samples
    state-000120.safetensors    weights, buffers and optimizer state after 120 steps; the last few are kept
    weights.safetensors         the weights at the end, under the model's own names
"""

import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from ravnest.checkpoints.durable_files import DurableFiles
from ravnest.checkpoints.weight_files import open_weights
from ravnest.collaboration.code_bundle import SECRETS_FILE
from ravnest.collaboration.invitation import BACKBONE, GUEST, Invitation, read_invitation
from ravnest.collaboration.people import FILE, People
from ravnest.errors import InvalidInput
from ring_allreduce.transport import TOKEN_BYTES, KeyPair, Keys

_STATE = "state-{:06d}.safetensors"
_STATES = re.compile(r"state-(\d+)\.safetensors")


@dataclass(frozen=True)
class Secrets:
    """The secrets of one collaboration, in hexadecimal digits."""

    backbone_public: str
    backbone_secret: str
    guest_public: str
    guest_secret: str
    token: str

    def keys(self) -> Keys:
        """What the backbone listens with. Raises InvalidInput for keys that are none."""
        pair = KeyPair(self.backbone_public, self.backbone_secret)
        return Keys(pair, {BACKBONE: self.backbone_public, GUEST: self.guest_public})


class BackboneStore:
    """The folder of one backbone."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        """Raises InvalidInput where `resume` finds nothing to go on with, or a new one finds a collaboration."""
        self.folder = folder
        self._files = DurableFiles()
        begun = (folder / SECRETS_FILE).exists()
        if begun and not resume:
            raise InvalidInput("holds a collaboration", path=str(folder), hint="go on with it by --resume")
        if resume and not begun:
            hint = "a second backbone machine needs a copy of the first one's keys.json here"
            raise InvalidInput("holds no collaboration to go on with", path=str(folder), hint=hint)
        folder.mkdir(parents=True, exist_ok=True)
        self._before = None if begun else frozenset(folder.iterdir())
        self.secrets = self._read_secrets() if begun else self._new_secrets()

    def forget(self) -> None:
        """Remove what a new collaboration has written so far: it came to nothing, and nobody was invited."""
        written = [self.folder / SECRETS_FILE, self.folder / FILE, *self._states()]
        for path in set(written) - self._before if self._before is not None else ():
            self._files.remove_file(path)

    @property
    def begun(self) -> bool:
        """Whether there is a state, or a line of the curve."""
        return bool(self._states()) or (self.folder / "curve.jsonl").exists()

    def read_term(self) -> int:
        """The term of the last state; 0 where none was written. Raises InvalidInput."""
        path = self.folder / "term.txt"
        if not path.exists():
            return 0
        text = path.read_text(encoding="ascii", errors="replace").strip()
        if not text.isdecimal() or len(text) > 15:
            raise InvalidInput("expected a whole number, as an earlier start wrote it", path=str(path))
        return int(text)

    def save_term(self, term: int) -> None:
        """Write term.txt."""
        self._write("term.txt", f"{term}\n".encode())

    def save_people(self, people: People) -> None:
        """Write people.json."""
        self._write(FILE, people.text().encode())

    def save_invitation(self, line: str) -> Path:
        """Write invitation.txt, which only the owner may read; returns its path."""
        path = self.folder / "invitation.txt"
        self._write(path.name, f"{line}\n".encode(), private=True)
        return path

    def last_invitation(self) -> Invitation | None:
        """What the last start has invited to; None where nothing that can be read says so."""
        try:
            return read_invitation((self.folder / "invitation.txt").read_text(encoding="ascii"))
        except (InvalidInput, OSError, UnicodeDecodeError):
            return None

    def add_to_curve(self, entry: Mapping[str, object]) -> bytes:
        """Add a line to curve.jsonl, and return it."""
        line = f"{json.dumps(entry, allow_nan=False)}\n".encode()
        self.add_lines_to_curve(line)
        return line

    def curve_lines(self) -> list[bytes]:
        """The lines of curve.jsonl."""
        path = self.folder / "curve.jsonl"
        return path.read_bytes().splitlines() if path.exists() else []

    def add_lines_to_curve(self, lines: bytes) -> None:
        """Add whole lines that another backbone has made."""
        self._files.append_bytes(self.folder / "curve.jsonl", lines)

    def save_state(self, tensors: Mapping[str, Tensor], step: int, keep: int) -> None:
        """Write the state of a step, and remove all but the last `keep`."""
        self._save_tensors(_STATE.format(step), tensors)
        for old in self._states()[:-keep]:
            self._files.remove_file(old)

    def remove_states_after(self, step: int) -> None:
        """Remove the states of later steps: they were made in a term that does not count any more."""
        for path in self._states():
            if int(path.stem.removeprefix("state-")) > step:
                self._files.remove_file(path)

    def save_weights(self, tensors: Mapping[str, Tensor]) -> Path:
        """Write weights.safetensors; returns its path."""
        self._save_tensors("weights.safetensors", tensors)
        return self.folder / "weights.safetensors"

    def last_state(self) -> tuple[int, dict[str, Tensor]] | None:
        """The newest state as (step, flat tensors by name); None where there is none. Raises InvalidInput."""
        found = self._states()
        if not found:
            return None
        files = open_weights(found[-1])
        tensors = {name: files.read(name).reshape(-1) for name in files.stored}
        return int(found[-1].stem.removeprefix("state-")), tensors

    def _states(self) -> list[Path]:
        """The files of states, by their steps; files of other names are nobody's."""
        named = {path: _STATES.fullmatch(path.name) for path in self.folder.glob("state-*.safetensors")}
        steps = {path: int(match[1]) for path, match in named.items() if match is not None}
        return sorted(steps, key=steps.__getitem__)

    def _save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        beside = self.folder / f".{name}.new"
        self._files.write_tensors(beside, tensors)
        self._files.sync_file(beside)
        self._files.move(beside, self.folder / name)
        self._files.sync_folder(self.folder)

    def _write(self, name: str, data: bytes, *, private: bool = False) -> None:
        beside = self.folder / f".{name}.new"
        self._files.remove_file(beside)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._files.move(beside, self.folder / name)

    def _new_secrets(self) -> Secrets:
        backbone, guest = KeyPair.make(), KeyPair.make()
        token = secrets.token_bytes(TOKEN_BYTES).hex()
        made = Secrets(backbone.public, backbone.secret, guest.public, guest.secret, token)
        self._write(SECRETS_FILE, json.dumps(asdict(made)).encode(), private=True)
        return made

    def _read_secrets(self) -> Secrets:
        path = self.folder / SECRETS_FILE
        try:
            read = Secrets(**json.loads(path.read_text(encoding="utf-8")))
            bytes.fromhex(read.token)
            read.keys()
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput("expected the keys that an earlier start wrote", path=str(path)) from error
        return read
