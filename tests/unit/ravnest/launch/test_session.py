from ravnest.launch.session import run_keys
from ravnest.launch.setups import stage_setups
from tests.support.local import captured_job, setups_of, tiny_job


def test_each_process_of_a_run_has_a_key_pair_of_its_own_and_they_all_share_one_list() -> None:
    keys = run_keys(["c0.s0", "c1.s0", "driver"])
    assert len({one.own.secret for one in keys.values()}) == 3
    for name, one in keys.items():
        one.require_own_name(name)
        assert one.allowed == {other: of_other.own.public for other, of_other in keys.items()}
    assert run_keys(["driver"])["driver"].own != keys["driver"].own


def test_the_keys_of_an_encrypted_run_reach_each_stage_and_no_text() -> None:
    job = tiny_job()
    _, plan = setups_of(job, parts=(2, 1))
    keys = run_keys(["c0.s0", "c0.s1", "c1.s0", "driver"])
    setups = stage_setups(
        plan,
        job,
        captured_job(job),
        search_dirs=[],
        threads=dict.fromkeys((node.name for node in plan.fleet.nodes), 1),
        total_samples=240,
        token=bytes(16),
        keys=keys,
    )
    for name, setup in setups.items():
        assert setup.keys is keys[name]
        assert keys[name].own.secret not in repr(setup)
