// Who waits until a register is free (FlowKind::turns), as a flow without transfers.
//
// A register's tenants come in the order of their lives, which the graph says. Under a strategy,
// those of one key share memory: of them, who computes a value again waits for who used the tenant
// before it, device by device. Where several micro-batches are under way, the first tenant of a
// round waits for the last one of an earlier round.
#include <algorithm>
#include <map>
#include <utility>

#include "sim/flow_rules.h"

namespace flexlegion {

// Tenants of one key share the register's memory, one after the other. On each device, whoever
// computes a value again waits for all who used what was there before.
void FlowRules::take_turns(const FlowId& id) {
  std::map<std::uint64_t, std::vector<int>> sharing;  // by key
  for (int tenant : id.tenants) {
    const Flow& flow = *flows_[tenant];
    if (flow.tenant != 0 && flow.local.empty() != id.local) sharing[flow.tenant].push_back(tenant);
  }
  const auto waits = [this](int tenant) { return launch_graph_.flows[tenant].takes_turns; };
  for (const auto& [key, tenants] : sharing) {
    for (std::size_t i = 0; i + 1 < tenants.size(); ++i) {
      if (waits(tenants[i + 1])) hand_over(tenants[i], tenants[i + 1], false);
    }
    if (!waits(tenants.front())) continue;
    buffers_ = flows_[tenants.front()]->buffers;
    hand_over(tenants.back(), tenants.front(), true);
  }
}

// From those who use the value of one flow to those who write that of another.
void FlowRules::hand_over(int used, int written, bool next_round) {
  const auto party_of = [this](int launch) {
    const auto at = std::find(id_->parties.begin(), id_->parties.end(), launch);
    return static_cast<int>(at - id_->parties.begin());
  };
  const auto trained = static_cast<int>(blocks_.size());
  std::map<int, std::vector<TaskRef>> waiting;  // by device
  for (const FlowUse& after : launch_graph_.flows[written].places.front().uses) {
    if (after.comes != Comes::writes || after.launch >= trained) continue;
    const auto& devices = blocks_[after.launch].device;
    for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
      waiting[devices[k]].push_back({party_of(after.launch), k});
    }
  }
  for (const FlowUse& before : launch_graph_.flows[used].places.front().uses) {
    if (before.launch >= trained) continue;
    const int party = party_of(before.launch);
    const auto& devices = blocks_[before.launch].device;
    for (int k = 0; k < static_cast<int>(devices.size()); ++k) {
      for (const TaskRef& to : waiting[devices[k]]) {
        if (next_round) {
          around_.push_back({{party, k}, to});
        } else {
          builder_.edge(builder_.writer(party, k), to);
        }
      }
    }
  }
}

}  // namespace flexlegion
