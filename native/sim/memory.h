// Peak memory of a simulated iteration, and what memories are for.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/simulation.h"

namespace flexlegion {

// For each memory, the most bytes that it holds at one time. Weights, their gradients and optimizer
// states stay throughout. An instance of an activation, or of its gradient, lives from the start of
// the first task or transfer that fills it to the end of the last task or transfer that uses it; a
// saved activation thus until the backward pass. What prediction alone computes takes nothing.
std::vector<std::int64_t> peak_memory(const TaskGraph& graph, const Timeline& line);

// For each memory, the bytes of each `Content` that it holds all the time, as the runtime does:
// [memory * kContents + content].
std::vector<std::int64_t> memory_contents(const TaskGraph& graph);

}  // namespace flexlegion
