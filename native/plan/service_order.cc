// At which stage of a pipeline each operator is, and whether the network goes round its devices.
//
// An operator is one step further than what it reads from if it runs on none of the same devices;
// otherwise, it is as far. So of a pipeline, the step is the stage. The network goes round if step
// c + p has the devices of step c, for each c, and p steps in a row have none in common.
//
// Where it does not go round, an operator on devices that the network has come to before is at
// their stage. So a strategy that moves a few operators of a pipeline elsewhere keeps its stages.
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

// How far each operator is. If `devices_stay`, devices have the step at which the network first
// came to them. Of operators that read from no other one, which may run anywhere, the very first
// one counts.
IdVector<OpId, int> steps_of(const Graph& graph, const ServiceOrder::DevicesOf& devices,
                             bool devices_stay) {
  IdVector<TensorId, OpId> producer(graph.tensors.size());
  IdVector<OpId, int> step(graph.operators.size(), 0);
  std::vector<int> of_device;
  for (OpId op : graph.operators.ids()) {
    bool comes = op.value == 0;
    for (const Operand& o : graph.operators[op].operands) {
      if (o.role == Role::output) {
        producer[o.tensor] = op;
        continue;
      }
      const OpId before = producer[o.tensor];
      if (before.none()) continue;
      comes = true;
      const bool further = !in_common(devices(op), devices(before));
      step[op] = std::max(step[op], step[before] + (further ? 1 : 0));
    }
    if (!devices_stay) continue;
    int known = -1;
    for (int d : devices(op)) {
      const auto number = static_cast<std::size_t>(d);
      of_device.resize(std::max(of_device.size(), number + 1), -1);
      known = std::max(known, of_device[number]);
    }
    if (known >= 0) step[op] = known;
    for (int d : devices(op)) {
      int& its = of_device[static_cast<std::size_t>(d)];
      if (comes && its < 0) its = step[op];
    }
  }
  return step;
}

std::vector<std::set<int>> devices_of_steps(const IdVector<OpId, int>& step,
                                            const ServiceOrder::DevicesOf& devices) {
  std::vector<std::set<int>> of_step;
  for (OpId op : step.ids()) {
    of_step.resize(std::max(of_step.size(), static_cast<std::size_t>(step[op]) + 1));
    of_step[static_cast<std::size_t>(step[op])].insert(devices(op).begin(), devices(op).end());
  }
  return of_step;
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
  at_ = steps_of(graph, devices, false);
  const std::vector<std::set<int>> of_step = devices_of_steps(at_, devices);
  if (const int around = circle(of_step); around > 0) {
    stages_ = around;
    runs_ = (static_cast<int>(of_step.size()) + around - 1) / around;
    for (OpId op : at_.ids()) at_[op] /= around;
    return;
  }
  at_ = steps_of(graph, devices, true);
  for (OpId op : at_.ids()) stages_ = std::max(stages_, at_[op] + 1);
}

}  // namespace flexlegion
