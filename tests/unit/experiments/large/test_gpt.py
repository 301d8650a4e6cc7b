import pytest

from experiments.large.gpt import LENGTH, VOCABULARY, config_of, data
from ravnest.splitting import build_model


def numbers(config):
    model = build_model({"huggingface": config}, "meta", resolve=str)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("wanted", [200_000, 10**7, 4 * 10**8])
def test_a_gpt_has_as_many_parameters_as_asked_for_and_no_layer_more(wanted):
    config = config_of(wanted)
    layer = 12 * config["n_embd"] ** 2 + 13 * config["n_embd"]
    assert wanted <= numbers(config) < wanted + 1.1 * layer
    assert config["n_embd"] % config["n_head"] == 0


def test_each_number_of_a_sequence_follows_from_the_one_before():
    for part in (data(8).train, data(8).held_out):
        for index in range(len(part)):
            x, y = part[index]
            assert x.shape == y.shape == (LENGTH,)
            assert x[1:].tolist() == y[:-1].tolist()
            rules = [(a, c) for a in (1, 3, 5, 7) for c in (1, 3, 5, 7)]
            assert any(((a * x + c) % VOCABULARY).tolist() == y.tolist() for a, c in rules)
    assert data(8).train[0][0].tolist() != data(8).held_out[0][0].tolist()
