// What an optimizer is told of each weight: as of all others, or as the weight's group says.
#pragma once

#include <vector>

#include "ops/kernel.h"
#include "plan/graph.h"

namespace flexlegion {

struct Hyperparameters {
  struct Group {
    Attributes attributes;
    double rate = 1.0;  // what the learning rate of the iteration is multiplied with
  };
  Group common;
  std::vector<Group> groups;
  std::vector<int> group_of;  // of each tensor; -1: `common`. Empty: there are no groups
  // Of the moving average of each weight, which is then the last of the states; 0: there is none.
  double ema = 0.0;

  const Group& of(TensorId weight) const {
    const int group = group_of.empty() ? -1 : group_of.at(weight.index());
    return group < 0 ? common : groups.at(static_cast<std::size_t>(group));
  }
};

}  // namespace flexlegion
