"""The tables: families of models, and kinds of data, as jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.families import dense
from experiments.families.datasets import CLASSES, LENGTH, SIDE, WORDS
from experiments.families.trial import Family, mse

HERE = "experiments.families"


def _factory(place: str, **args: object) -> dict[str, object]:
    return {"factory": f"{HERE}.{place}", **({"args": args} if args else {})}


def _family(name: str, model: str, data: str, job: Mapping[str, object] | None = None, /, **more: Any) -> Family:
    """`more`: `args` of the model's factory, and what Family takes."""
    args = more.pop("args", {})
    return Family(name, _factory(model, **args), _factory(f"datasets:{data}"), job or {}, **more)


MSE: Mapping[str, object] = {"loss": "mse"}


def _function(place: str) -> dict[str, object]:
    return {"loss": {"function": f"{HERE}.{place}"}}


DENSE: Sequence[Family] = (
    _family("perceptron", "dense:perceptron", "vectors"),
    _family("perceptron, SELU by name", "dense:ordered", "vectors"),
    _family("perceptron, regression", "dense:perceptron", "numbers", MSE, loss=mse),
    _family("perceptron, BatchNorm1d", "dense:with_batch_norm", "vectors"),
    _family("perceptron, dropout", "dense:with_dropout", "vectors", draws=True),
    _family("perceptron, weight norm", "dense:with_weight_norm", "vectors"),
    _family("perceptron, old weight norm", "dense:with_old_weight_norm", "vectors"),
    _family("perceptron, orthogonal", "dense:orthogonal", "vectors"),
    _family("perceptron, spectral norm", "dense:with_spectral_norm", "vectors"),
    _family("residual perceptron", "dense:Residual", "vectors"),
    _family("highway net", "dense:Highway", "vectors"),
    _family("maxout net", "dense:Maxout", "vectors"),
    _family("deep and cross net", "dense:CrossNet", "vectors"),
    _family("mixture of experts, soft", "dense:Experts", "vectors"),
    _family("autoencoder, tied by hand", "dense:Autoencoder", "itself", MSE, loss=mse),
    _family(
        "variational autoencoder",
        "dense:Variational",
        "itself",
        _function("dense:evidence"),
        loss=lambda: dense.evidence,
        draws=True,
    ),
    _family("two towers", "dense:TwoTowers", "by_keyword"),
    _family("siamese net", "dense:Siamese", "by_keyword"),
    _family("a dict, hidden states first", "dense:HiddenFirst", "vectors"),
    _family("two heads", "dense:TwoHeads", "two_targets", _function("dense:of_both"), loss=lambda: dense.of_both),
    _family(
        "ArcFace",
        "dense:embedder",
        "vectors",
        {"loss": {"factory": f"{HERE}.dense:ArcFace"}},
        loss=dense.ArcFace,
    ),
    _family("first layer frozen", "dense:partly_frozen", "vectors"),
    _family("straight-through estimate", "own_code:StraightThrough", "vectors"),
    _family("an autograd.Function of the user's", "own_code:OwnBackward", "vectors"),
    _family("an operator of the user's", "own_code:OwnOperator", "vectors"),
    _family("graph convolution", "dense:GraphConvolution", "graphs"),
    _family("graph convolution, BatchNorm1d", "dense:GraphConvolution", "graphs", args={"norm": True}),
    _family("graph attention", "dense:GraphAttention", "graphs"),
    _family("graph isomorphism net", "dense:GraphIsomorphism", "graphs"),
)

CONVOLUTIONAL: Sequence[Family] = (
    _family("LeNet", "convolutional:lenet", "images"),
    _family("VGG, batch norm", "convolutional:vgg", "images"),
    _family("VGG, group norm", "convolutional:vgg", "images", args={"norm": "group"}),
    _family("ResNet, batch norm", "convolutional:Residual", "images"),
    _family("ResNet, instance norm", "convolutional:Residual", "images", args={"norm": "instance"}),
    _family("ResNet, tracked instance norm", "convolutional:Residual", "images", args={"norm": "instance_tracked"}),
    _family("ResNet, second kind", "convolutional:PreActivation", "images"),
    _family("DenseNet", "convolutional:Dense", "images"),
    _family("Inception", "convolutional:Inception", "images"),
    _family("SqueezeNet", "convolutional:Squeeze", "images"),
    _family("MobileNet", "convolutional:Mobile", "images"),
    _family("EfficientNet", "convolutional:Mobile", "images", args={"excite": True}),
    _family("ShuffleNet", "convolutional:Shuffle", "images"),
    _family("ConvNeXt", "convolutional:ConvNext", "images"),
    _family("U-Net, segmentation", "convolutional:UNet", "masks"),
    _family("U-Net, denoising", "convolutional:UNet", "denoised", MSE, args={"outputs": 3}, loss=mse),
    _family("fully convolutional, segmentation", "convolutional:fully_convolutional", "masks"),
    _family("super-resolution", "convolutional:UpSampling", "denoised", MSE, loss=mse),
    _family("one-dimensional, dilated", "convolutional:waves", "waves"),
    _family("three-dimensional", "convolutional:volumes", "volumes"),
)

