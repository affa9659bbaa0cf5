#include "ops/partial_gradients.h"

namespace flexlegion {

TensorView slot_of(const TensorView& stack, std::int64_t s) {
  return subview(stack, s - stack.tile.lo[0]);
}

TensorView summed(const TensorView& stack, int scratch_slot, const DeviceFunctions& device) {
  const std::int64_t first = stack.tile.lo[0], last = stack.tile.hi[0];
  const TensorView head = slot_of(stack, first);
  if (last - first == 1) return head;
  const TensorView sum =
      dense_view(device.scratch(scratch_slot, head.volume()), head.tile, head.shape);
  device.copy(sum, head);
  for (std::int64_t s = first + 1; s < last; ++s) device.add(sum, slot_of(stack, s));
  return sum;
}

}  // namespace flexlegion
