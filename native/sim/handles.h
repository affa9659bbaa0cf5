// What the simulator's opaque handles hold.
#pragma once

#include <vector>

#include "plan/handles.h"
#include "sim/simulator.h"

struct fl_problem {
  flexlegion::Problem problem;
};

struct fl_simulator {
  explicit fl_simulator(const flexlegion::Problem& problem) : simulator(problem) {}
  flexlegion::Simulator simulator;
};

namespace flexlegion {

// A whole strategy from the flat arrays of the C ABI. Throws std::invalid_argument.
std::vector<Config> strategy_of(const Problem& problem, int n_degrees, const int32_t* degrees,
                                int n_devices, const int32_t* devices);

// The way back: how many devices the configurations name, and the flat arrays. Throws
// std::invalid_argument if these are too short.
int devices_named(const std::vector<Config>& strategy);
void write_strategy(const Problem& problem, const std::vector<Config>& strategy, int n_degrees,
                    int32_t* degrees, int n_devices, int32_t* devices);

}  // namespace flexlegion
