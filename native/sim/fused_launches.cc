// Applies the runtime's rule of fusion (plan/fusion.h) to a task graph, so that the simulator
// charges a launch only where the runtime issues one.
//
// The rule asks who waits for whom, task by task. The plan knows it from requirements, and here the
// same stands in the flows: an edge or a transfer of a flow is a wait of its reader, and `apart`
// marks parties whose tasks read more than their likes wrote. Both are brought into the order of
// issue, since the rule looks at runs of launches that follow each other there.
//
// One pass over all edges and consumers, for every proposal, where the runtime takes time at all.
#include "sim/fused_launches.h"

#include <algorithm>

namespace flexlegion {

FusedLaunches::FusedLaunches(const TaskGraph& graph) : graph_(graph) {
  waits_.resize(graph.launches().size());
  apart_.resize(graph.launches().size());
}

// The launches in the order of issue, without those that are never part of a run.
void FusedLaunches::find_order() {
  const auto& launches = graph_.launches();
  order_.clear();
  position_.assign(launches.size(), -1);
  for (int l = 0; l < static_cast<int>(launches.size()); ++l) {
    // Batches are staged ahead, outside the order; without tasks, nothing is issued.
    if (row_of(launches[l].pass).ahead || graph_.blocks()[l].device.empty()) continue;
    position_[l] = static_cast<int>(order_.size());
    order_.push_back(l);
  }
}

void FusedLaunches::add(int reader, int part, int writer, int other, bool one_memory) {
  // A flow also brings what the next iteration awaits, and what a launch hands on to itself.
  if (writer >= reader || position_[writer] < 0) return;
  waits_[reader].push_back({part, position_[writer], other, one_memory});
}

// The last place before which some register changed hands to what the launch touches, or -1.
int FusedLaunches::last_turn(int l) {
  int last = -1;
  for (const auto& [f, use] : graph_.launch_graph().tenants[l]) {
    const Flow& flow = *graph_.flows()[f];
    if (flow.touched.empty() || !flow.touched[use]) continue;
    const RegisterNumbers& numbers = graph_.flow_ids()[f].registers;
    const int number = flow.local.empty() ? numbers.alike : numbers.local;
    last = std::max(last, turns_.touch(number, flow.tenant, f, position_[l]));
  }
  return last;
}

// All waits of a flow: edges within a memory, and transfers between two. That a register changes
// hands is no reason to wait for other devices; last_turn() sees to it.
void FusedLaunches::collect(int f) {
  const Flow& flow = *graph_.flows()[f];
  const FlowId& id = graph_.flow_ids()[f];
  if (id.kind == FlowKind::turns) return;
  for (std::size_t p = 0; p < id.parties.size(); ++p) {
    if (flow.apart[p] < 0) continue;
    int& apart = apart_[id.parties[p]];
    apart = std::max(apart, position_[id.parties[flow.apart[p]]]);
  }
  if (flow.carries_nothing()) return;
  for (int slot = 0; slot < id.writers; ++slot) {
    const int writer = id.parties[slot];
    const int parts = static_cast<int>(graph_.blocks()[writer].device.size());
    for (int k = 0; k < parts; ++k) {
      const int number = flow.first_writer[slot] + k;
      for (int e = flow.first_edge[number]; e < flow.first_edge[number + 1]; ++e) {
        add(id.parties[flow.edges[e].party], flow.edges[e].part, writer, k, true);
      }
      flow.for_each_consumer(number, [&](const TaskRef& reader) {
        add(id.parties[reader.party], reader.part, writer, k, false);
      });
    }
  }
}

// Tells the rule each launch with its waits, in the order of issue; then joins launches into runs
// from the front, as long as the rule allows.
void FusedLaunches::find(std::vector<char>& runs_on) {
  const Problem& problem = graph_.problem();
  const auto& launches = graph_.launches();
  find_order();
  for (std::vector<Wait>& waits : waits_) waits.clear();
  std::fill(apart_.begin(), apart_.end(), -1);
  for (int f = 0; f < static_cast<int>(graph_.flows().size()); ++f) collect(f);
  rule_.begin(static_cast<int>(order_.size()), problem.graph.micro_batches > 1);
  turns_.begin();
  for (const int l : order_) {
    const auto& devices = graph_.blocks()[l].device;
    const PassRow& row = row_of(launches[l].pass);
    rule_.add(devices, !answers(problem.graph, problem.facts.optimizer, launches[l]), row.closing);
    for (const Wait& wait : waits_[l]) {
      rule_.wait(wait.part, wait.before, wait.other, wait.one_memory);
    }
    const int apart = std::max(apart_[l], last_turn(l));
    if (apart >= 0) rule_.set_apart(apart);
    const int followed = graph_.launch_graph().followed_by[l];
    if (followed < 0) continue;
    const int before = position_[followed];
    for (int k = 0; k < static_cast<int>(devices.size()); ++k) rule_.wait(k, before, k, true);
  }
  rule_.end();
  runs_on.assign(launches.size(), 0);
  int first = 0;
  for (int i = 1; i < static_cast<int>(order_.size()); ++i) {
    if (rule_.joins(i, first, graph_.problem().graph.fused_launches)) {
      runs_on[order_[i]] = 1;
    } else {
      first = i;
    }
  }
}

}  // namespace flexlegion
