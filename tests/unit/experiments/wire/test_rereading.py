import torch

from examples.home.model import gpt as plain
from experiments.wire.rereading import gpt, text

SIZES = {"vocab": 97, "layers": 3, "width": 16, "heads": 2, "context": 8}


def test_without_its_tables_it_is_the_gpt_of_the_example():
    model, other = gpt(**SIZES), plain(**SIZES)
    other.load_state_dict({name: value for name, value in model.state_dict().items() if "again" not in name})
    tokens = torch.randint(97, (2, 8))
    assert not torch.equal(model(tokens), other(tokens))
    assert len(model.again) == 2
    with torch.no_grad():
        for parameter in model.again.parameters():
            parameter.zero_()
    assert torch.equal(model(tokens), other(tokens))
    assert torch.equal(model(tokens.to(torch.uint8)), other(tokens))


def test_ids_are_bytes_and_targets_the_characters_that_follow():
    data = text(8)
    inputs, target = data.train[3]
    assert inputs.dtype == torch.uint8
    assert torch.equal(inputs[1:].long(), target[:-1])
    assert len(data.train) > len(data.held_out) > 0
