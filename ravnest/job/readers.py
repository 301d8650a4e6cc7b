"""Processes that read a job's data: for planning, which compares what two of them read, and ahead of a stage.

In: a job, and numbers of samples. Out: batches, which are the same whichever process read them, and however many there
are. Every wait has a deadline. A reader ends with the process that started it.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from torch import Tensor

from ravnest.errors import InvalidInput, RunFailed
from ravnest.job.config import Job
from ravnest.training.batches import BatchSource, Datasets, Inputs, MicroBatches, Part, Target

START_DEADLINE_S = 300.0
"""Within this time a reader has imported torch and called the data factory."""

READ_DEADLINE_S = 120.0
"""The least time that a batch may take before its reader is taken for hung; else so many times the longest so far:"""

_LONGER = 20.0
_ENDS_S = 5.0
_AHEAD = 2


class Reader:
    """One process that answers requests in their order."""

    def __init__(self, job: Job, job_file: str | Path) -> None:
        """Start it; `started` waits until it has its data."""
        places = [entry or str(Path.cwd()) for entry in sys.path]
        process = subprocess.Popen(
            [sys.executable, "-m", "ravnest.job.reader_process"],
            start_new_session=True,  # Ctrl-C is for who started it: it ends with its standard input
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._requests = process, process.stdin
        self._answers: queue.SimpleQueue[tuple[dict[str, Any], list[Tensor]] | None] = queue.SimpleQueue()
        self._deadline_s = READ_DEADLINE_S
        threading.Thread(target=hear, args=(process.stdout, self._answers), daemon=True).start()
        self._end = weakref.finalize(self, _ended, process)
        self._send({"job": job.model_dump(mode="json"), "job_file": str(job_file)})

    def started(self) -> tuple[int, int]:
        """The numbers of training and held-out samples. Raises InvalidInput where the data cannot be loaded."""
        train, held_out = self._next(START_DEADLINE_S)[0]["samples"]
        return train, held_out

    def ask(self, part: Part, indices: Sequence[int], epoch: int) -> None:
        """Ask for a batch, which `batch` returns in its turn."""
        self._send({"part": part, "indices": list(indices), "epoch": epoch, "digests": False})

    def batch(self) -> tuple[Inputs, Target]:
        """The batch that was asked for first and not returned yet. Raises InvalidInput as SampleSet.batch does, and
        RunFailed where the process has ended or takes too long."""
        header, tensors = self._next(self._deadline_s)
        self._deadline_s = max(self._deadline_s, _LONGER * header["seconds"])
        names, count, targets = header["names"], header["inputs"], header["targets"]
        given, rest = tensors[:count], tensors[count:]
        inputs: Inputs = dict(zip(names, given, strict=True)) if names else tuple(given)
        if targets is None:
            return inputs, rest[0]
        return inputs, dict(zip(targets, rest, strict=True)) if targets else tuple(rest)

    def ask_digests(self, part: Part, indices: Sequence[int], *, backwards: bool) -> None:
        """Ask what samples hash to, read in their order or backwards, and a batch of some of them."""
        request = {"part": part, "indices": list(indices), "epoch": 0, "digests": True, "backwards": backwards}
        self._send(request)

    def digests(self) -> tuple[list[str], str]:
        """(of each sample, of the batch) that was asked for. Raises as `batch` does."""
        header, _ = self._next(START_DEADLINE_S)
        return header["digests"], header["batch"]

    def close(self) -> None:
        """End the process, whatever it does."""
        self._end()

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except OSError:
            raise self._gone() from None

    def _next(self, deadline_s: float) -> tuple[dict[str, Any], list[Tensor]]:
        try:
            answer = self._answers.get(timeout=deadline_s)
        except queue.Empty:
            self.close()
            silent = TimeoutError(f"nothing for {deadline_s:.0f} s")
            raise RunFailed(f"a process that reads the data has not answered for {deadline_s:.0f} s") from silent
        if answer is None:
            raise self._gone()
        header = answer[0]
        if "error" in header:
            raise InvalidInput(header["error"], path=header["path"], key=header["key"], hint=header["hint"])
        return answer

    def _gone(self) -> RunFailed:
        self.close()
        return RunFailed(f"a process that reads the data has ended by itself (exit code {self._process.returncode})")


def hear(source: BinaryIO, answers: "queue.SimpleQueue[tuple[dict[str, Any], list[Tensor]] | None]") -> None:
    """Put each answer that comes from `source` (its header and its tensors) into `answers`, and None at the end."""
    try:
        while line := source.readline():
            header = json.loads(line)
            tensors = []
            for dtype, shape, size in header["tensors"]:
                raw = bytearray(source.read(size))
                if len(raw) != size:
                    return
                flat = torch.frombuffer(raw, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
                tensors.append(flat.view(getattr(torch, dtype)).view(shape))
            answers.put((header, tensors))
    except (OSError, ValueError):
        return  # it was closed, or cut off in the middle of an answer
    finally:
        answers.put(None)


def _ended(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(_ENDS_S)


class Batches(Protocol):
    """What reads batches in the order in which they are asked for."""

    def ask(self, part: Part, indices: Sequence[int], epoch: int) -> None: ...

    def batch(self) -> tuple[Inputs, Target]: ...

    def close(self) -> None: ...


class ReadAhead(BatchSource):
    """A BatchSource whose batches other processes read before they are needed.

    The batches are those of a BatchSource, whatever the number of processes. So many micro-batches ahead of the last
    one that was asked for are read: twice the number of processes.
    """

    def __init__(
        self,
        data: Datasets,
        sampler: MicroBatches,
        held_out_spans: Sequence[range],
        input_names: Sequence[str] | None,
        readers: Sequence[Batches],
    ) -> None:
        """`readers` read the same data, and are closed with this object."""
        super().__init__(data, sampler, held_out_spans, input_names)
        self._readers = readers
        self._asked: list[list[tuple[Part, int]]] = [[] for _ in readers]
        self._ready: dict[tuple[Part, int], tuple[Inputs, Target]] = {}
        self._known: set[tuple[Part, int]] = set()

    def train(self, micro_batch: int) -> tuple[tuple[Tensor, ...], Target]:
        for number in range(micro_batch, micro_batch + 1 + _AHEAD * len(self._readers)):
            self._ask("train", number, self._sampler.lane(number))
        return self._ordered(*self._take("train", micro_batch))

    def held_out(self, batch: int) -> tuple[tuple[Tensor, ...], Target]:
        for number in range(batch, min(batch + 1 + _AHEAD * len(self._readers), len(self._held_out_spans))):
            self._ask("held_out", number, number)
        return self._ordered(*self._take("held_out", batch))

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _ask(self, part: Part, number: int, lane: int) -> None:
        if (part, number) in self._known:
            return
        self._known.add((part, number))
        which = lane % len(self._readers)
        if part == "train":
            self._readers[which].ask(part, self._sampler.batch(number), self._sampler.epoch(number))
        else:
            self._readers[which].ask(part, self._held_out_spans[number], 0)
        self._asked[which].append((part, number))

    def _take(self, part: Part, number: int) -> tuple[Inputs, Target]:
        wanted = part, number
        which = next((at for at, asked in enumerate(self._asked) if wanted in asked), None)
        while which is not None and wanted not in self._ready:
            key = self._asked[which].pop(0)
            self._ready[key] = self._readers[which].batch()
        self._known.discard(wanted)
        return self._ready.pop(wanted)
