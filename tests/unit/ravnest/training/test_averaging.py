import pytest
import torch

from ravnest.errors import InvalidInput
from ravnest.training.averaging import OUTER_PREFIX, AveragingConfig, keeping_progress, split_outer
from ring_allreduce.rounds import Nesterov

NESTEROV = {"nesterov": {"lr": 0.5, "momentum": 0.8}}


def test_the_defaults_are_exact_parameter_averaging_by_samples():
    averaging = AveragingConfig()
    assert averaging.ring_wire == "exact"
    assert averaging.make_outer() is None
    assert averaging.outer_name == "none"
    assert averaging.weight(12) == 12.0
    assert averaging.wire_bytes_per_parameter_byte == 1.0


def test_a_robust_average_has_no_groups():
    assert AveragingConfig(hierarchical=True).hierarchical
    with pytest.raises(ValueError, match="a sum over a group hides it"):
        AveragingConfig(hierarchical=True, robust="trimmed_mean")


def test_a_trimmed_mean_would_leave_out_what_is_sent_as_sparse():
    assert AveragingConfig(wire="sparse", robust="centred_clipping").rule == "centred_clipping"
    with pytest.raises(ValueError, match="wire: sparse sends of most numbers nothing"):
        AveragingConfig(wire="sparse", robust="trimmed_mean")


@pytest.mark.parametrize(("samples", "weight"), [(0, 0.0), (1, 1.0), (4096, 1.0)])
def test_equal_weights_count_whoever_has_trained(samples, weight):
    assert AveragingConfig(weighting="equal").weight(samples) == weight


def test_momentum_and_what_is_fed_back_take_memory():
    assert AveragingConfig().state_bytes_per_parameter_byte(2) == 0
    assert AveragingConfig.model_validate({"outer": NESTEROV}).state_bytes_per_parameter_byte(2) == 1
    both = AveragingConfig.model_validate({"outer": NESTEROV, "wire": "int8"})
    assert both.state_bytes_per_parameter_byte(2) == 4


@pytest.mark.parametrize(
    ("wire", "part"), [("bfloat16", 0.5), ("float16", 0.5), ("int8", (1 + 4 / 256) / 4), ("int4", (0.5 + 2 / 64) / 4)]
)
def test_shorter_forms_move_fewer_bytes(wire, part):
    assert AveragingConfig(wire=wire).wire_bytes_per_parameter_byte == part


def test_each_segment_gets_an_outer_optimizer_of_its_own():
    averaging = AveragingConfig.model_validate({"outer": NESTEROV})
    first, second = averaging.make_outer(), averaging.make_outer()
    assert isinstance(first, Nesterov)
    assert first is not second
    assert averaging.outer_name == "nesterov"
    expected = Nesterov(0.5, 0.8)
    assert torch.equal(first(torch.ones(3)), expected(torch.ones(3)))


def test_the_outer_state_is_told_from_the_optimizers_by_its_keys():
    state = {("w", "exp_avg"): torch.ones(1), ("w", f"{OUTER_PREFIX}momentum"): torch.zeros(1)}
    own, outer = split_outer(state)
    assert list(own) == [("w", "exp_avg")]
    assert list(outer) == [("w", f"{OUTER_PREFIX}momentum")]


@pytest.mark.parametrize("name", [name for name in vars(torch.optim) if name[0].isupper()])
def test_no_optimizer_of_torch_has_a_key_with_that_prefix(name):
    chosen = getattr(torch.optim, name)
    if not issubclass(chosen, torch.optim.Optimizer) or name in ("Optimizer", "LBFGS", "SparseAdam"):
        return
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = chosen([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert not [key for key in optimizer.state[parameter] if str(key).startswith(OUTER_PREFIX)]


def test_running_statistics_are_averaged_and_other_buffers_taken_from_one():
    averaging = AveragingConfig()
    averaged = ["bn.running_mean", "running_var", "norm.moving_variance"]
    assert {name: averaging.rule_of(name) for name in averaged} == dict.fromkeys(averaged, "average")
    taken = ["layer.parametrizations.weight.0._u", "codebook", "running_stats.mask"]
    assert {name: averaging.rule_of(name) for name in taken} == dict.fromkeys(taken, "first")
    assert not averaging.keeps_own("bn.num_batches_tracked")


def test_the_first_pattern_that_matches_a_buffer_counts():
    averaging = AveragingConfig(buffers={"code.*": "average", "*.n": "local", "*": "first"})
    rules = [averaging.rule_of(name) for name in ("code.n", "layer.n", "bn.running_mean")]
    assert rules == ["average", "local", "first"]
    assert averaging.keeps_own("layer.n")


@pytest.mark.parametrize(
    ("buffers", "key", "said"),
    [
        ({"cod.*": "average"}, r"averaging\.buffers\.cod\.\*", "matches no buffer that the model saves"),
        ({"*": "first"}, r"averaging\.buffers\.\*", "'code.seen' holds integers"),
    ],
)
def test_patterns_of_buffers_that_cannot_be_meant(buffers, key, said):
    AveragingConfig(buffers={"code.s*": "local", "code.m*": "average"}).check_buffers(["code.mean"], ["code.seen"])
    with pytest.raises(InvalidInput, match=f"^{key}: {said}"):
        AveragingConfig(buffers=buffers).check_buffers(["code.mean"], ["code.seen"])


def test_statistics_keep_what_was_learned_since_they_were_given():
    average, given, now = torch.tensor([[2.0, 1.0, 0.1, 3.0], [1.0, 1.0, 1.0, 3.0], [1.0, 1.5, 0.5, 2.0]])
    # Nothing given apart from the average: what is now. Else their sum, but never beyond both: a variance of -0.4.
    assert keeping_progress(average, given, now).tolist() == pytest.approx([2.0, 1.5, 0.1, 2.0])
    assert torch.equal(keeping_progress(average, given, given), average)
