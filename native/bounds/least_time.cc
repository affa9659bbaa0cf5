// The Lagrangian dual of least_time.h.
//
// 1. Of each launch that computes (an operator forward, or backward), and each of the operator's
//    splits: its shortest task, and all of its work. Where a kind of device is faster, its time
//    counts.
// 2. Which launches a launch is sure to wait for (find_waits). Some access maps leave a task with
//    nothing to read of an operand, a join of tensors, say; such an operand is no link of a chain.
// 3. For weights w of the work: `base`, the least of w * work / devices over all splits, summed
//    over all launches; and by how much the least mean of a launch exceeds that, if the launch is
//    on the chain. The longest chain of these excesses, in the order of issue, and `base` together
//    are a bound.
//
// Forward and backward launch of an operator choose apart, which only makes the bound smaller.
#include "bounds/least_time.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "plan/launches.h"
#include "sim/charges.h"
#include "sim/launch_graph.h"

namespace flexlegion {

namespace {

constexpr int kWeights = 32;

struct Choice {
  double shortest, work;  // ns
};

// A launch that computes. Launches of a class have the choices in common, which stay where they
// are: Chains::kinds_ has its size before the first is found.
struct Node {
  const std::vector<Choice>* choices;
  std::vector<int> waits;  // for these nodes, which come before it
};

// If a launch computes one position of a dimension of its space after the other, what does it read
// of an operand? Both answers hold for any split, as each task computes a range of positions:
//
// - If it reads something at each position, every task waits for some task that writes the operand.
// - If nothing is left out, every task that wrote a part of it has a reader, and so waits for some
//   reader's gradient in the backward pass.
struct Reads {
  bool always = true;      // something at each position
  bool everything = true;  // nothing is left out between them
};

Reads reads_of(const Graph& graph, const Operator& op, const Operand& operand) {
  const Tensor& tensor = graph.tensors[operand.tensor];
  const Rect space = space_of(graph, op), whole = Rect::of_shape(tensor.shape);
  Reads reads;
  reads.always = operand.once == 0;
  for (int d = 0; d < space.rank; ++d) {
    Rect tile = space;
    Rect before;
    for (std::int64_t i = space.lo[d]; i < space.hi[d]; ++i) {
      tile.lo[d] = i;
      tile.hi[d] = i + 1;
      const Rect now = accessed(operand, tensor, tile);
      if (now.empty()) {
        reads.always = false;
        continue;
      }
      for (int t = 0; t < now.rank; ++t) {
        const std::int64_t from = before.rank == 0 ? whole.lo[t] : before.hi[t];
        reads.everything = reads.everything && (now.lo[t] <= from || now.lo[t] == whole.lo[t]);
      }
      before = now;
    }
    for (int t = 0; t < before.rank; ++t) {
      reads.everything = reads.everything && before.hi[t] == whole.hi[t];
    }
    reads.everything = reads.everything && before.rank > 0;
  }
  return reads;
}

// Of one class of operators.
struct Kind {
  std::vector<Choice> forward, backward;
  std::vector<Reads> reads;  // an operand
};

std::vector<Choice> choices_of(const Problem& problem, OpId op, Pass pass) {
  std::vector<Choice> choices;
  for (const Split& split : problem.costs.splits[problem.costs.class_of[op]]) {
    Choice its{std::numeric_limits<double>::max(), 0};
    for (int k = 0; k < split.tasks; ++k) {
      std::int64_t least = kMaxTime;
      for (int kind = 0; kind < problem.machine.kinds; ++kind) {
        least = std::min(least, split.time(pass, kind, k));
      }
      its.work += static_cast<double>(least);
      // Whoever reads partial values reads the first part's, and the first part reads some.
      if (k % split.parts == 0) its.shortest = std::min(its.shortest, static_cast<double>(least));
    }
    choices.push_back(its);
  }
  return choices;
}

// What updates of an operator's weights do in all, at least: with one task, and each gradient read
// once. Rows of tables are left out.
double least_update(const Problem& problem, OpId op) {
  std::int64_t least = kMaxTime;
  for (int device = 0; device < problem.machine.devices(); ++device) {
    UpdateBytes bytes;
    bool any = false;
    for (int i : problem.facts.owned_weights(problem.graph, op)) {
      const TensorId weight = problem.graph.operators[op].operands[i].tensor;
      if (problem.facts.is_table(weight)) continue;
      const Rect whole = Rect::of_shape(problem.graph.tensors[weight].shape);
      bytes.change(problem, weight, whole);
      any = true;
    }
    if (!any) return 0;
    least = std::min(least, bytes.time(problem, Pass::update, device));
  }
  return static_cast<double>(least);
}

class Chains {
 public:
  explicit Chains(const Problem& problem) : problem_(problem), launches_(problem) {
    find_nodes();
    for (OpId op : problem.graph.operators.ids()) updates_ += least_update(problem, op);
  }

