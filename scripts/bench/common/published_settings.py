"""Which rows of published runs cannot be said, and settings that are in code beside the figures.

The rule is for all rows, and looks at no ratio: a row is not simulated if its source, which is
text, scripts and code, does not say how much is computed or sent, or which GPU computes.
That is the network's sizes, the length of sequences, the batch and micro-batches, what is computed
again, the precision, and how GPUs were divided. A default of the script that a published command
runs is said. What is known of a named data set, card or machine is said there. How fast links are
is the machine's: where nodes' links were not published they are those of the shipped machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

# What is computed again by default of scripts, where figures are beside commands that do not say:
# - hpcaitech/ColossalAI-Pytorch-lightning, benchmark/gpt: train.py has checkpoints of all blocks
#   unless it is told --no_activation_ckpt, and sequences of 1,024; the README's commands say
#   neither. model.py takes GPT-2 of transformers, whose dropout is 0.1.
# - NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT/scripts/run_pretraining.sh:
#   checkpoint_activations is false.
_AGAIN_BY_DEFAULT = {"PyTorch Lightning": "full", "pytorch 21.11": "none"}


def recomputation(row: Row) -> str:
    """What a row says is computed again, or its script's default; "unknown": neither."""
    said = str(row["recompute"] or "none").lower()
    if said != "unknown":
        return said
    name = row["system"]
    defaults = (its for start, its in _AGAIN_BY_DEFAULT.items() if name.startswith(start))
    return next(defaults, said)


def not_said(row: Row) -> str | None:
    """Which setting was not published; None: all were that count."""
    its = row["hardware"]
    if row["micro_batch"] is None or row["accumulation"] is None:
        return "the micro-batch was not published"
    if " or " in its["gpu"]:
        return f"whether it ran on {its['gpu']} was not published"
    caveats = "; ".join(row["caveats"])
    if "GPU of the sentence not stated" in caveats:  # nor is its batch (nanoGPT's README)
        return "GPU and batch were not published"
    again = recomputation(row)
    partly = again != "none" and "which blocks are checkpointed is not stated" in caveats
    if again == "unknown" or partly:
        return "what is computed again was not published"
    if "auto" in row["system"] and row["model"]["family"] == "cnn":
        return 'how "auto" divided it was not published'
    return None
