// What a search chooses from: of each operator that training executes, its splits in the cost table
// and sets of devices; which operators change together, and which are neighbours in the graph.
#pragma once

#include <vector>

#include "sim/problem.h"
#include "support/random.h"

namespace flexlegion {

// An operator that writes or reads a tensor of another one's.
struct Neighbour {
  OpId op;
  // Of each dimension of its space, the other's dimension that goes along with it in the tensor
  // between them, by the access maps; -1: none. Split alike in these, each task of the reader finds
  // in its memory what it reads: so a layer whose units are split is followed by one that is split
  // by its input, Megatron's pair.
  std::vector<int> followers;
  std::size_t back = 0;  // which of its own neighbours the other one is, by the same tensor
};

class Candidates {
 public:
  Candidates(const Problem& problem, IdVector<OpId, int> groups);

  const Problem& problem() const { return problem_; }
  int devices() const { return devices_; }
  const std::vector<OpId>& operators() const { return operators_; }  // those of training
  // The operators of its group, which may be tied: all get one configuration.
  const std::vector<OpId>& members(OpId op) const { return members_[groups_[op]]; }
  const std::vector<Neighbour>& neighbours(OpId op) const { return neighbours_[op]; }
  // Its splits, in lists of as many tasks.
  const std::vector<std::vector<int>>& splits_by_tasks(OpId op) const {
    return splits_by_tasks_[op];
  }
  // Whether some of them cut that dimension of its space.
  bool can_split(OpId op, int dimension) const { return (divisible_[op] >> dimension & 1u) != 0; }

  // Every configuration of `op`: each split, on sets of devices, or if there are too many (more
  // than eight devices), on blocks and strides of devices; and each way to combine partial values,
  // of outputs and of weights' gradients.
  std::vector<PricedConfig> all(OpId op) const;

  // Of each task of a split, its device: a block of devices, every n-th one, or any set. On large
  // machines, any dimension may be the one whose parts lie on neighbouring devices.
  std::vector<int> random_devices(Random& random, const Split& split) const;
  // What changes if an operator, or with `tied` all of its group, gets a configuration. None of
  // them becomes hierarchical that cannot be.
  PartialStrategy changes(OpId op, const PricedConfig& config, bool tied) const;
  // How partial values of outputs and of weights' gradients are combined, where there is a choice.
  void choose_sums(Random& random, OpId op, PricedConfig& config) const;
  bool can_be_hierarchical(OpId op) const { return hierarchical_[op]; }

 private:
  std::vector<int> random_set(Random& random, int tasks) const;
  std::vector<std::vector<int>> device_sets(int tasks) const;

  const Problem& problem_;
  int devices_;
  std::vector<OpId> operators_;
  IdVector<OpId, std::vector<int>> splits_;
  IdVector<OpId, std::vector<std::vector<int>>> splits_by_tasks_;
  IdVector<OpId, unsigned> divisible_;  // dimensions, as bits
  IdVector<OpId, bool> hierarchical_;   // whether weights' gradients can be summed inside nodes
  IdVector<OpId, int> groups_;
  std::vector<std::vector<OpId>> members_;  // a group
  IdVector<OpId, std::vector<Neighbour>> neighbours_;
};

}  // namespace flexlegion
