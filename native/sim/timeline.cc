// How tasks are numbered (timeline.h): launch by launch, part by part, then the hops of flow after
// flow; and so in each round.
//
// Numbers change with every proposal, as launches get more tasks or fewer. So whatever outlives one
// task graph, such as the causes that the delta algorithm takes over, names tasks by Cause instead.
#include "sim/timeline.h"

#include <algorithm>
#include <stdexcept>

namespace flexlegion {

void Timeline::number(const TaskGraph& graph) {
  first_task.clear();
  first_hop.clear();
  std::size_t of_round = 0;
  for (const Block& block : graph.blocks()) {
    first_task.push_back(static_cast<int>(of_round));
    of_round += block.device.size();
  }
  first_task.push_back(static_cast<int>(of_round));
  for (const FlowPtr& flow : graph.flows()) {
    first_hop.push_back(static_cast<int>(of_round));
    of_round += flow->hops.size();
  }
  first_hop.push_back(static_cast<int>(of_round));
  rounds = graph.problem().graph.micro_batches;
  const std::size_t all = of_round * static_cast<std::size_t>(rounds);
  // With room for devices, which are numbered behind them (rounds.cc).
  constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  if (all + graph.load().size() >= kMost) {
    throw std::invalid_argument("the task graph is too large to simulate");
  }
  tasks = static_cast<int>(all);
  iteration_time = 0;
  rows = {};
  fold = {};
}

// Arrays only grow. A search numbers a timeline for every proposal, most of them of like sizes.
void Timeline::make_room(std::size_t entries) {
  if (end_time.size() >= entries) return;
  ready_time.resize(entries);
  start_time.resize(entries);
  end_time.resize(entries);
  cause.resize(entries);
}

// By bisection: tasks are numbered launch by launch, hops flow by flow. The place keeps the rounds
// before the task's own in it (`task`, not `there`), so number_of() only has to add.
Cause Timeline::place_of(int task) const {
  const int there = task % in_round();
  const auto& first = there < first_task.back() ? first_task : first_hop;
  const auto owner =
      static_cast<int>(std::upper_bound(first.begin(), first.end(), there) - first.begin()) - 1;
  return {there < first_task.back() ? owner : ~owner, task - first[owner]};
}

// By search for the task of the row. In a fold, it may be that of a replica.
int Timeline::last_task() const {
  const auto end = end_time.begin() + static_cast<std::ptrdiff_t>(entries());
  auto entry = static_cast<std::size_t>(std::max_element(end_time.begin(), end) - end_time.begin());
  if (rounds == 1) return static_cast<int>(entry);
  const auto task_of = [](const std::vector<int>& rows, std::size_t row) {
    return static_cast<int>(std::find(rows.begin(), rows.end(), static_cast<int>(row)) -
                            rows.begin());
  };
  const std::size_t folded = at(fold.rounds, fold.each, 0);
  const auto each = static_cast<std::size_t>(entry < folded ? fold.each : rows.each);
  if (entry < folded) {
    return static_cast<int>(entry / each) * in_round() + task_of(fold.of, entry % each);
  }
  if (entry >= behind_rounds()) {
    const int task = task_of(rows.of, entry - behind_rounds() + each);
    return (rounds - 1) * in_round() + task;
  }
  entry -= folded;
  const int round = fold.rounds + static_cast<int>(entry / each);
  return round * in_round() + task_of(rows.of, entry % each);
}

int Timeline::number_of(Cause cause) const {
  if (cause.place < 0) return -1;
  return (cause.owner >= 0 ? first_task[cause.owner] : first_hop[~cause.owner]) + cause.place;
}

}  // namespace flexlegion
