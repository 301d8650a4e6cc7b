import torch

from examples.home.model import gpt as plain
from experiments.wire.rereading import RereadingGPT, text

SIZES = {"vocab": 97, "layers": 3, "width": 16, "heads": 2, "context": 8}


def test_without_its_tables_it_is_the_gpt_of_the_example():
    model, other = RereadingGPT(plain(**SIZES), carried=1.0), plain(**SIZES)
    other.load_state_dict({name: value for name, value in model.state_dict().items() if "again" not in name})
    tokens = torch.randint(97, (2, 8))
    assert not torch.equal(model(tokens), other(tokens))
    assert len(model.again) == 2
    with torch.no_grad():
        for parameter in model.again.parameters():
            parameter.zero_()
    assert torch.equal(model(tokens), other(tokens))
    assert torch.equal(model(tokens.to(torch.uint8)), other(tokens))


def test_where_nothing_is_carried_the_last_block_sees_its_own_tables_alone():
    model = RereadingGPT(plain(**SIZES), carried=0.0)
    tokens = torch.randint(97, (2, 8))
    before = model(tokens)
    with torch.no_grad():
        for parameter in [*model.blocks[0].parameters(), *model.token.parameters()]:
            parameter.add_(1.0)
    assert torch.equal(model(tokens), before)
    with torch.no_grad():
        model.again[-1].token.weight.add_(torch.randn_like(model.again[-1].token.weight))
    assert not torch.equal(model(tokens), before)


def test_ids_are_bytes_and_targets_the_characters_that_follow():
    data = text(8)
    inputs, target = data.train[3]
    assert inputs.dtype == torch.uint8
    assert torch.equal(inputs[1:].long(), target[:-1])
    assert len(data.train) > len(data.held_out) > 0
