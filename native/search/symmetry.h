// Devices that can be exchanged: strategies that differ in such an exchange are one.
#pragma once

#include <vector>

#include "sim/problem.h"

namespace flexlegion {

// For each device the first that it can be exchanged with: same kind, a memory of its own, and
// routes that the exchange maps onto each other, link by link.
std::vector<int> symmetric_devices(const MachineModel& machine, const Graph& graph = {});

// A proposal puts `configs`, all of them on the same devices, in ascending order, in place of those
// of `strategy`. Devices of these that no other operator of `operators` uses become the first ones
// that they can be exchanged with.
void make_canonical(const std::vector<int>& symmetric, const std::vector<OpId>& operators,
                    const PricedStrategy& strategy, PartialStrategy& configs);

}  // namespace flexlegion
