// Legion's physical regions as the kernels' views.
#pragma once

#include "legion.h"
#include "ops/tensor_view.h"
#include "support/rect.h"

namespace flexlegion {

// The part `rect` (not empty) of a mapped region. The view's `shape` is left to the caller.
TensorView view_of(const Legion::PhysicalRegion& region, Legion::FieldID field, const Rect& rect);

// Slot `s` of a stack of partial gradients: the view without its first dimension.
TensorView slot_of(const TensorView& stack, std::int64_t s);

// The value of a partial gradient: the one slot itself, or the sum in scratch memory.
TensorView summed(const TensorView& stack, int scratch_slot);

}  // namespace flexlegion
