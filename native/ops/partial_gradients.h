// Stacks of partial gradients (slot, ...): what several tasks contributed to one gradient.
#pragma once

#include <cstdint>

#include "ops/device_functions.h"

namespace flexlegion {

// Slot `s` of a stack: the view without its first dimension.
TensorView slot_of(const TensorView& stack, std::int64_t s);

// The value of a partial gradient: the one slot itself, or the sum in that device's scratch memory.
TensorView summed(const TensorView& stack, int scratch_slot, const DeviceFunctions& device);

}  // namespace flexlegion
