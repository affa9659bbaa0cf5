// Tries proposals (simulator.h), the cheap answers first.
//
// 1. The operators' own tasks alone overload a device: nothing is built.
// 2. Blocks and flows are replaced. Memory does not suffice, a device or link has too much work, or
//    there are too many tasks: nothing is simulated.
// 3. The longest path exceeds the limit: likewise.
// 4. The simulation runs, and stops when it is sure to pass the limit.
//
// Answers about time are exact: "no" is said only if the iteration is sure to take longer than the
// limit, so a search goes the same way with and without early rejection. Two timelines alternate:
// accepting swaps them, and rejecting restores the replaced blocks and flows.
#include "sim/simulator.h"

#include <algorithm>

namespace flexlegion {

bool Simulator::set(const PricedStrategy& strategy, std::int64_t most) {
  proposed_ = changed_ = false;
  const std::int64_t rounds = graph_.problem().graph.micro_batches;
  if (!graph_.set(strategy, std::min(most, kUnlimited) * rounds)) return false;
  play(line_, kNever, nullptr);
  return true;
}

Verdict Simulator::judge(const PricedStrategy& strategy, std::int64_t limit) {
  proposed_ = changed_ = false;
  if (!graph_.set(strategy, most_tasks, most_transfers)) return Verdict::too_fine;
  const std::vector<std::int64_t>* tails = nullptr;
  const Verdict verdict = bounded(limit, tails);
  if (verdict != Verdict::simulated) return verdict;
  return play(line_, limit, tails) ? Verdict::simulated : Verdict::stopped;
}

// False: it is sure to take longer than the limit.
bool Simulator::play(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails) {
  if (!sketches()) return simulation_.full(line, limit, tails);
  line.iteration_time = sketch_.play(limit, tails);
  return line.iteration_time != kNever;
}

// What can be said of the task graph without a simulation; `simulated`: nothing against it.
Verdict Simulator::bounded(std::int64_t limit, const std::vector<std::int64_t>*& tails) {
  if (graph_.missing_memory() > 0) return Verdict::out_of_memory;
  if (graph_.heaviest_load() > limit) return Verdict::overloaded;
  if (graph_.tasks() > most_tasks) return Verdict::too_fine;
  if (limit == kNever) return Verdict::simulated;
  if (graph_.paths().longest_path() > limit) return Verdict::overlong;
  tails = &graph_.paths().tails();
  return Verdict::simulated;
}

Verdict Simulator::propose(const PartialStrategy& configs, Algorithm algorithm,
                           std::int64_t limit) {
  const std::int64_t sure = early_rejection ? limit : kNever;
  if (!graph_.replace(configs, sure, change_)) return Verdict::overloaded;
  changed_ = true;
  const std::vector<std::int64_t>* tails = nullptr;
  const Verdict verdict = bounded(sure, tails);
  if (verdict != Verdict::simulated) return verdict;
  simulation_.fold(algorithm != Algorithm::unfolded);
  const bool whole = algorithm != Algorithm::delta || sketches()
                         ? play(next_, sure, tails)
                         : simulation_.delta(line_, change_, next_, sure, tails);
  simulation_.fold(true);
  tasks_played += sketches() ? sketch_.played() : simulation_.played();
  if (!whole) return Verdict::stopped;
  proposed_ = true;
  return Verdict::simulated;
}

// The proposal's timeline becomes the one that is held. The graph holds it already.
void Simulator::accept() {
  if (proposed_) std::swap(line_, next_);
  proposed_ = changed_ = false;
}

void Simulator::keep_unsimulated() {
  play(line_, kNever, nullptr);
  proposed_ = changed_ = false;
}

// The timeline that is held was never changed.
void Simulator::reject() {
  if (changed_) graph_.undo(change_);
  proposed_ = changed_ = false;
}

}  // namespace flexlegion
