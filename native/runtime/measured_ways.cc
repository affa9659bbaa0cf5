// Measurements of what passes between two memories, and between clocks.
//
// Round trips: two tasks on two devices write the same region in turns, so that Legion has to copy
// it there and back. Half a round trip stands for a way, with all that the runtime does for a copy.
// On one memory no copy is made: the difference is what the way itself costs. Several ways at once
// show what links share.
//
// Clocks: a task there notes its clock between two notes of the task here. If both ways take
// equally long, its clock stood in the middle; the shortest trip of many bounds the error.
#include <algorithm>
#include <cstring>
#include <utility>

#include "flexlegion_rt.h"
#include "runtime/leaf_task.h"
#include "runtime/measurement.h"

namespace flexlegion {

using namespace Legion;

namespace {

// So many trips in one trace: the gaps between traces, in which the host works, are then few.
constexpr int kTripsATrace = 8;

Repeats trips_of(int trips) {
  Repeats repeats;
  repeats.least = repeats.most = std::max(1, trips / kTripsATrace);
  return repeats;
}

}  // namespace

Times measure_round_trips(const std::vector<std::pair<int, int>>& ways, std::int64_t bytes,
                          int trips) {
  const std::int64_t elements = std::max<std::int64_t>(1, bytes / 4);
  const Rect rect = Rect::of_shape({elements});
  Measurement measurement(ways.front().first, 0);
  Times& log = measurement.add_log();
  std::vector<int> outward, homeward;
  for (const auto& [from, to] : ways) {
    const int region = measurement.add_region({elements});
    measurement.add_fill(from, whole(region, LEGION_WRITE_DISCARD, rect), zero_body);
    const LaunchRequirement both = whole(region, LEGION_READ_WRITE, rect);
    outward.push_back(measurement.add_task(kTouchTask, to, {both}, [](LeafContext&) {}));
    // A trip is timed where it begins and ends, as clocks of two nodes do not agree.
    Times* const mine = homeward.empty() ? &log : nullptr;
    homeward.push_back(measurement.add_task(kTouchTask, from, {both},
                                            [mine, last = std::int64_t{0}](LeafContext&) mutable {
                                              const std::int64_t now = now_ns();
                                              if (mine != nullptr && last != 0)
                                                mine->push_back(now - last);
                                              last = now;
                                            }));
  }
  for (int i = 0; i < kTripsATrace; ++i) {
    for (int launch : outward) measurement.add_step(launch);
    for (int launch : homeward) measurement.add_step(launch);
  }
  measurement.trace();
  return measurement.run(RunState{}, trips_of(trips));
}

Times measure_clocks(int here, int there, int trips) {
  const Rect rect = Rect::of_shape({2});  // a time, in elements of four bytes
  Measurement measurement(here, 0);
  const int region = measurement.add_region({2});
  measurement.add_fill(here, whole(region, LEGION_WRITE_DISCARD, rect), zero_body);
  const LaunchRequirement both = whole(region, LEGION_READ_WRITE, rect);
  const int answer = measurement.add_task(kTouchTask, there, {both}, [](LeafContext& context) {
    const std::int64_t now = now_ns();
    std::memcpy(context.views[0].data, &now, sizeof now);
  });
  Times& log = measurement.add_log();
  const int ask = measurement.add_task(
      kTouchTask, here, {both}, [&log, last = std::int64_t{0}](LeafContext& context) mutable {
        const std::int64_t now = now_ns();
        if (last != 0) {
          std::int64_t its = 0;
          std::memcpy(&its, context.views[0].data, sizeof its);
          log.insert(log.end(), {last, its, now});
        }
        last = now;
      });
  for (int i = 0; i < kTripsATrace; ++i) {
    measurement.add_step(answer);
    measurement.add_step(ask);
  }
  measurement.trace();
  return measurement.run(RunState{}, trips_of(trips));
}

}  // namespace flexlegion
