"""A model whose weights lie in files computes what it computes in memory."""

import copy
from pathlib import Path

import torch
from torch import nn

from ravnest.planning.mapped_weights import MappedWeights, filled, weight_bytes
from ravnest.splitting.exporting import twin_on_cpu
from ravnest.splitting.model_source import weights_of


def model():
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 5), nn.LayerNorm(5))


def test_a_model_in_files_computes_the_same():
    torch.manual_seed(0)
    right = model()
    files = MappedWeights(least_bytes=4 * 6 * 5)
    with torch.device("meta"):
        shape = model()
    values = weights_of(right)
    found = filled(twin_on_cpu(shape), values.__getitem__, files)
    assert files.places.keys() == {"0.weight", "1.weight"}
    words, results = torch.arange(7), []
    for each in (right, found):
        with files.sparing():
            output = each(words)
            output.square().sum().backward()
        results.append([output, *(parameter.grad for parameter in each.parameters())])
    for mine, other in zip(*results, strict=True):
        assert torch.equal(mine, other)
    assert copy.deepcopy(found)[0].weight.data_ptr() != found[0].weight.data_ptr()


def test_the_files_are_gone_with_the_weights():
    files = MappedWeights(least_bytes=1)
    kept = files.put("a", torch.arange(5, dtype=torch.bfloat16))
    files.put("b", torch.ones(3))
    (first, second) = files.places.values()
    assert bytes(second.mapped(12)) == torch.ones(3).numpy().tobytes()
    del files
    assert not Path(first.file).exists()
    assert kept.tolist() == [0, 1, 2, 3, 4]
    assert MappedWeights(least_bytes=1).put("c", torch.zeros(0)).numel() == 0


def test_the_bytes_of_a_model_are_those_of_its_parameters_and_buffers():
    assert weight_bytes(nn.BatchNorm1d(3)) == 4 * 4 * 3 + 8
