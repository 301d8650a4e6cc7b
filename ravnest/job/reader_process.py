"""A process that reads a job's data for another one: `python -m ravnest.job.reader_process`.

In: on standard input one line of JSON for the job, then one for each request. Out: on standard output one answer for
each, in order: a line of JSON, and after that of a batch its tensors' bytes. Nothing is pickled, and nothing of the
starting process is inherited but its environment, so that it is as fresh as a stage of a run. What the user's code
prints goes to standard error. The process ends when its standard input does, even in the middle of a read.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ravnest.errors import InvalidInput
from ravnest.job.config import job_from_mapping
from ravnest.job.materials import JobData, load_data
from ravnest.training.batches import Inputs, Target, arguments, target_tensors
from ravnest.training.fingerprint import digest, digest_of_batch, sampled


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    data: list[JobData] = []

    def begin(request: dict[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
        job = job_from_mapping(request["job"], path=request["job_file"])
        data.append(load_data(job, request["job_file"]))
        return {"samples": [len(data[0].train), len(data[0].held_out)]}, []

    answer(answers, begin, json.loads(requests.get()))
    while True:
        request = json.loads(requests.get())
        answer(answers, lambda asked: read(data[0], asked), request)


def _listen(source: BinaryIO, requests: "queue.SimpleQueue[bytes]") -> None:
    for line in source:
        requests.put(line)
    os._exit(0)


def answer(
    answers: BinaryIO,
    make: Callable[[dict[str, Any]], tuple[dict[str, Any], list[Tensor]]],
    request: dict[str, Any],
) -> None:
    """Write what `make` makes of a request, or the InvalidInput that it raises."""
    began_s = time.monotonic()
    try:
        header, tensors = make(request)
    except InvalidInput as error:
        header = {"error": error.message, "key": error.key, "path": error.path, "hint": error.hint}
        tensors = []
    flat = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors]
    header["tensors"] = [
        [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), raw.numel()]
        for tensor, raw in zip(tensors, flat, strict=True)
    ]
    header["seconds"] = time.monotonic() - began_s
    answers.write(json.dumps(header).encode() + b"\n")
    for raw in flat:
        answers.write(raw.numpy().tobytes())
    answers.flush()


def read(data: JobData, request: dict[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
    """The answer to a request: a batch or, where `digests` are asked for, what its samples and the batch hash to."""
    chosen, indices, epoch = data.part(request["part"]), request["indices"], request["epoch"]
    if request["digests"]:
        order = indices[::-1] if request["backwards"] else indices
        each = {index: digest(chosen.samples([index], epoch)[0]).hex()[:16] for index in order}
        few = [indices[place] for place in sampled(len(indices))]
        batch = digest_of_batch(chosen.batch(few, epoch))
        return {"digests": [each[index] for index in indices], "batch": batch}, []
    return _plain(*chosen.batch(indices, epoch))


def _plain(inputs: Inputs, target: Target) -> tuple[dict[str, Any], list[Tensor]]:
    by_position, by_name = arguments(inputs)
    targets = None if isinstance(target, Tensor) else list(target) if isinstance(target, dict) else []
    header = {"names": list(by_name), "inputs": len(by_position) + len(by_name), "targets": targets}
    return header, [*by_position, *by_name.values(), *target_tensors(target)]


if __name__ == "__main__":
    main()
