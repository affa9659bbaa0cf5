// What OptCNN sums up (Jia et al. 2018: Exploring Hidden Dimensions in Parallelizing CNNs, section
// 5): each operator's computation and weight synchronisation, and each tensor's transfer between
// two operators, as if nothing ran in parallel but the tasks and transfers of one step. Operators
// are split over the first devices of the machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "sim/geometry.h"
#include "sim/problem.h"
#include "sim/tiles.h"

namespace flexlegion {

// Of an operator split in one way, in ns: the slowest forward and the slowest backward task; and
// the weights' part: gradients gathered, the slowest update, weights returned. A weight that
// several operators read is part of the first one's, as if the others were split alike.
struct OperatorCost {
  std::int64_t computation = 0, synchronisation = 0;
};

// The ways between the devices of a machine, one after the other; and whether every way back passes
// the same kinds of links as the way there, so that what is sent back takes as long as what was
// sent.
class Ways {
 public:
  explicit Ways(const MachineModel& machine);

  struct Way {
    int first = 0, last = 0;  // of `links`; none within a memory
    std::int64_t latency = 0;
  };
  const Way& way(int from, int to) const {
    const auto devices = static_cast<std::size_t>(machine_.devices());
    return ways_[static_cast<std::size_t>(from) * devices + static_cast<std::size_t>(to)];
  }
  const MachineModel& machine() const { return machine_; }
  const std::vector<int>& links() const { return links_; }
  bool back_alike() const { return back_alike_; }

 private:
  const MachineModel& machine_;
  std::vector<Way> ways_;
  std::vector<int> links_;
  bool back_alike_;
};

// Bytes between devices, and how long the links take for them. A message counts as `least` bytes,
// at least.
class Traffic {
 public:
  explicit Traffic(const Ways& ways, std::int64_t least = 0)
      : ways_(ways), least_(least), load_(ways.machine().links.size(), 0) {}

  // Messages within a memory take nothing.
  void send(int from, int to, std::int64_t bytes) {
    const Ways::Way& way = ways_.way(from, to);
    if (way.first == way.last || bytes == 0) return;
    bytes = std::max(bytes, least_);
    for (int i = way.first; i < way.last; ++i) {
      const int link = ways_.links()[static_cast<std::size_t>(i)];
      if (load_[static_cast<std::size_t>(link)] == 0) used_.push_back(link);
      load_[static_cast<std::size_t>(link)] += bytes;
    }
    latency_ = std::max(latency_, way.latency);
  }
  // The busiest link's time plus the longest way's latency, in ns; and begins anew.
  std::int64_t time();

 private:
  const Ways& ways_;
  const std::int64_t least_;
  std::vector<std::int64_t> load_;  // a link: bytes
  std::vector<int> used_;
  std::int64_t latency_ = 0;
};

// The costs of a problem. Several threads may ask at once.
class SummedCosts {
 public:
  // `least_message`: bytes that a message counts as, at least.
  explicit SummedCosts(const Problem& problem, std::int64_t least_message = 0)
      : problem_(problem), ways_(problem.machine), least_message_(least_message) {}

  const Problem& problem() const { return problem_; }
  OperatorCost of_operator(Geometry& geometry, OpId op, int split) const;

  // The time that one operand of `reader` takes from the operator that writes it, for each way to
  // split either: [writer's split * readers + reader's split], in ns. Its value goes forward, where
  // the reader combines partial values; its gradient comes back and is summed up.
  std::vector<std::int64_t> of_transfer(OpId writer,
                                        const std::vector<std::vector<int>>& writer_degrees,
                                        OpId reader, int operand,
                                        const std::vector<std::vector<int>>& reader_degrees);

 private:
  // Two hashes of what tasks touch. That both are those of something else does not happen.
  using Fingerprint = std::array<std::uint64_t, 2>;
  // All that a transfer's time depends on. Operators of other classes often have the same tiles: a
  // convolution, say, and what normalises its output.
  struct Transfer {
    Fingerprint written = {}, read = {};
    std::int64_t bytes = 0;  // of an element
    int partial_values = 1;
    bool back = false;  // whether a gradient comes back

    bool operator==(const Transfer& o) const {
      return written == o.written && read == o.read && bytes == o.bytes &&
             partial_values == o.partial_values && back == o.back;
    }
  };
  struct Hash {
    std::size_t operator()(const Transfer& its) const {
      return its.written[0] ^ (its.read[0] * 3) ^ static_cast<std::size_t>(its.bytes) ^
             (static_cast<std::size_t>(its.partial_values) << 8) ^ (its.back ? 1u << 7 : 0u);
    }
  };
  static Fingerprint fingerprint(const Tiles& tiles);
  std::int64_t time(const Transfer& its, const Tiles& written, const Tiles& read, Traffic& values,
                    Traffic& gradients) const;

  const Problem& problem_;
  const Ways ways_;
  const std::int64_t least_message_;
  std::mutex mutex_;
  std::unordered_map<Transfer, std::int64_t, Hash> known_;
};

}  // namespace flexlegion
