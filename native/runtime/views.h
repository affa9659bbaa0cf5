// Legion's physical regions as the kernels' views.
#pragma once

#include "legion.h"
#include "ops/tensor_view.h"
#include "support/rect.h"

namespace flexlegion {

// The part `rect` (not empty) of a mapped region whose elements are of that type. The view's
// `shape` is left to the caller.
TensorView view_of(const Legion::PhysicalRegion& region, Legion::FieldID field, const Rect& rect,
                   DataType type);

}  // namespace flexlegion
