"""Models that return more than one tensor, and losses that take more than one or have parameters of their own."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 11


class Returned(NamedTuple):
    hidden: Tensor
    more: dict[str, Any]


class Tagger(nn.Module):
    """Returns a hidden tensor before its logits, in a dict, a tuple, or a class."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.words, self.head, self.aside = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), nn.Linear(8, WORDS)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, ids_BT: Tensor) -> Any:  # noqa: N803 - shape suffixes
        x_BTC = self.words(ids_BT)
        hidden = self.aside(x_BTC)
        for layer in self.layers:
            x_BTC = x_BTC + torch.tanh(layer(x_BTC))
        logits = self.head(x_BTC)
        if self.form == "dict":
            return {"hidden": hidden, "logits": logits, "nothing": None}
        if self.form == "tuple":
            return hidden, logits
        return Returned(hidden, {"logits": [logits], "samples": ids_BT.shape[0]})


def tagger(form: str = "dict") -> nn.Module:
    return Tagger(form)


def both(output: Any, target: Tensor, share: float = 0.5) -> Tensor:
    """Of logits and of the hidden tensor, wherever these stand in the output."""
    if isinstance(output, Returned):
        assert output.more["samples"] == len(target)
        output = {"hidden": output.hidden, "logits": output.more["logits"][0]}
    if isinstance(output, tuple):
        output = dict(zip(("hidden", "logits"), output, strict=True))
    parts = [functional.cross_entropy(output[name].flatten(0, 1), target.flatten()) for name in ("logits", "hidden")]
    return parts[0] + share * parts[1]


def language_model() -> nn.Module:
    """A model of transformers as a factory makes it, which returns a ModelOutput."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        use_cache=False, output_hidden_states=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def of_model_output(output: Any, target: Tensor) -> Tensor:
    """Of a ModelOutput, by attribute, by key and by position."""
    assert output.logits is output["logits"] is output[0]
    logits = output.logits + 0.1 * output.hidden_states[0].sum(-1, keepdim=True).detach()
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class ArcFace(nn.Module):
    """An angular margin: the classes' directions are parameters of the loss, and the step is counted in a buffer."""

    def __init__(self, width: int = 16, classes: int = 5, margin: float = 0.1) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(classes, width))
        self.margin = margin
        self.register_buffer("norm", torch.zeros(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if self.training:
            self.norm = 0.9 * self.norm + 0.1 * output.detach().norm(dim=1).mean()
        cosine = functional.normalize(output) @ functional.normalize(self.directions).T
        return functional.cross_entropy(4 * (cosine - self.margin * functional.one_hot(target, len(cosine[0]))), target)


class Hidden(nn.Module):
    """Shows nothing of what it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = [nn.Linear(16, 5)]

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(self.inner[0](output), target)


class Centred(nn.Module):
    """Learns in a buffer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(16))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.centre.lerp_(output.detach().mean(0), 0.1)
        return (output - self.centre).square().mean()


def embedder() -> nn.Module:
    """Images to embeddings."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 16))


class WithALoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.Linear(64, 16)

    def forward(self, x_BCHW: Tensor) -> Tensor:  # noqa: N803
        return self.loss(x_BCHW.flatten(1))


def with_a_loss() -> nn.Module:
    return WithALoss()


def of_logits(output: Any, target: Tensor) -> Tensor:
    """Of one of two tensors that the model returns."""
    return functional.cross_entropy(output["logits"].flatten(0, 1), target.flatten())
