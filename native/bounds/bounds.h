// Lower bounds of the iteration time over all strategies that share a partial one: what branch and
// bound asks for (search/exhaustive.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/geometry.h"
#include "sim/problem.h"
#include "sim/simulation.h"

namespace flexlegion {

class Bounds {
 public:
  static constexpr int kParts = 8;  // tasks of a configuration

  // The operators that training executes, in the graph's order, and what each chooses from.
  Bounds(const Problem& problem, const std::vector<OpId>& operators,
         std::vector<std::vector<PricedConfig>> configs);

  // The operators in the order in which they get configurations, and these.
  const std::vector<OpId>& operators() const { return operators_; }
  const std::vector<PricedConfig>& configs(int position) const { return nodes_[position].configs; }

  // What any strategy takes at least.
  std::int64_t root() const { return root_; }
  // What any strategy takes at least whose first `position` operators are configured as in the
  // calls before, and the next one so.
  // Stops at a bound that reaches `limit`.
  std::int64_t assign(int position, int config, std::int64_t limit);
  // The same without a bound.
  void place(int position, int config);

 private:
  using Time = std::int64_t;
  // A strategy takes at least its longest chain of dependencies, and at least its work spread
  // evenly over the devices, so at least any weighted mean of both. Configurations with few tasks
  // make long chains, those with many tasks make work: a mean of both is large for either. These
  // are the weights of the work, where the chain has 1. `around` holds the least, over all
  // configurations, of the chain and the weighted work beyond the operator's least.
  static constexpr std::array<Time, 4> kWeights = {0, 2, 8, 32};
  static constexpr Time kNone = -(Time{1} << 60);  // no dependency

  // [part of one operator * width + part of another]
  struct Matrix {
    int width = 0;
    std::vector<Time> at;
  };
  struct Edge {
    int from = 0, to = 0;                       // positions
    std::vector<std::pair<int, int>> operands;  // (writer's output, reader's input)
    // [writer's configuration * reader's configurations + reader's configuration]
    std::vector<Matrix> forward, backward;
    bool all_read = true;  // every task of the reader, however split, reads of the writer
    // [weight][writer's configuration]: forward end to backward start
    std::array<std::vector<Matrix>, kWeights.size()> around;
  };
  struct Node {
    OpId op;
    std::vector<PricedConfig> configs;
    std::vector<std::vector<Time>> forward, backward, head, tail;  // [configuration][part]
    std::vector<std::vector<Time>> load;                           // [configuration][device]
    std::vector<Time> work;    // [configuration]: of all its own tasks
    std::vector<int> in, out;  // edges
  };

  void find_edges();
  void fill(Node& node);
  void fill_updates(Node& node);
  void add_sums(OpId writer, int output, const PricedConfig& theirs, const Partition& read,
                const PricedConfig& mine, Matrix& forward);
  void fill(Edge& edge);
  void fill_around(Edge& edge, std::size_t weight);
  void find_idle(int position);
  Time longest(int position, std::size_t weight);

  const Problem& problem_;
  Geometry geometry_;
  std::vector<OpId> operators_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  // No backward task starts before the last operator's forward pass: nothing else ends the graph,
  // and no tile goes unread.
  bool backward_last_ = true;
  Time root_ = 0;
  Time first_ = 0;  // before any operator's task, a batch is loaded

  // Of the partial strategy.
  std::vector<int> chosen_;
  std::vector<std::vector<Time>> forward_end_, backward_end_;
  std::vector<std::vector<Time>> load_, idle_;  // [position][device], with those before it
  std::vector<Time> least_work_;                // [position]: of it and those after
  struct Early {
    Time head, time;
    int device;
  };
  std::vector<Early> early_;  // scratch
};

}  // namespace flexlegion
