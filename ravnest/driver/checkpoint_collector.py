"""State on its way from the stages to a checkpoint on disk, piece by piece.

In: pieces of files that the stages send, and orders to begin and commit a checkpoint. Out: complete checkpoints, and
word to the stages of how many pieces there is room for. Each segment's file comes from one member of its ring, the
keeper, and a file of optimizer state from every stage. A piece is written by an executor while the driver goes on
listening, and there is room for another when it is written: whatever the size of the model, however many stages it has
and however slow the disk is, this process holds no more than MOST_PIECES of them, and no stage waits with its training.

A checkpoint that the disk refuses is given up, and training goes on. Only the last one of a run has to be written.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from cluster_planner import Plan, common_refinement
from ravnest.checkpoints.checkpoint import Checkpoint, CheckpointWriter
from ravnest.checkpoints.manifest import MANIFEST, optimizer_file, segment_file
from ravnest.checkpoints.tensor_stream import PIECE_BYTES
from ravnest.driver import instructions as ins
from ravnest.errors import InvalidInput, NotWritten, RunFailed, WrongMessage
from ravnest.stage import state_messages as sm
from ravnest.stage.setup import StageSetup
from ravnest.stage.state_messages import WINDOW


def parts_of_checkpoint(checkpoint: Checkpoint, plan: Plan) -> frozenset[str]:
    """The names of the files that a checkpoint holds if it is complete. It may have been made with another plan.

    Raises InvalidInput, naming the key, for a manifest that does not agree with itself.
    """
    manifest, path = checkpoint.manifest, str(checkpoint.folder / MANIFEST)
    said = manifest.made_with.get("clusters")
    cuts = {cluster.name: [stage.units for stage in cluster.stages] for cluster in plan.clusters}
    if said is not None:
        cuts = _cuts_in(said)
        if not cuts:
            raise InvalidInput("does not tell the stages of clusters", path=path, key="made_with.clusters")
    if manifest.versions.keys() != cuts.keys():
        message = f"must have the updates of {_listed(cuts)}, not of {_listed(manifest.versions)}"
        raise InvalidInput(message, path=path, key="versions")
    if not set(manifest.lost) < cuts.keys():
        message = f"must name some of {_listed(cuts)}, but not all of them, not {_listed(manifest.lost)}"
        raise InvalidInput(message, path=path, key="lost")
    segments = (segment_file(ring) for ring in range(len(common_refinement(list(cuts.values())))))
    return frozenset((*segments, *(optimizer_file(name, index) for name in cuts for index in range(len(cuts[name])))))


def _cuts_in(text: str) -> dict[str, list[tuple[int, int]]]:
    """By cluster, the spans of its stages, from JSON as `made_with` writes it; nothing where it is no such text."""
    try:
        cuts = {name: [(start, end) for start, end in spans] for name, *spans in json.loads(text)}
    except (ValueError, TypeError, RecursionError):
        return {}
    ends = {(spans[0][0], spans[-1][1]) if spans else None for spans in cuts.values()}
    whole = len(ends) == 1 and None not in ends and all(isinstance(name, str) for name in cuts)
    edges = [edge for spans in cuts.values() for span in spans for edge in span]
    if not whole or not all(type(edge) is int for edge in edges):
        return {}
    joined = all(a[1] == b[0] for spans in cuts.values() for a, b in pairwise(spans))
    return cuts if joined and all(start < end for spans in cuts.values() for start, end in spans) else {}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def parts_of_stages(setups: Iterable[StageSetup]) -> frozenset[str]:
    """The names of all files of a checkpoint of these stages, with those of averaged copies of tied parameters."""
    every = list(setups)
    segments = (segment_file(segment.ring) for setup in every for segment in setup.segments)
    return frozenset((*segments, *(optimizer_file(setup.cluster, setup.index) for setup in every)))


MOST_PIECES = 32 * WINDOW
"""The pieces of all stages together that may be on their way or waiting for the disk. Beyond, stages take turns."""


@dataclass
class _Sender:
    """What one stage is sending for one checkpoint."""

    files: deque[str]
    """The files that are not whole yet, in the order in which they come."""
    offset: int = 0
    """The bytes of the first of them that have come."""
    lent: int = 0
    """The pieces for which there is room: they may be sent, or are not written yet."""
    writing: int = 0
    """Those of them that are not written yet."""
    dropped: bool = False
    """Whether the checkpoint was given up, so that nothing is kept of what still comes."""
    pieces: int = 0


class CheckpointCollector:
    """Gathers the checkpoints that are under way, each of one round."""

    def __init__(
        self,
        setups: Mapping[str, StageSetup],
        begin: Callable[[ins.BeginCheckpoint], CheckpointWriter],
        disk: Executor,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`begin` opens the writer of a checkpoint. `disk` writes; it must keep the order of its tasks. `wake` is
        called, in any thread, when something has been written."""
        self._setups = setups
        self._complete = parts_of_stages(setups.values())
        self._begin = begin
        self._disk = disk
        self._wake = wake
        self._abandoned: set[int] = set()
        self._writers: dict[int, CheckpointWriter] = {}
        self._senders: dict[tuple[int, str], _Sender] = {}
        self._turns: deque[tuple[int, str]] = deque()
        """Who has not been given room yet, by round and stage."""
        self._lent = 0
        self._grants: list[tuple[str, sm.StateWanted]] = []
        self._writing: deque[tuple[int, str, Future[Path | None]]] = deque()
        self._refused: dict[int, NotWritten] = {}
        """By round: why its checkpoint could not be written."""
        self._untold: list[tuple[int, NotWritten]] = []
        self._newest = 0

    def begin(self, begun: ins.BeginCheckpoint) -> None:
        """Open a checkpoint: the stages are going to send their state."""
        self._newest = begun.round
        if begun.round in self._abandoned:
            self._abandoned.discard(begun.round)
            self._refused.pop(begun.round, None)
            self._disk.submit(_nothing).result()  # the first try's folder has the same name, and is gone now
        for stage, setup in self._setups.items():
            self._senders[begun.round, stage] = _Sender(deque(_files_of(setup)))
            self._turns.append((begun.round, stage))
        try:
            self._writers[begun.round] = self._begin(begun)
        except NotWritten as error:
            self._give_up(begun.round, error)
        self._lend()

    def abandon(self, round_: int) -> None:
        """A checkpoint cannot become complete: forget it, and what stages still send of it."""
        self._abandoned.add(round_)
        self._drop(round_)

    def reform(self, setups: Mapping[str, StageSetup]) -> None:
        """From now on these are the stages of the run, with what each of them keeps."""
        self._setups = setups
        self._complete = parts_of_stages(setups.values())
        for key in [key for key in self._senders if key[1] not in setups]:
            self._gone(key)
        self._lend()

    def take(self, stage: str, message: sm.StatePiece, tensors: tuple[Tensor, ...]) -> None:
        """Take a piece of a stage's state. Raises WrongMessage for one that this stage must not send now."""
        key = message.round, stage
        sender = self._senders.get(key)
        if stage not in self._setups:
            return
        if sender is None:
            raise WrongMessage(
                stage, f"sent {message.file} for a checkpoint of round {message.round}, which is not open"
            )
        sender.pieces += 1
        if sender.dropped:
            self._lend_again(key)
            return
        if not sender.files or (message.file, message.offset) != (sender.files[0], sender.offset):
            due = f"{sender.files[0]} from byte {sender.offset:,}" if sender.files else "nothing more"
            raise WrongMessage(stage, f"sent {message.file} from byte {message.offset:,}, where {due} was due")
        if len(tensors) != 1 or tensors[0].dtype != torch.uint8 or not 0 < tensors[0].numel() <= PIECE_BYTES:
            raise WrongMessage(stage, f"sent a piece of {message.file} that is no vector of 1 to {PIECE_BYTES:,} bytes")
        if sender.writing == 2 * WINDOW:  # twice: room that was for an earlier try may have come after it
            raise WrongMessage(stage, f"sent more pieces of {message.file} than there is room for")
        sender.offset += tensors[0].numel()
        writer = self._writers[message.round]
        task = partial(_write, writer, self._setups[stage], message, tensors[0].reshape(-1))
        if message.last:
            sender.files.popleft()
            sender.offset = 0
        sender.writing += 1
        self._submit(message.round, stage, task)

    def finish(self, stage: str, message: sm.StateSent) -> None:
        """A stage has sent all of its state. Raises WrongMessage when something is missing."""
        key = message.round, stage
        sender = self._senders.get(key)
        if stage not in self._setups:
            return
        if sender is None:
            raise WrongMessage(
                stage, f"finished its state for a checkpoint of round {message.round}, which is not open"
            )
        if sender.pieces != message.pieces:
            raise WrongMessage(stage, f"sent {sender.pieces} pieces of its state, not {message.pieces} as it says")
        if sender.files and not sender.dropped:
            raise WrongMessage(stage, f"did not send all of {', '.join(sender.files)}, of which it has the only copy")
        self._gone(key)
        self._lend()

    def commit(self, round_: int) -> None:
        """Every stage has finished: once all files are written, the checkpoint becomes the latest."""
        if round_ not in self._refused:
            self._submit(round_, "", partial(self._writers[round_].commit, self._complete))

    def written(self) -> list[tuple[Path, int]]:
        """The checkpoints that became complete since the last call, with their rounds.

        Raises what writing raised, except what `refusals` tells: WrongMessage for what a stage has sent.
        """
        whole: list[tuple[Path, int]] = []
        while self._writing and self._writing[0][2].done():
            round_, stage, done = self._writing.popleft()
            try:
                path = done.result()
            except NotWritten as error:
                self._give_up(round_, error)
            except RunFailed:
                if round_ not in self._refused and round_ not in self._abandoned:  # else it lacks what was refused
                    if whole:  # they are told first
                        self._writing.appendleft((round_, stage, done))
                        break
                    if stage:
                        self._piece_written((round_, stage))
                    raise
            else:
                if path is not None:
                    del self._writers[round_]
                    whole.append((path, round_))
            if stage:
                self._piece_written((round_, stage))
        return whole

    def grants(self) -> list[tuple[str, sm.StateWanted]]:
        """What stages are to be told since the last call: by stage, how many pieces more there is room for."""
        grants, self._grants = self._grants, []
        return grants

    def refusals(self) -> list[tuple[int, NotWritten]]:
        """The rounds whose checkpoints were given up since the last call, and why."""
        untold, self._untold = self._untold, []
        return untold

    def require_last(self) -> None:
        """Raises NotWritten where the checkpoint that was begun last could not be written."""
        if self._newest in self._refused:
            raise self._refused[self._newest]

    @property
    def busy(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._writing)

    @property
    def pieces(self) -> int:
        """The pieces that wait for the disk."""
        return sum(bool(stage) for _, stage, _ in self._writing)

    def _submit(self, round_: int, stage: str, task: Callable[[], Path | None]) -> None:
        future = self._disk.submit(task)
        self._writing.append((round_, stage, future))
        future.add_done_callback(lambda _: self._wake())

    def _give_up(self, round_: int, error: NotWritten) -> None:
        if round_ in self._refused:
            return
        self._refused[round_] = error
        self._untold.append((round_, error))
        self._drop(round_)

    def _drop(self, round_: int) -> None:
        for (number, _), sender in self._senders.items():
            sender.dropped = sender.dropped or number == round_
        writer = self._writers.pop(round_, None)
        if writer is not None:  # it is None where the disk has refused it
            self._disk.submit(writer.abandon)  # after the pieces that are still to be written

    def _lend(self) -> None:
        """Give room to those whose turn it is."""
        while self._turns and self._lent + WINDOW <= MOST_PIECES:
            key = self._turns.popleft()
            if key in self._senders:
                self._senders[key].lent = WINDOW
                self._lent += WINDOW
                self._grants.append((key[1], sm.StateWanted(round=key[0], pieces=WINDOW)))

    def _lend_again(self, key: tuple[int, str]) -> None:
        """A piece of a stage is here no more: it may send another."""
        self._grants.append((key[1], sm.StateWanted(round=key[0], pieces=1)))

    def _piece_written(self, key: tuple[int, str]) -> None:
        sender = self._senders.get(key)
        if sender is None:  # it has sent all, or has left: its room goes to others
            self._lent -= 1
            self._lend()
        else:
            sender.writing -= 1
            self._lend_again(key)

    def _gone(self, key: tuple[int, str]) -> None:
        """Nothing more comes from a stage: what it could still have sent is others' room now."""
        sender = self._senders.pop(key)
        self._lent -= sender.lent - sender.writing


