// Machines from the flat arrays of the boundary, checked.
#pragma once

#include "flexlegion_core.h"
#include "sim/machine_model.h"

namespace flexlegion {

// Bytes per second: far beyond any machine, and low enough for 64-bit times.
constexpr std::int64_t kMaxRate = 1'000'000'000'000'000'000;

// Throws `std::invalid_argument` if they do not make a machine.
MachineModel machine_of(const fl_machine& machine);

}  // namespace flexlegion
