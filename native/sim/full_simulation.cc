#include "sim/full_simulation.h"

#include <algorithm>
#include <queue>
#include <stdexcept>
#include <tuple>

namespace flexlegion {

Timeline full_simulation(const TaskGraph& tasks) {
  const auto n = static_cast<std::size_t>(tasks.size());
  Timeline line;
  line.ready_time.assign(n, 0);
  line.start_time.assign(n, 0);
  line.end_time.assign(n, 0);
  std::vector<std::int64_t> earliest_end(n, 0);
  std::vector<int> unfinished(n, 0);  // predecessors
  for (const auto& successors : tasks.successors) {
    for (const TaskEdge& edge : successors) ++unfinished[edge.to];
  }
  // No successor is ready before its predecessor is (times are at least 1 ns, and a hop that
  // follows another comes later in the order of keys), so taking tasks from one queue serves each
  // device in its order.
  using Ready = std::tuple<std::int64_t, std::uint64_t, int>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> queue;
  for (std::size_t t = 0; t < n; ++t) {
    if (unfinished[t] == 0) queue.emplace(0, tasks.key[t], static_cast<int>(t));
  }
  std::vector<std::int64_t> device_free(static_cast<std::size_t>(tasks.all_devices), 0);
  std::size_t done = 0;
  while (!queue.empty()) {
    const int t = std::get<2>(queue.top());
    queue.pop();
    ++done;
    std::int64_t& free = device_free[static_cast<std::size_t>(tasks.device[t])];
    line.start_time[t] = std::max(line.ready_time[t], free);
    line.end_time[t] = std::max(line.start_time[t] + tasks.exe_time[t], earliest_end[t]);
    free = line.end_time[t];
    line.iteration_time = std::max(line.iteration_time, free);
    for (const TaskEdge& edge : tasks.successors[t]) {
      const std::int64_t from = edge.follows ? line.start_time[t] : line.end_time[t];
      line.ready_time[edge.to] = std::max(line.ready_time[edge.to], from + edge.latency);
      if (edge.follows) earliest_end[edge.to] = std::max(earliest_end[edge.to], line.end_time[t]);
      if (--unfinished[edge.to] == 0) {
        queue.emplace(line.ready_time[edge.to], tasks.key[edge.to], edge.to);
      }
    }
  }
  if (done != n) throw std::invalid_argument("the task graph has a cycle");
  return line;
}

}  // namespace flexlegion
