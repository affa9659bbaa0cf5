// The pairing of two neighbours, task by task: so that a task's input lies where it was computed.
//
// Which dimensions go together is known from the access maps (Candidates). Each degree of the
// neighbour is taken over in the dimension that follows it. Degrees of dimensions that nothing
// follows, such as a reduction, are given to any dimension that can be split, so that as many tasks
// remain. Then task k of this operator goes to the device of the neighbour's task with the same
// indices in the dimensions that are shared.
#include <algorithm>
#include <array>
#include <numeric>

#include "search/moves/moves.h"

namespace flexlegion {

// Splits `op` along the dimensions that go with the neighbour's, and puts each task where the
// neighbour's task of the same part is. What the neighbour splits besides (a dimension that is not
// in the tensor, such as one it reduces) splits any other dimension, and its parts go on in order.
bool follow(const Candidates& candidates, Random& random, OpId op, const Neighbour& neighbour,
            const PricedConfig& theirs, PricedConfig& config) {
  const Problem& problem = candidates.problem();
  const std::vector<int>& degrees = problem.split(neighbour.op, theirs.split).degrees;
  std::vector<int> mine(problem.split(op, 0).degrees.size(), 1);
  std::array<int, kMaxRegionRank> followed;  // a dimension of mine: which of theirs it goes with
  followed.fill(-1);
  const auto take = [&](int d, int e) {
    mine[d] = degrees[e];
    followed[d] = e;
  };
  const int rank = static_cast<int>(mine.size());
  std::array<bool, kMaxRegionRank>
      goes{};  // a dimension of theirs: whether it goes with one of mine
  for (int e = 0; e < static_cast<int>(degrees.size()); ++e) {
    int along = neighbour.followers[e];
    // Partial values stay apart, if there are any, or are combined by whoever reads them.
    const bool apart = along >= 0 && along == problem.graph.operators[op].part();
    if (degrees[e] == 1 || (apart && (theirs.sums == Sums::shards || random.chance(0.5)))) {
      along = -1;
    }
    if (along >= 0) take(along, e);
    goes[e] = along >= 0;
  }
  for (int e = 0; e < static_cast<int>(degrees.size()); ++e) {
    if (degrees[e] == 1 || goes[e]) continue;
    // Dimensions of this operator that follow nothing yet.
    std::array<int, kMaxRegionRank> free;
    int count = 0;
    for (int d = 0; d < rank; ++d) {
      if (followed[d] < 0 && candidates.can_split(op, d)) free[count++] = d;
    }
    if (count > 0) take(free[random.below(count)], e);
  }
  const auto& table = problem.costs.number_of[problem.costs.class_of[op]];
  const auto its = table.find(mine);
  if (its == table.end()) return false;
  config.split = its->second;
  const int tasks = problem.split(op, config.split).tasks;
  std::array<int, kMaxRegionRank> stride;  // of theirs, in tasks
  int volume = 1;
  for (int e = static_cast<int>(degrees.size()) - 1; e >= 0; --e) {
    stride[e] = volume;
    volume *= degrees[e];
  }
  if (problem.in_order && tasks > candidates.devices()) return false;
  config.devices.resize(static_cast<std::size_t>(tasks));
  if (problem.in_order) {
    std::iota(config.devices.begin(), config.devices.end(), 0);
    return true;
  }
  for (int k = 0; k < tasks; ++k) {
    // The task's indices, from the last dimension to the first, and the number of the neighbour's
    // task that has the same ones.
    int rest = k, task = 0;
    for (int d = rank - 1; d >= 0; --d) {
      if (followed[d] >= 0) task += rest % mine[d] * stride[followed[d]];
      rest /= mine[d];
    }
    config.devices[k] = theirs.devices[task];
  }
  return true;
}

}  // namespace flexlegion
