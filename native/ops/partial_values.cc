// What reads a stack of partial values: the slots are merged in their order, on whichever device.
//
// The order is fixed, so the bits of a sum do not depend on which task ended first. One slot alone
// is used where it lies; more take one pass for each slot, into scratch memory.
#include "ops/partial_values.h"

namespace flexlegion {

TensorView slot_of(const TensorView& stack, std::int64_t s) {
  return subview(stack, s - stack.tile.lo[0]);
}

void combine(const TensorView& stack, Merge merge, const TensorView& to,
             const DeviceFunctions& device) {
  const std::int64_t first = stack.tile.lo[0], last = stack.tile.hi[0];
  device.copy(to, slot_of(stack, first));
  for (std::int64_t s = first + 1; s < last; ++s) merge(to, slot_of(stack, s));
}

TensorView combined(const TensorView& stack, Merge merge, int scratch_slot,
                    const DeviceFunctions& device) {
  const TensorView head = slot_of(stack, stack.tile.lo[0]);
  if (!stack.present() || stack.extent(0) == 1) return head;
  const TensorView result =
      dense_view(device.scratch(scratch_slot, head.volume()), head.tile, head.shape);
  combine(stack, merge, result, device);
  return result;
}

TensorView summed(const TensorView& stack, int scratch_slot, const DeviceFunctions& device) {
  const TensorView sum = combined(stack, device.add, scratch_slot, device);
  if (!sum.present() || !sum.narrow()) return sum;
  const TensorView floats =
      dense_view(device.scratch(scratch_slot, sum.volume()), sum.tile, sum.shape);
  device.copy(floats, sum);
  return floats;
}

TensorView gradient_of_first(const TensorView& gradient, const TensorView& maxima,
                             std::int64_t part, int scratch_slot, const DeviceFunctions& device) {
  // The first part is never preceded by an equal maximum.
  if (part == 0 || !gradient.present()) return gradient;
  const TensorView most = combined(maxima, device.max, scratch_slot, device);
  const TensorView earlier =
      combined(narrowed(maxima, 0, 0, part), device.max, scratch_slot + 1, device);
  const TensorView result = dense_view(device.scratch(scratch_slot + 2, gradient.volume()),
                                       gradient.tile, gradient.shape);
  device.copy(result, gradient);
  // Where the maximum of the earlier parts is the maximum of all, an earlier task has it.
  device.zero_where_equal(result, most, earlier);
  return result;
}

}  // namespace flexlegion
