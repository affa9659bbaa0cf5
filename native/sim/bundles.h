// Bundles: transfers taken together, where a search on a large machine looks at less than all of
// them (Detail::bundles).
//
// R tasks that exchange what they wrote make R (R - 1) transfers of several hops each. On 64
// devices, 99 of 100 tasks of a task graph are such hops, and many of them carry some bytes. A
// *coarse* task graph has all tasks of all launches, but of transfers only this:
//
// - Transfers of one launch that share a writer or a destination belong together, and so do those
//   that belong together with the same third one. If there are kLeastBundled of them, they are a
//   bundle.
// - A bundle begins when all its writers have ended. It occupies each link that any of its
//   transfers passes once, with the bytes of all of them, and all links at the same time. It is
//   there when the last link is done, and the longest latency has passed; then all who read
//   anything of it may begin.
//
// So a bundle is two barriers, and between them transfers that never wait for each other. It takes
// less than its transfers do: on few links, as each transfer passes them one after the other, or
// more, as nobody begins before all have ended. Times of coarse task graphs are no one's price.
// They rank strategies, and whoever is ranked first is simulated as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/timeline.h"

namespace flexlegion {

constexpr int kLeastBundled = 4;

// What bundles wait for, while a timeline is played.
class Bundles {
 public:
  struct Bundle {
    int writers = 0, hops = 0;  // that have yet to end
    std::int64_t time = 0;      // the latest end so far
    Cause cause;                // whose it was

    // A writer, or a hop, has ended; whether that was the last.
    bool written(std::int64_t end, Cause self) { return hears(writers, end, self); }
    bool carried(std::int64_t end, Cause self) { return hears(hops, end, self); }

   private:
    bool hears(int& waiting, std::int64_t end, Cause self) {
      if (end >= time) {
        time = end;
        cause = self;
      }
      return --waiting == 0;
    }
  };

  void begin(const TaskGraph& graph, int rounds);
  // Of a bundle that is such a transfer of the flow.
  Bundle& of(const TaskGraph& graph, int round, int flow, int transfer) {
    const int there = first_[flow] + transfer - graph.flows()[flow]->first_bundle();
    return bundles_[static_cast<std::size_t>(round * in_round_ + there)];
  }

 private:
  std::vector<int> first_;  // a flow
  int in_round_ = 0;
  std::vector<Bundle> bundles_;
};

}  // namespace flexlegion
