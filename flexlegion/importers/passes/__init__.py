"""Passes over the internal form, in their order."""

from __future__ import annotations

from flexlegion.importers.passes.attention import recognise_attention
from flexlegion.importers.passes.drop_path import recognise_drop_path
from flexlegion.importers.passes.epilogues import fuse_epilogues
from flexlegion.importers.passes.experts import recognise_experts
from flexlegion.importers.passes.expressions import as_expressions, fuse_expressions
from flexlegion.importers.passes.identities import drop_identities
from flexlegion.importers.passes.masks import additive_masks, simplify_masks
from flexlegion.importers.passes.moments import decompose_variances
from flexlegion.importers.passes.norms import (
    apply_computed_vectors,
    decompose_lengths,
    recognise_rms_norm,
)
from flexlegion.importers.passes.parts import part_parameters
from flexlegion.importers.passes.ranks import pick_elements
from flexlegion.importers.passes.rotary import recognise_rotary
from flexlegion.importers.passes.tokens import look_up_parts, mark_counts
from flexlegion.importers.passes.top_k import recognise_top_k
from flexlegion.importers.program import Pass, Program

PASSES: tuple[Pass, ...] = (
    mark_counts,
    drop_identities,
    part_parameters,
    look_up_parts,
    simplify_masks,
    recognise_drop_path,
    recognise_rms_norm,
    apply_computed_vectors,
    decompose_lengths,
    decompose_variances,
    recognise_rotary,
    recognise_attention,
    recognise_experts,
    recognise_top_k,
    pick_elements,
    additive_masks,
    fuse_epilogues,
    as_expressions,
    fuse_expressions,
)


def run(program: Program) -> None:
    """All passes, one after the other."""
    for apply in PASSES:
        apply(program)
        program.prune()
