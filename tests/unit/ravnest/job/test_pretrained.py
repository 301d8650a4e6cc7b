"""Starting from files: what fits, what is read by whom, and that a run begins there."""

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from ravnest.checkpoints.own_copies import copies_here
from ravnest.checkpoints.weight_files import WeightFiles
from ravnest.driver.preparation import hand_out, needed, states_for
from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_buffers, make_weights
from ravnest.job.materials import load_data, make_model
from ravnest.job.pretrained import pretrained_weights
from ravnest.training.batches import fetch
from ravnest.training.sampler import Sampler
from tests.support.local import JOB_FILE, captured_job, local_run, setups_of, tiny_job

LLAMA = {"model_type": "llama", "vocab_size": 11, "hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 2, "max_position_embeddings": 8, "tie_word_embeddings": False}
SENTENCES = {"factory": "several:sentences"}


def other_weights(job):
    """Not the seed's."""
    draw = torch.Generator().manual_seed(9)
    return {
        name: torch.randn(tensor.shape, generator=draw) * 0.1 if tensor.is_floating_point() else tensor
        for name, tensor in make_weights(job, JOB_FILE).items()
    }


def job_from(path, **changes):
    return tiny_job(initial_weights=str(path), **changes)


def first_loss(job, weights):
    model = make_model(job, JOB_FILE)
    model.load_state_dict(weights)
    data = load_data(job, JOB_FILE)
    (inputs,), target = fetch(data.train, Sampler(len(data.train), job.seed, (0.0, 1.0), job.micro_batch).batch(0))
    return functional.cross_entropy(model(inputs).flatten(0, -2), target.flatten()).item()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_run_begins_with_the_weights_of_a_file(tmp_path, precision):
    weights = {name: tensor.to(precision) for name, tensor in other_weights(tiny_job()).items()}
    save_file(weights, tmp_path / "start.safetensors")
    job = job_from(tmp_path / "start.safetensors")
    losses = local_run(job, parts=(3,)).run().losses["c0"]
    expected = first_loss(job, {name: tensor.float() for name, tensor in weights.items()})
    assert losses[0] == pytest.approx(expected, abs=1e-6)
    assert losses[0] != pytest.approx(first_loss(job, make_weights(job, JOB_FILE)), abs=1e-3)


def test_a_run_goes_on_from_the_weights_of_another(tmp_path):
    first = local_run(tiny_job(stop={"samples": 960}), parts=(2,)).run()
    save_file(first.checkpoints[-1], tmp_path / "weights.safetensors")
    second = local_run(job_from(tmp_path), parts=(3,)).run()
    assert sum(second.losses["c0"][:3]) < 0.7 * sum(first.losses["c0"][:3])


class Outbox:
    """Notes what is sent to whom."""

    def __init__(self):
        self.sent = {}

    def forget(self, peer):
        self.sent.pop(peer, None)

    def put(self, peer, message, tensors):
        (tensor,) = tensors() if callable(tensors) else tensors
        self.sent.setdefault(peer, {})[message.name] = tensor.reshape(message.shape or tensor.shape)  # in one piece

    def send(self, peer, lane, message):
        pass


def test_a_stage_is_not_sent_what_files_of_its_own_machine_hold(tmp_path):
    """With a copy of the files under the same path nothing is sent of them, and elsewhere all; both begin alike."""
    save_file(other_weights(tiny_job()), tmp_path / "start.safetensors")
    job = job_from(tmp_path / "start.safetensors")
    pretrained = pretrained_weights(job, JOB_FILE, captured_job(job))
    setups, plan = setups_of(job, parts=(2, 1), initial=pretrained)
    states = states_for(setups, plan, job, None, pretrained)
    everywhere, own = Outbox(), Outbox()
    hand_out(everywhere, everywhere, setups.values(), states)
    held = {"c0.s1": copies_here(setups["c0.s1"].stored)}
    hand_out(own, own, setups.values(), states, held=held)
    assert own.sent.keys() == {"c0.s0", "c1.s0"}
    assert held["c0.s1"].keys() == everywhere.sent["c0.s1"].keys()
    assert all(torch.equal(tensor, everywhere.sent["c0.s1"][name]) for name, tensor in held["c0.s1"].items())
    assert set(own.sent["c0.s0"]) == set(needed(setups["c0.s0"])) - setups["c0.s0"].made_names
    (tmp_path / "start.safetensors").write_bytes(b"other")
    assert copies_here(setups["c0.s1"].stored) == {}


def test_each_stage_s_start_reads_its_own_span_and_nothing_else(tmp_path, monkeypatch):
    """Counted at the file: a tensor is read once for each stage that holds it, and none is kept in between."""
    save_file(other_weights(tiny_job()), tmp_path / "start.safetensors")
    job = job_from(tmp_path / "start.safetensors")
    setups, plan = setups_of(job, parts=(3, 1))
    pretrained = pretrained_weights(job, JOB_FILE, captured_job(job))
    reads = []
    plain, whole = WeightFiles.in_pieces, []
    monkeypatch.setattr(WeightFiles, "in_pieces", lambda self, name: reads.append(name) or plain(self, name))
    monkeypatch.setattr(WeightFiles, "read", lambda self, name: whole.append(name))
    states = states_for(setups, plan, job, None, pretrained)
    assert reads == []
    for name, setup in setups.items():
        reads.clear()
        hand_out(Outbox(), Outbox(), [setup], states)
        assert sorted(reads) == sorted(spec.name for spec in setup.program.parameters), name
        stored = [pretrained.files.stored[one] for one in reads]
        read_bytes = sum(4 * torch.Size(tensor.shape).numel() for tensor in stored)
        assert read_bytes == sum(spec.size_bytes for spec in setup.program.parameters)
    assert whole == []
    shares = [set(needed(setups[f"c0.s{index}"])) for index in range(3)]
    assert not shares[0] & shares[1]
    assert not shares[1] & shares[2]


def test_what_is_not_saved_is_made_without_the_parameters(monkeypatch):
    pytest.importorskip("transformers")
    job = tiny_job(model={"huggingface": LLAMA}, data=SENTENCES)
    buffers, everything = make_buffers(job, JOB_FILE), make_weights(job, JOB_FILE)
    assert buffers.keys() == {"model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"}
    assert all(torch.equal(buffers[name], everything[name]) for name in buffers)


def test_a_hugging_face_folder_starts_its_model_and_a_base_model_another_head(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    llama = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**LLAMA))
    llama.save_pretrained(tmp_path / "whole", max_shard_size="4KB")
    llama.model.save_pretrained(tmp_path / "base")
    assert (tmp_path / "whole" / "model.safetensors.index.json").is_file()
    job = job_from(tmp_path / "whole", model={"huggingface": LLAMA}, data=SENTENCES)
    started = pretrained_weights(job, JOB_FILE, captured_job(job))
    assert all(torch.equal(started[name], tensor) for name, tensor in llama.state_dict().items())
    result = local_run(job, parts=(2,)).run()
    assert result.checkpoints[-1].keys() == llama.state_dict().keys()

    config = {**LLAMA, "architectures": ["LlamaForSequenceClassification"], "num_labels": 3, "pad_token_id": 0}
    changes = {"model": {"huggingface": config}, "data": {**SENTENCES, "args": {"classify": True}}}
    base = {"path": str(tmp_path / "base"), "new": ["score.*"]}
    classifier = tiny_job(initial_weights=base, **changes)
    started = pretrained_weights(classifier, JOB_FILE, captured_job(classifier))
    assert torch.equal(started["model.norm.weight"], llama.state_dict()["model.norm.weight"])
    assert torch.equal(started["score.weight"], make_weights(classifier, JOB_FILE)["score.weight"])
    local_run(classifier, parts=(2,)).run()
    with pytest.raises(InvalidInput, match=rf"^{tmp_path / 'base'}: score\.weight: is missing"):
        pretrained_weights(
            tiny_job(initial_weights=str(tmp_path / "base"), **changes), JOB_FILE, captured_job(classifier)
        )


