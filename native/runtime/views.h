// Legion's physical regions as the kernels' views.
#pragma once

#include "legion.h"
#include "ops/tensor_view.h"
#include "runtime/regions.h"
#include "support/rect.h"

namespace flexlegion {

// The part `rect` (not empty) of a mapped region whose elements are of that type. The view's
// `shape` is left to the caller.
TensorView view_of(const Legion::PhysicalRegion& region, Legion::FieldID field, const Rect& rect,
                   DataType type);

// A look from outside of tasks at all of a region's field: on each rank, once all that writes it
// has ended. All ranks make it, and end it, in the same order.
class MappedTensor {
 public:
  MappedTensor(const RegionStore& regions, int region, Legion::FieldID field);
  ~MappedTensor();
  MappedTensor(const MappedTensor&) = delete;
  MappedTensor& operator=(const MappedTensor&) = delete;

  const TensorView& view() const { return view_; }

 private:
  Legion::PhysicalRegion physical_;
  TensorView view_;
};

}  // namespace flexlegion
