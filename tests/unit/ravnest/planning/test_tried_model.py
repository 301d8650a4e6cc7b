"""Planning tries as much of the model as it is asked to, and makes the same plan."""

import pytest
import torch
from torch import nn

from cluster_planner import Plan
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from ravnest.job.initial_weights import WeightsFromSeed, make_weights
from ravnest.job.materials import capture_job, load_data, make_model
from ravnest.planning import prepare_plan as planning
from ravnest.planning import tried_model as tried_model_module
from ravnest.planning.tried_model import check_of, check_room, tried_model
from ravnest.splitting import CapturedModel
from ravnest.splitting.model_source import values_of
from ravnest.splitting.thinning import keep_first
from ravnest.splitting.unrolling import LEAST_BLOCKS
from tests.support.local import JOB_FILE, captured_job, plan_with, tiny_job


def deep():
    return tiny_job(model={"factory": "tiny:gpt", "args": {"layers": 5}})


def plan_of(monkeypatch, check):
    """The plan of a deep model, and what was tried of it."""
    tried: list[tuple[CapturedModel, bool]] = []

    def noted(plan, job, job_file, captured, weights, check_s, *, short, places):
        assert {spec.name for spec in captured.span(0, len(captured.units)).weight_specs} <= weights.keys()
        tried.append((captured, short))

    monkeypatch.setattr(planning, "try_plan", noted)
    job = load_job(JOB_FILE).model_copy(update={"model": deep().model})
    fleet = plan_with(job, captured_job(job), [[2]]).fleet
    warned: list[str] = []
    made = planning.prepare_plan(
        fleet, job, check=check, min_stages=2, step=lambda words: None, warn=warned.append
    ).plan
    return made, tried, warned


def test_the_plan_does_not_depend_on_how_much_is_checked(monkeypatch):
    plans: list[Plan] = []
    for check, layers, told in (("full", 5, 0), ("sampled", 2, 0), ("none", None, 1)):
        plan, tried, warned = plan_of(monkeypatch, check)
        plans.append(plan)
        assert [short for _, short in tried] == ([] if layers is None else [check == "sampled"])
        for captured, _ in tried:
            names = captured.parameter_names(0, len(captured.units))
            assert len({name.split(".")[1] for name in names if name.startswith("blocks.")}) == layers
        assert len([words for words in warned if "--check none" in words]) == told
    assert plans[0] == plans[1] == plans[2]


def test_the_short_model_has_the_weights_of_the_whole_one():
    job = deep()
    shape = make_model(job, JOB_FILE, "meta")
    tried = tried_model(job, JOB_FILE, shape, "sampled", 10**9, WeightsFromSeed(job, JOB_FILE))
    expected = make_weights(job, JOB_FILE)
    assert tried.blocks.count == 5
    assert len(tried.model.blocks) == 2
    assert len(shape.blocks) == 5
    for name, tensor in values_of(tried.model).items():
        assert torch.equal(tensor, expected[name]), name
    short = tried.capture(job, JOB_FILE, load_data(job, JOB_FILE), captured_job(job))
    assert short.train.converted.parameters.keys() == dict(tried.model.named_parameters()).keys()


def test_the_short_model_is_exported_once_where_the_whole_one_is_made_of_it(monkeypatch):
    job = tiny_job(model={"factory": "tiny:gpt", "args": {"layers": LEAST_BLOCKS}})
    data = load_data(job, JOB_FILE)
    tried = tried_model(job, JOB_FILE, make_model(job, JOB_FILE, "meta"), "sampled", 10**9)
    assert tried.blocks.count == LEAST_BLOCKS
    whole = captured_job(job)
    exported = capture_job(job, JOB_FILE, data, lambda model: keep_first(model, tried.blocks))
    monkeypatch.delattr(tried_model_module, "capture_job")
    assert tried.capture(job, JOB_FILE, data, whole).costs == exported.costs


def test_a_model_in_files_is_the_same_and_needs_room_for_one_weight_at_a_time():
    job = deep()
    shape = make_model(job, JOB_FILE, "meta")
    from_seed = WeightsFromSeed(job, JOB_FILE)
    largest = max(parameter.nbytes for parameter in shape.parameters())
    tried = tried_model(job, JOB_FILE, shape, "full", 3 * largest, from_seed, mapped_bytes=0)
    assert tried.blocks is None
    assert tried.mapped is not None
    for name, tensor in values_of(tried.model).items():
        assert torch.equal(tensor, from_seed[name]), name
    with pytest.raises(InvalidInput, match="has a weight of"):
        tried_model(job, JOB_FILE, shape, "full", 3 * largest - 1, from_seed, mapped_bytes=0)


def test_none_makes_no_model_and_a_model_without_blocks_is_tried_whole():
    job = tiny_job(model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"})
    shape = make_model(job, JOB_FILE, "meta")
    assert tried_model(job, JOB_FILE, shape, "none", 0, WeightsFromSeed(job, JOB_FILE)) is None
    whole = tried_model(job, JOB_FILE, shape, "sampled", 10**9, WeightsFromSeed(job, JOB_FILE))
    assert whole.blocks is None
    with whole.told(), pytest.raises(InvalidInput):
        raise InvalidInput("mine")


def test_an_error_of_a_short_model_says_that_it_was_short():
    job = deep()
    shape = make_model(job, JOB_FILE, "meta")
    tried = tried_model(job, JOB_FILE, shape, "sampled", 10**9, WeightsFromSeed(job, JOB_FILE))
    with (
        pytest.raises(InvalidInput, match=r"^a\.yaml: model: mine; this was tried on 2 of the 5 blocks of 'blocks'"),
        tried.told(),
        tried.told(),
    ):
        raise InvalidInput("mine", path="a.yaml", key="model")


def test_a_model_that_memory_cannot_hold_is_refused_before_it_is_built():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100, 99), nn.BatchNorm1d(99))
    model[0].weight.requires_grad_(False)
    trained = 4 * (99 + 2 * 99)
    weights = trained + 4 * 9_900 + 4 * 2 * 99 + 8
    needed = weights + 2 * trained
    check_room("job.yaml", model, needed)
    with pytest.raises(InvalidInput, match=r"^job\.yaml: model: has 41.6 kB of weights; .* 44 kB, .* 44 kB left") as e:
        check_room("job.yaml", model, needed - 1)
    assert "--check sampled" in e.value.hint
    with pytest.raises(InvalidInput) as e:
        check_room("job.yaml", model, needed - 1, sampled=True)
    assert "--check none" in e.value.hint


def test_the_room_for_weights_of_16_bits_is_that_of_comparing_them_in_float32():
    with torch.device("meta"):
        model = nn.Linear(100, 99, bias=False, dtype=torch.bfloat16)
    needed = 9_900 * (2 + 4 + 2 * 4)
    check_room("job.yaml", model, needed)
    with pytest.raises(InvalidInput, match=r"has 19.8 kB of weights"):
        check_room("job.yaml", model, needed - 1)
    check_room("job.yaml", model, 3 * 4 * 9_900, mapped=True)
    with pytest.raises(InvalidInput, match=r"has a weight of 39.6 kB"):
        check_room("job.yaml", model, 3 * 4 * 9_900 - 1, mapped=True)


def test_another_word_is_refused():
    assert check_of("sampled") == "sampled"
    with pytest.raises(InvalidInput, match=r"^check: must be one of full, sampled, none, not 'some'"):
        check_of("some")
