"""What somebody may have meant who misspelt a name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described, printable

# What other libraries call things: their words, and ours that may be meant.
_ELSEWHERE = {
    "acc": ["accuracy"],
    "avg": ["average"],
    "avgpool2d": ["pool2d"],
    "backward": ["fit"],
    "batch": ["batch_size"],
    "batchnorm": ["batch_norm"],
    "batchnorm2d": ["batch_norm"],
    "bce": ["binary_crossentropy"],
    "betas": ["beta1"],
    "bfloat16": ["bf16"],
    "bias": ["use_bias"],
    "bmm": ["matmul"],
    "cat": ["concat"],
    "concatenate": ["concat"],
    "crossentropy": ["sparse_categorical_crossentropy"],
    "ddp": ["data"],
    "dim": ["axis", "axes"],
    "div": ["divide"],
    "dp": ["data"],
    "embeddingdim": ["units"],
    "eps": ["epsilon"],
    "fc": ["dense"],
    "float16": ["fp16"],
    "float32": ["fp32"],
    "forward": ["predict"],
    "half": ["fp16"],
    "he": ["he_normal"],
    "hiddensize": ["hidden"],
    "inchannels": ["filters"],
    "inputdim": ["vocabulary"],
    "kaiming": ["he_normal"],
    "kaimingnormal": ["he_normal"],
    "keepdim": ["keepdims"],
    "kernelsize": ["kernel"],
    "layernorm": ["layer_norm"],
    "learningrate": ["lr"],
    "linear": ["dense"],
    "mae": ["mean_absolute_error"],
    "maxpool2d": ["pool2d"],
    "maxpooling2d": ["pool2d"],
    "mha": ["multi_head_attention"],
    "mse": ["mean_squared_error"],
    "mul": ["multiply"],
    "numembeddings": ["vocabulary"],
    "numepochs": ["epochs"],
    "numgroups": ["groups"],
    "outchannels": ["filters"],
    "outfeatures": ["units"],
    "outputdim": ["units"],
    "outputpadding": ["extra"],
    "p": ["rate"],
    "parameters": ["get_weights"],
    "permute": ["transpose"],
    "pp": ["pipeline"],
    "pytorch": ["dtensor"],
    "random": ["random:7"],
    "statedict": ["get_weights"],
    "sub": ["subtract"],
    "swish": ["silu"],
    "torch": ["dtensor"],
    "tp": ["megatron"],
    "train": ["fit"],
    "verbose": ["progress"],
    "view": ["reshape"],
    "xavier": ["glorot_uniform"],
    "xavieruniform": ["glorot_uniform"],
    "zero3": ["fsdp"],
}


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A question to put behind a name that does not exist; empty: nothing is like it.

    Parameters
    ----------
    word
        What was given.
    names
        What there is.

    Examples
    --------
    >>> did_you_mean("lenett", ["lenet", "alexnet"])
    " (did you mean 'lenet'?)"
    """
    known = {name.lower(): name for name in names}
    for meant in _ELSEWHERE.get(word[:100].lower().replace("_", ""), ()):
        if meant.partition(":")[0] in known:
            return f" (did you mean '{meant}'?)"
    close = get_close_matches(word[:100].lower(), known, n=1)
    return f" (did you mean '{known[close[0]]}'?)" if close else ""


def unknown(what: str, name: object, names: Iterable[str]) -> UserError:
    """The error that there is no loss, strategy, ... of that name, and which ones there are."""
    known = list(names)
    word = name if isinstance(name, str) else described(name)
    return UserError(
        f"unknown {what} '{printable(word[:40])}'{did_you_mean(word, known)}; choose one of "
        f"{', '.join(known)}"
    )