  // The bound that a weight w of the work gives. It is below each strategy's
  // (1 - w) * chain + w * work / devices:
  //
  // - A launch adds its work wherever it is, which is `least` at least: `base` has that of all.
  // - A launch on the chain adds its shortest task as well. Together, that is `mean` at least, and
  //   so mean - least beyond what `base` has.
  // - The chain is as long as each path along `waits`, so as the longest. Nodes come after those
  //   that they wait for, so one walk finds it.
  //
  // Rounds repeat the work. The chain is that of one of them.
  double bound(double weight) const {
    const double rounds = problem_.graph.micro_batches, devices = problem_.machine.devices();
    double base = weight * updates_ / devices, longest = 0;
    std::vector<double> ends;
    for (const Node& node : nodes_) {
      double least = std::numeric_limits<double>::max(), mean = least;
      for (const Choice& its : *node.choices) {
        const double work = weight * rounds * its.work / devices;
        least = std::min(least, work);
        mean = std::min(mean, work + (1 - weight) * its.shortest);
      }
      double begin = 0;
      for (int other : node.waits) begin = std::max(begin, ends[static_cast<std::size_t>(other)]);
      base += least;
      ends.push_back(begin + mean - least);
      longest = std::max(longest, ends.back());
    }
    return base + longest;
  }

 private:
  bool computes(Pass pass, OpId op) const {
    const int launch = launches_.launch_of(pass, op);
    return launch >= 0 && launch < static_cast<int>(launches_.launches.size());
  }

  // Whether its backward tasks have a part in the gradient of an operand.
  bool contributes(OpId op, int operand) const {
    LaunchKey key{Pass::backward};
    key.op = op;
    const std::vector<Use> uses = uses_of(problem_.graph, problem_.facts, key);
    return std::any_of(uses.begin(), uses.end(), [operand](const Use& use) {
      return use.role == RequirementRole::contribution && use.operand == operand;
    });
  }

  const Kind& kind_of(OpId op) {
    Kind& kind = kinds_[problem_.costs.class_of[op]];
    if (!kind.forward.empty()) return kind;
    kind.forward = choices_of(problem_, op, Pass::forward);
    kind.backward = choices_of(problem_, op, Pass::backward);
    const Operator& its = problem_.graph.operators[op];
    for (const Operand& operand : its.operands) {
      kind.reads.push_back(operand.role == Role::input ? reads_of(problem_.graph, its, operand)
                                                       : Reads());
    }
    return kind;
  }

  // Forward launches in the graph's order, then backward launches against it: each node comes after
  // those that it waits for. A backward launch waits for its forward launch, and for the backward
  // launches of those who read an output, if they contribute to its gradient.
  void find_nodes() {
    const Graph& graph = problem_.graph;
    kinds_.resize(graph.operators.size());
    IdVector<TensorId, OpId> writer(graph.tensors.size());
    IdVector<OpId, int> forward(graph.operators.size(), -1), backward(forward);
    IdVector<TensorId, std::vector<std::pair<OpId, int>>> readers(graph.tensors.size());
    for (OpId op : graph.operators.ids()) {
      if (!computes(Pass::forward, op)) continue;
      const Kind& kind = kind_of(op);
      forward[op] = static_cast<int>(nodes_.size());
      Node node{&kind.forward, {}};
      const Operator& its = graph.operators[op];
      for (int i = 0; i < static_cast<int>(its.operands.size()); ++i) {
        const Operand& operand = its.operands[i];
        if (operand.role == Role::output) writer[operand.tensor] = op;
        if (operand.role != Role::input || writer[operand.tensor].none()) continue;
        readers[operand.tensor].emplace_back(op, i);
        if (kind.reads[i].always) node.waits.push_back(forward[writer[operand.tensor]]);
      }
      nodes_.push_back(node);
    }
    for (std::size_t n = graph.operators.size(); n-- > 0;) {
      const OpId op(static_cast<int>(n));
      if (forward[op] < 0 || !computes(Pass::backward, op)) continue;
      backward[op] = static_cast<int>(nodes_.size());
      Node node{&kind_of(op).backward, {forward[op]}};
      for (const Operand& operand : graph.operators[op].operands) {
        if (operand.role != Role::output || !problem_.facts.has_gradient[operand.tensor]) continue;
        for (const auto& [reader, i] : readers[operand.tensor]) {
          if (backward[reader] >= 0 && kind_of(reader).reads[i].everything &&
              contributes(reader, i)) {
            node.waits.push_back(backward[reader]);
          }
        }
      }
      nodes_.push_back(node);
    }
  }

  const Problem& problem_;
  const LaunchGraph launches_;
  IdVector<OpId, Kind> kinds_;
  std::vector<Node> nodes_;
  double updates_ = 0;
};

}  // namespace

// The dual is not concave, as the longest chain changes with the weight, so all weights of a grid
// are tried. Each is a bound by itself.
LeastTime least_time(const Problem& problem) {
  const Chains chains(problem);
  LeastTime least;
  double best = -1;
  for (int i = 0; i <= kWeights; ++i) {
    const double weight = static_cast<double>(i) / kWeights, bound = chains.bound(weight);
    if (bound <= best) continue;
    best = bound;
    least.weight = weight;
  }
  // Rounded towards less, beyond what sums of doubles are off by.
  const auto whole = [](double time) {
    return static_cast<std::int64_t>(std::floor(time * (1 - 1e-9)));
  };
  least.time = whole(best);
  least.chain = whole(chains.bound(0));
  least.work = whole(chains.bound(1));
  return least;
}

}  // namespace flexlegion