SEQUENTIAL: Sequence[Family] = (
    _family("LSTM", "sequential:Recurrent", "sentences"),
    _family("GRU", "sequential:Recurrent", "sentences", args={"kind": "GRU"}),
    _family("RNN, both directions", "sequential:Recurrent", "sentences", args={"kind": "RNN", "bidirectional": True}),
    _family("GRU, last state", "sequential:Tracker", "tracks"),
    _family("LSTM cell in a loop", "sequential:Cells", "tracks"),
    _family("bag of words", "sequential:Bag", "first_words"),
    _family("text CNN", "sequential:TextConvolution", "first_words"),
    _family("GPT", "sequential:Transformer", "sentences"),
    _family("GPT, tied", "sequential:Transformer", "sentences", args={"tied": True}),
    _family("GPT, dropout", "sequential:Transformer", "sentences", args={"dropout": 0.1}, draws=True),
    _family("transformer, norms after", "sequential:Transformer", "sentences", args={"norm": "after"}),
    _family(
        "transformer, rotary, gated, grouped",
        "sequential:Transformer",
        "sentences",
        args={"places": "rotary", "gated": True, "groups": 1},
    ),
    _family("transformer, ALiBi", "sequential:Transformer", "sentences", args={"places": "alibi"}),
    _family("torch's TransformerEncoder", "sequential:TorchEncoder", "sentences"),
    _family("torch's Transformer", "sequential:TorchTransformer", "tracks"),
    _family("linear attention", "sequential:LinearAttention", "sentences"),
    _family("state space", "sequential:StateSpace", "sentences"),
    _family("FNet, complex", "sequential:Fourier", "tracks"),
    _family("MLP-Mixer", "sequential:Mixer", "tracks"),
    _family("ViT", "sequential:Vision", "images"),
    _family("experts chosen by masks", "sequential:Choosing", "sentences"),
)

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_LANGUAGE = {**_SIZES, "vocab_size": WORDS, "max_position_embeddings": LENGTH, "pad_token_id": 0}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_IMAGES = {**_SIZES, **_STILL, "image_size": SIDE, "patch_size": 4, "num_labels": CLASSES}
_SOUNDS = {
    **{"model_type": "wav2vec2", **_SIZES, "architectures": ["Wav2Vec2ForSequenceClassification"]},
    **{"num_labels": CLASSES, "classifier_proj_size": 16, "conv_dim": [16, 16], "conv_kernel": [4, 4]},
    **{"conv_stride": [2, 2], "num_feat_extract_layers": 2, "feat_extract_norm": "layer", "layerdrop": 0.0},
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False},
    **{"hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "feat_proj_dropout": 0.0},
    **{"final_dropout": 0.0},
}


def _hugging_face(name: str, data: str, config: Mapping[str, object], **more: Any) -> Family:
    return Family(name, {"huggingface": dict(config)}, _factory(f"datasets:{data}"), **more)


