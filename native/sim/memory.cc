// Peak memory of a simulated iteration (memory.h), by a sweep over lives.
//
// 1. What flows of weights and of the iteration hold stays throughout. It is the base of each
//    memory.
// 2. An instance of an activation or its gradient lives in a memory from the first to the last
//    moment that a task or transfer of its flow touches it there.
// 3. Births and deaths are sorted by time, and the largest sum of what lives is the peak.
//
// At one time deaths come first: (time, bytes) is sorted, and a death has negative bytes. So an
// instance whose life ends when another one's begins is not counted beside it.
//
// This is what a runtime that frees early would need. The search asks TaskGraph::memory() instead,
// which counts what this runtime holds.
#include "sim/memory.h"

#include <algorithm>
#include <set>
#include <utility>

namespace flexlegion {

namespace {

// From when to when an instance is needed in one memory. An empty life: not at all.
struct Life {
  std::int64_t from = kNever, to = 0;
};

// The life of one instance in each memory, by whatever touches it there.
class Lives {
 public:
  Lives(const TaskGraph& graph, const Timeline& line)
      : graph_(graph),
        line_(line),
        lives_(static_cast<std::size_t>(graph.problem().machine.memories)) {}

  void begin() { std::fill(lives_.begin(), lives_.end(), Life{}); }

  void touch(int launch) {
    const Block& block = graph_.blocks()[launch];
    for (int round = 0; round < line_.rounds; ++round) {
      for (int k = 0; k < static_cast<int>(block.device.size()); ++k) {
        touch(memory_of(block.device[k]), round, line_.first_task[launch] + k);
      }
    }
  }

  // A transfer touches both ends: the source while it is read, the destination while it is filled.
  void touch_transfers(int f) {
    const Flow& flow = *graph_.flows()[f];
    for (int round = 0; round < line_.rounds; ++round) {
      for (int t = 0; t < flow.transfer_count(); ++t) {
        const Transfer& transfer = flow.transfers[t];
        // The source is read while the first hop runs, and the destination is filled while the
        // last one does.
        touch(transfer.from, round, line_.first_hop[f] + transfer.first_hop);
        touch(transfer.to, round, line_.first_hop[f] + flow.transfers[t + 1].first_hop - 1);
      }
    }
  }

  const Life& of(int memory) const { return lives_[memory]; }

 private:
  // An instance, or all that rounds take in turn, lives from the first round that uses it to the
  // last.
  void touch(int memory, int round, int task) {
    if (!line_.is_there(round, task)) return;
    const std::size_t at = line_.entry(round, task);
    Life& life = lives_[memory];
    life.from = std::min(life.from, line_.start_time[at]);
    life.to = std::max(life.to, line_.end_time[at]);
  }
  int memory_of(int device) const { return graph_.problem().machine.memory_of[device]; }

  const TaskGraph& graph_;
  const Timeline& line_;
  std::vector<Life> lives_;
};

}  // namespace

std::vector<std::int64_t> peak_memory(const TaskGraph& graph, const Timeline& line) {
  const auto& machine = graph.problem().machine;
  // Of each memory: (time, bytes more or, at the same time first, fewer).
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> events(machine.memories);
  std::vector<std::int64_t> held(machine.memories, 0);
  Lives lives(graph, line);
  for (int f = 0; f < static_cast<int>(graph.flows().size()); ++f) {
    const FlowId& id = graph.flow_ids()[f];
    const Flow& flow = *graph.flows()[f];
    if (id.kind != FlowKind::value && id.kind != FlowKind::partial &&
        id.kind != FlowKind::gradient) {
      for (const Held& its : flow.memory) {
        // Activations of flows that stay are those that prediction alone computes.
        const bool used = its.content != Content::activation && its.content != Content::batch;
        if (used) held[its.memory] += its.bytes;
      }
      continue;
    }
    // One flow after the other: the lives of its instance, memory by memory.
    lives.begin();
    lives.touch_transfers(f);
    for (const FlowUse& use : id.places.front().uses) {
      const bool writes = use.comes == Comes::writes;
      if (writes ? flow.writing.contains(use.party) : use.comes != Comes::held) {
        lives.touch(use.launch);
      }
    }
    for (const auto& [memory, content, bytes] : flow.memory) {
      const Life& life = lives.of(memory);
      if (life.to <= life.from) continue;
      events[memory].emplace_back(life.from, bytes);
      events[memory].emplace_back(life.to, -bytes);
    }
  }
  for (int m = 0; m < machine.memories; ++m) {
    std::sort(events[m].begin(), events[m].end());
    std::int64_t now = held[m], peak = held[m];
    for (const auto& [time, bytes] : events[m]) {
      now += bytes;
      peak = std::max(peak, now);
    }
    // Lives that span several rounds have gaps, in which others of the same register live. And not
    // every task that has to wait for its register does so here (FlowId::takes_turns).
    held[m] = std::min(peak, graph.memory()[m]);
  }
  return held;
}

// What is allocated stays throughout, so there is nothing to sweep over. Tensors that take turns in
// a register hold it once.
std::vector<std::int64_t> memory_contents(const TaskGraph& graph) {
  std::vector<std::int64_t> bytes(
      static_cast<std::size_t>(graph.problem().machine.memories) * kContents, 0);
  std::set<std::pair<int, std::uint64_t>> held_once;  // registers, by the keys of their tenants
  for (std::size_t f = 0; f < graph.flows().size(); ++f) {
    const Flow& flow = *graph.flows()[f];
    if (!flow.local.empty()) continue;
    const int number = graph.flow_ids()[f].registers.alike;
    if (flow.tenant != 0 && !held_once.insert({number, flow.tenant}).second) continue;
    for (const Held& held : flow.memory) {
      bytes[held.memory * kContents + static_cast<int>(held.content)] += held.bytes;
    }
  }
  // What lies in registers for tensors of any shape are activations, and gradients in their turns.
  for (int m = 0; m < graph.problem().machine.memories; ++m) {
    bytes[m * kContents + static_cast<int>(Content::activation)] +=
        graph.local_registers().bytes(m);
  }
  return bytes;
}

}  // namespace flexlegion