def _nothing() -> None:
    """A task for the disk that has nothing to do: it ends when all before it have."""


def _write(writer: CheckpointWriter, setup: StageSetup, message: sm.StatePiece, piece: Tensor) -> None:
    """Write a piece. Raises WrongMessage where the file that it ends holds other tensors than it must."""
    if message.offset == 0:
        writer.begin(message.file)
    writer.write(message.file, piece.numpy().data)
    if not message.last:
        return
    try:
        held = {name: tensor.shape for name, tensor in writer.end(message.file).items()}
    except InvalidInput as error:
        raise WrongMessage(setup.name, f"sent a broken file: {error}") from error
    segment = next((each for each in setup.segments if segment_file(each.ring) == message.file), None)
    if segment is None:
        trained = {name for each in setup.segments for name in each.parameters}
        strange = sorted(name for name in held if name.rpartition(".")[0] not in trained)
        if strange:
            raise WrongMessage(setup.name, f"sent optimizer state {strange[0]}, of no parameter that it trains")
        return
    shapes = {spec.name: tuple(spec.shape) for spec in setup.program.weight_specs}
    wrong = sorted(held.keys() ^ set(segment.names)) or sorted(n for n in segment.names if held[n] != shapes[n])
    if wrong:
        raise WrongMessage(setup.name, f"sent {message.file} with another {wrong[0]} than it keeps")


def _files_of(setup: StageSetup) -> list[str]:
    """The files that a stage sends, in this order."""
    segments = [segment_file(segment.ring) for segment in setup.segments if segment.keeper]
    return [*segments, optimizer_file(setup.cluster, setup.index)]
