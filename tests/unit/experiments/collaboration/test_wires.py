from experiments.collaboration.comes_and_goes import JOB
from experiments.collaboration.wires import WAYS, bytes_of_one, job_of, loss_of


def test_shorter_ways_send_fewer_bytes_and_the_collaboration_learns_by_each() -> None:
    sent = {way: bytes_of_one(job_of(JOB, way, 0), JOB) for way in WAYS}
    assert sent["float32"] == 4 * (64 * 256 + 256 * 10 + 3 * 256 + 10)
    assert sent["float16"] == sent["float32"] / 2
    assert sent["rank 4, float16"] == 2 * (4 * (64 + 256) + 4 * (256 + 10) + 3 * 256 + 10)
    assert sorted(sent.values(), reverse=True) == list(sent.values())
    assert loss_of("rank 4, float16", 0, 2) < 2.25, "an untrained model has ln 10 = 2.30"