HUGGING_FACE: Sequence[Family] = (
    _hugging_face("Llama", "hugging_face", {"model_type": "llama", **_LANGUAGE, "num_key_value_heads": 2}),
    _hugging_face("Mistral", "hugging_face", {"model_type": "mistral", **_LANGUAGE, "num_key_value_heads": 2}),
    _hugging_face(
        "Qwen2, tied",
        "hugging_face",
        {"model_type": "qwen2", **_LANGUAGE, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    _hugging_face(
        "GPT-2",
        "hugging_face",
        {
            **{"model_type": "gpt2", "vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2},
            **{"n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        },
    ),
    _hugging_face("GPT-NeoX", "hugging_face", {"model_type": "gpt_neox", **_LANGUAGE}),
    _hugging_face(
        "BERT, classification",
        "classified_text",
        {
            **{"model_type": "bert", **_LANGUAGE, **_STILL, "num_labels": CLASSES},
            "architectures": ["BertForSequenceClassification"],
        },
    ),
    _hugging_face(
        "RoBERTa, masked",
        "hugging_face",
        {
            **{"model_type": "roberta", **_LANGUAGE, **_STILL, "max_position_embeddings": LENGTH + 2},
            "architectures": ["RobertaForMaskedLM"],
        },
    ),
    _hugging_face(
        "DistilBERT",
        "classified_text",
        {
            **{"model_type": "distilbert", "vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4},
            **{"hidden_dim": 64, "max_position_embeddings": LENGTH, "num_labels": CLASSES, "dropout": 0.0},
            **{"attention_dropout": 0.0, "seq_classif_dropout": 0.0, "pad_token_id": 0},
            "architectures": ["DistilBertForSequenceClassification"],
        },
    ),
    _hugging_face(
        "ViT of Hugging Face",
        "pixel_values",
        {"model_type": "vit", **_IMAGES, "architectures": ["ViTForImageClassification"]},
    ),
    _hugging_face(
        "T5 encoder, classification",
        "classified_text",
        {
            **{"model_type": "t5", "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2},
            **{"num_heads": 4, "dropout_rate": 0.0, "num_labels": CLASSES, "classifier_dropout": 0.0},
            **{"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
            "architectures": ["T5EncoderModel"],
        },
        refused="logits",
    ),
    _hugging_face(
        "Mixtral",
        "hugging_face",
        {
            **{"model_type": "mixtral", **_LANGUAGE, "num_key_value_heads": 2},
            **{"num_local_experts": 4, "num_experts_per_tok": 2},
        },
    ),
    _hugging_face(
        "XLNet, classification",
        "classified_text",
        {
            **{"model_type": "xlnet", "vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
            **{"dropout": 0.0, "summary_last_dropout": 0.0, "num_labels": CLASSES, "pad_token_id": 0},
            "architectures": ["XLNetForSequenceClassification"],
        },
    ),
    _hugging_face("wav2vec 2.0", "sounds", _SOUNDS),
    _hugging_face(
        "wav2vec 2.0, SpecAugment",
        "sounds",
        {**_SOUNDS, "apply_spec_augment": True, "mask_time_prob": 0.5},
        refused="numpy",
    ),
)

REFUSED: Sequence[Family] = (
    _family("branches on values", "own_code:Branching", "vectors", refused="model"),
    _family("draws from numpy", "own_code:NumpyNoise", "vectors", refused="model"),
    _family("nothing is trained", "dense:all_frozen", "vectors", refused="requires_grad"),
    _family("a lazy layer", "dense:lazy", "vectors", refused="azy"),
    _family("a hook on gradients", "own_code:masked", "vectors", refused="'0.weight' has a hook"),
    _family("a number that forwards change", "own_code:Annealed", "vectors", refused="'noise'"),
)

MODELS: Sequence[Family] = (
    *DENSE,
    *CONVOLUTIONAL,
    *SEQUENTIAL,
    *HUGGING_FACE,
    *REFUSED,
)

DATA: Sequence[Family] = (
    _family("tensors", "dense:perceptron", "vectors"),
    _family("two inputs by position", "dense:TwoTowers", "pairs"),
    _family("inputs by keyword", "dense:TwoTowers", "by_keyword"),
    _family("Python's numbers", "dense:Square", "single_numbers", MSE, loss=mse),
    _family(
        "targets of two kinds", "dense:TwoHeads", "two_targets", _function("dense:of_both"), loss=lambda: dense.of_both
    ),
    _family("images and labels in a dict", "convolutional:Wrapped", "pixel_values"),
    _family("lists in a dict, as Hugging Face's", "sequential:Masked", "hugging_face"),
    _family("DataLoaders", "dense:perceptron", "loaders"),
    _family("ragged, padded by collate_fn", "sequential:Transformer", "ragged"),
    _family("one target a pixel", "convolutional:fully_convolutional", "masks"),
    _family(
        "masks drawn at each read (torch)",
        "sequential:Transformer",
        "masked_words",
        args={"words": WORDS + 1, "causal": False},
    ),
    _family("rotation drawn as target (random)", "convolutional:grey", "turned"),
    _family("joint crops (numpy)", "convolutional:fully_convolutional", "cropped"),
    _family("a generator of its own", "dense:perceptron", "own_generator", refused="generator"),
    _family("a stream that cannot be sharded", "dense:perceptron", "stream", refused="num_shards"),
    _family("ragged, not padded", "sequential:Transformer", "ragged_unpadded", refused="collate_fn"),
    _family("batches of several lengths", "sequential:Transformer", "changing_lengths", refused="length"),
)

QUICK = ("ArcFace", "DenseNet", "GPT, tied", "branches on values", "masks drawn at each read (torch)")
"""Those that `--quick` tries."""
