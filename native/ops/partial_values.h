// Stacks of partial values (slot, ...): what several tasks computed of one value or gradient.
#pragma once

#include <cstdint>

#include "ops/device_functions.h"

namespace flexlegion {

// How partial values become one: `to` takes in `from`, element by element.
using Merge = void (*)(const TensorView& to, const TensorView& from);

// Slot `s` of a stack: the view without its first dimension.
TensorView slot_of(const TensorView& stack, std::int64_t s);

// Writes what a stack stands for: its slots, merged in their order.
void combine(const TensorView& stack, Merge merge, const TensorView& to,
             const DeviceFunctions& device);

// The same: the one slot itself, or a result in that device's scratch memory. Nothing of nothing.
TensorView combined(const TensorView& stack, Merge merge, int scratch_slot,
                    const DeviceFunctions& device);

// The value of a gradient, as floats.
TensorView summed(const TensorView& stack, int scratch_slot, const DeviceFunctions& device);

// A maximum's gradient goes to the first element that has it. So of the tasks that computed its
// partial values, `maxima`, number `part` is given the gradient where no earlier one has reached
// the maximum, and zeros elsewhere. Takes scratch slots `scratch_slot` to `scratch_slot` + 2.
TensorView gradient_of_first(const TensorView& gradient, const TensorView& maxima,
                             std::int64_t part, int scratch_slot, const DeviceFunctions& device);

}  // namespace flexlegion
