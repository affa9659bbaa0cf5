// Whether a network goes round its devices.
//
// An operator is one step further than what it reads from if it runs on none of the same devices;
// otherwise, it is as far. So of a pipeline, the step is the stage. The network goes round if step
// c + p has the devices of step c, for each c, and p steps in a row have none in common.
//
// Costs: the number of operands, and of steps times their devices.
#include "plan/service_order.h"

#include <algorithm>
#include <cstddef>
#include <set>

namespace flexlegion {

namespace {

bool in_common(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](int d) { return std::find(b.begin(), b.end(), d) != b.end(); });
}

// After how many steps the devices are the same again; 0, if they never are, or not always.
int circle(const std::vector<std::set<int>>& devices) {
  const std::size_t steps = devices.size();
  std::size_t p = 1;
  while (p < steps && devices[p] != devices[0]) ++p;
  if (p == 1 || p >= steps) return 0;
  std::set<int> all;
  std::size_t sum = 0;
  for (std::size_t c = 0; c < p; ++c) {
    all.insert(devices[c].begin(), devices[c].end());
    sum += devices[c].size();
  }
  if (all.size() != sum) return 0;
  for (std::size_t c = p; c < steps; ++c) {
    if (devices[c] != devices[c - p]) return 0;
  }
  return static_cast<int>(p);
}

}  // namespace

ServiceOrder::ServiceOrder(const Graph& graph, const DevicesOf& devices) {
  if (graph.micro_batches == 1) return;
  IdVector<TensorId, OpId> producer(graph.tensors.size());
  IdVector<OpId, int> step(graph.operators.size(), 0);
  std::vector<std::set<int>> of_step;
  for (OpId op : graph.operators.ids()) {
    for (const Operand& o : graph.operators[op].operands) {
      if (o.role == Role::output) {
        producer[o.tensor] = op;
        continue;
      }
      const OpId before = producer[o.tensor];
      if (before.none()) continue;
      const bool further = !in_common(devices(op), devices(before));
      step[op] = std::max(step[op], step[before] + (further ? 1 : 0));
    }
    of_step.resize(std::max(of_step.size(), static_cast<std::size_t>(step[op]) + 1));
    of_step[static_cast<std::size_t>(step[op])].insert(devices(op).begin(), devices(op).end());
  }
  const int stages = circle(of_step);
  if (stages == 0) return;
  stages_ = stages;
  runs_ = (static_cast<int>(of_step.size()) + stages - 1) / stages;
  run_.assign(step.size(), 0);
  for (OpId op : run_.ids()) run_[op] = step[op] / stages;
}

}  // namespace flexlegion
