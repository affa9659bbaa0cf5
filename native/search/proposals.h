// What the search proposes: another configuration for an operator (FlexFlow, section 6.2), drawn
// from all degrees in the cost table and from sets of devices.
#pragma once

#include <utility>
#include <vector>

#include "sim/simulator.h"
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

// Which moves are made; each can be left out, so that its worth can be measured.
struct Moves {
  bool tied = false;     // operators of one group change together
  bool critical = true;  // half of the proposals change an operator on the critical path
  // Some take over the configuration of a neighbour in the graph, and some go on from there: so
  // producers and consumers change together.
  bool neighbours = true;
  // Instead of all these, the paper's own proposals (section 6.2): an operator at random gets one
  // of its configurations, each as likely as the others, so that the proposals are symmetric.
  bool uniform = false;
};

// For each device the first that it can be exchanged with: same kind, a memory of its own, and
// routes that the exchange maps onto each other, link by link.
std::vector<int> symmetric_devices(const MachineModel& machine);

class Proposals {
 public:
  Proposals(const Problem& problem, IdVector<OpId, int> groups);

  // `critical`: operators on the critical path, possibly repeated; may be empty.
  PartialStrategy draw(Random& random, const PricedStrategy& strategy, const Moves& moves,
                       const std::vector<OpId>& critical) const;

  // Every configuration of `op`: each split, on sets of devices, or if there are too many (more
  // than eight devices), on blocks and strides of devices; and each way to combine partial values.
  std::vector<PricedConfig> all(OpId op) const;

  const std::vector<OpId>& operators() const { return operators_; }
  const std::vector<OpId>& members(OpId op) const { return members_[groups_[op]]; }
  const std::vector<Neighbour>& neighbours(OpId op) const { return neighbours_[op]; }

 private:
  // Of devices that no other operator uses and that can be exchanged, the first ones: strategies
  // that differ in such an exchange are one.
  void make_canonical(const PricedStrategy& strategy, PartialStrategy& configs) const;
  PricedConfig random_config(Random& random, OpId op) const;
  std::vector<std::vector<int>> device_sets(int tasks) const;
  PartialStrategy draw_uniform(Random& random) const;
  std::vector<int> random_devices(Random& random, int tasks) const;
  Sums random_sums(Random& random, OpId op, int split) const;
  bool copy_neighbour(Random& random, OpId op, const PricedStrategy& strategy,
                      PricedConfig& config) const;
  bool follow(Random& random, OpId op, const Neighbour& neighbour, const PricedConfig& theirs,
              PricedConfig& config) const;
  bool take_degrees(OpId op, const Neighbour& neighbour, const PricedConfig& theirs,
                    PricedConfig& config) const;
  void spread(Random& random, bool tied, PartialStrategy& configs) const;

  const Problem& problem_;
  int devices_;
  std::vector<int> symmetric_;               // a device: see symmetric_devices
  std::vector<OpId> operators_;              // those that training executes
  IdVector<OpId, std::vector<int>> splits_;  // candidates
  IdVector<OpId, std::vector<std::vector<int>>> splits_by_tasks_;  // for each number of tasks
  IdVector<OpId, unsigned> divisible_;  // dimensions (bits) that candidates split
  IdVector<OpId, int> groups_;
  std::vector<std::vector<OpId>> members_;  // a group
  IdVector<OpId, std::vector<Neighbour>> neighbours_;
  mutable IdVector<OpId, std::vector<PricedConfig>> all_of_class_;  // `all`, once it was needed
};

}  // namespace flexlegion