def test_a_checkpoint_of_tied_weights_starts_both_places(tmp_path):
    transformers = pytest.importorskip("transformers")
    tied = transformers.AutoConfig.for_model(**{**LLAMA, "tie_word_embeddings": True})
    llama = transformers.AutoModelForCausalLM.from_config(tied)
    llama.save_pretrained(tmp_path)
    job = job_from(tmp_path, model={"huggingface": LLAMA}, data=SENTENCES)
    started = pretrained_weights(job, JOB_FILE, captured_job(job))
    assert "lm_head.weight" not in started.files.stored
    assert torch.equal(started["lm_head.weight"], started["model.embed_tokens.weight"])


def test_a_tied_model_starts_from_one_name_and_its_borrower_is_sent_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = {**LLAMA, "tie_word_embeddings": True}
    llama = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    llama.save_pretrained(tmp_path / "once")
    (tmp_path / "twice").mkdir()
    both = {name: tensor.clone() for name, tensor in llama.state_dict().items()}
    save_file(both, tmp_path / "twice" / "weights.safetensors")  # as a run leaves them
    for folder in ("once", "twice"):
        job = job_from(tmp_path / folder, model={"huggingface": config}, data=SENTENCES)
        setups, plan = setups_of(job, parts=(2,))
        pretrained = pretrained_weights(job, JOB_FILE, captured_job(job))
        states, outbox = states_for(setups, plan, job, None, pretrained), Outbox()
        hand_out(outbox, Outbox(), setups.values(), states)
        for stage in ("c0.s0", "c0.s1"):
            assert torch.equal(outbox.sent[stage]["model.embed_tokens.weight"], both["lm_head.weight"])
    local_run(job, parts=(2,)).run()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("head.bias"), r"head\.bias: is missing"),
        (lambda w: w.update(more=torch.ones(1)), r"more: is no weight of the model"),
        (lambda w: w.update({"head.bias": torch.ones(3)}), r"head\.bias: has the shape \(3,\); the model's is \(11,\)"),
        (lambda w: w.update({"head.bias": torch.ones(11).double()}), r"head\.bias: is F64; the model's F32 would not"),
        (lambda w: w.update({"head.bias": torch.ones(11).int()}), r"head\.bias: is I32; the model's F32 would not"),
    ],
)
def test_what_does_not_fit_is_named_with_file_and_key(tmp_path, change, said):
    weights = other_weights(tiny_job())
    change(weights)
    save_file(weights, tmp_path / "start.safetensors")
    with pytest.raises(InvalidInput, match=rf"^{tmp_path / 'start.safetensors'}: {said}"):
        pretrained_weights(job_from(tmp_path / "start.safetensors"), JOB_FILE, captured_job(tiny_job()))


def test_a_path_that_is_not_there_is_told_at_the_job_s_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=rf"job\.yaml: initial_weights: there is no {JOB_FILE.parent / 'gone'}, "):
        pretrained_weights(job_from("gone"), JOB_FILE, captured_job(tiny_job()))
