"""Tries the reading of a job's data before a plan is made for it.

In: a job and its data. Out: the seconds that a micro-batch takes, or an InvalidInput that names what two processes
read differently, as the first and the last stage of a cluster would. A dataset whose draws come from torch's, numpy's
or Python's own generator passes, since these are seeded for each read. One with a generator of its own does not: the
two processes read the same samples in opposite orders.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from cluster_planner import Plan, format_rate, starved_by_data
from ravnest.errors import InvalidInput, naming
from ravnest.formatting import duration
from ravnest.job.config import Job
from ravnest.job.materials import JobData
from ravnest.job.readers import Reader
from ravnest.training.batches import Part, SampleSet, arguments, target_tensors
from ravnest.training.draws import generators_kept
from ravnest.training.fingerprint import SAMPLED, sampled
from ravnest.training.streams import NumberedStream

LEAST_READING_S = 0.5e-3
"""A micro-batch that is read faster counts as nothing, so that plans for data in memory do not depend on how busy this
machine happens to be."""

MOST_COMPARED, COMPARED_S = 256, 1.0
"""Of each set so many samples are compared, or as many as are read in about this time, but never fewer than
fingerprint.SAMPLED. A dataset that draws from its own generator for every twentieth sample passes 16 samples in
0.95¹⁶ = 44 of 100 cases, and 256 in one of 500,000."""

MOST_MEASURED_S = 2.0
_REPEATS = 5
_ONE_LENGTH = "all micro-batches must have one form: let data.collate_fn pad every batch to the same length"
_SEEDED = (
    "the first and the last stage read for themselves, so a dataset may draw only from the global generators of torch,"
    " numpy and Python, which are seeded for each read, and not from one of its own"
)


def check_reading(job: Job, job_file: str | Path, data: JobData) -> None:
    """Reads samples of both sets in two fresh processes. Raises InvalidInput where they differ, naming a sample.

    Sets of tensors are not read: nothing in them can draw.
    """
    if isinstance(data.train.dataset, NumberedStream):
        with naming(job_file), generators_kept():
            data.train.dataset.check_going_on()
    parts: list[tuple[Part, SampleSet]] = [("train", data.train), ("held_out", data.held_out)]
    read = [(part, each) for part, each in parts if len(each) and not each.holds_tensors]
    if not read:
        return
    with naming(job_file):
        tried = [(part, compared(len(each), _seconds_of_a_sample(each))) for part, each in read]
    readers = [Reader(job, job_file), Reader(job, job_file)]
    try:
        with naming(job_file):
            for reader in readers:
                if reader.started() != (len(data.train), len(data.held_out)):
                    raise InvalidInput("two processes got data of different lengths from it", key="data.factory")
            for part, indices in tried:
                again = not isinstance(data.part(part).dataset, NumberedStream)  # which is read forwards only
                for reader, backwards in zip(readers, (False, again), strict=True):
                    reader.ask_digests(part, indices, backwards=backwards)
                _compare(part, indices, [reader.digests() for reader in readers], collates=job.data.collate_fn)
    finally:
        for reader in readers:
            reader.close()


def _seconds_of_a_sample(each: SampleSet) -> float:
    few, began_s = sampled(len(each)), time.monotonic()
    for index in few:
        each.samples([index])
    return (time.monotonic() - began_s) / len(few)


def compared(size: int, sample_s: float) -> list[int]:
    """The samples of a set of `size` that two processes are asked for, where one takes `sample_s` seconds to read."""
    in_time = MOST_COMPARED if sample_s * MOST_COMPARED <= COMPARED_S else int(COMPARED_S / sample_s)
    return sampled(size, max(SAMPLED, in_time))


def _compare(part: str, indices: Sequence[int], read: Sequence[tuple[list[str], str]], collates: str | None) -> None:
    (first, first_batch), (again, batch_again) = read
    for index, one, other in zip(indices, first, again, strict=True):
        if one != other:
            message = f"two processes read different samples {index} of `{part}`: {_SEEDED}"
            raise InvalidInput(message, key="data.factory")
    if first_batch != batch_again:
        what = f"{collates!r}" if collates else "the collate function"
        message = f"{what} made different batches of the same samples of `{part}` in two processes: {_SEEDED}"
        raise InvalidInput(message, key="data.collate_fn" if collates else "data.factory")


def check_forms(job: Job, job_file: str | Path, data: JobData) -> float:
    """Reads some micro-batches of the training set, and returns the seconds that one takes; 0 where it is next to none.

    Raises InvalidInput where one has other shapes than the first.
    """
    if data.train.holds_tensors:
        return 0.0
    size = job.micro_batch
    starts = sampled(len(data.train) - size + 1, _REPEATS)
    began_s, times, forms = time.monotonic(), [], {}
    with naming(job_file):
        for start in starts:
            read_s = time.monotonic()
            inputs, target = data.train.batch(range(start, start + size))
            times.append(time.monotonic() - read_s)
            by_position, by_name = arguments(inputs)
            tensors = (*by_position, *by_name.values(), *target_tensors(target))
            forms[start] = tuple(by_name), tuple((tuple(each.shape), each.dtype) for each in tensors)
            if forms[start] != forms[starts[0]]:
                shapes = [", ".join(str(shape) for shape, _ in form[1]) for form in (forms[starts[0]], forms[start])]
                raise InvalidInput(
                    f"the micro-batch of samples {starts[0]} to {starts[0] + size - 1} has the shapes {shapes[0]}, and"
                    f" that of {start} to {start + size - 1} has {shapes[1]}; {_ONE_LENGTH}",
                    key="data.factory" if data.train.collate_fn is None else "data.collate_fn",
                )
            if time.monotonic() - began_s > MOST_MEASURED_S:
                break
    seconds = median(times)
    return 0.0 if seconds < LEAST_READING_S else float(f"{seconds:.2g}")


def starved_words(plan: Plan) -> str | None:
    """A sentence that reading the data holds the plan up, and how many processes would do; None where it does not."""
    starved = starved_by_data(plan)
    if starved is None:
        return None
    return (
        f"the pipelines wait for data, of which a process reads a micro-batch in {duration(plan.workload.reading_s)};"
        f" with data.workers: {starved.readers} in the job the fleet would make {format_rate(starved.samples_per_s)}"
        f" samples/s instead of {format_rate(plan.predicted.samples_per_s)}"
    )
