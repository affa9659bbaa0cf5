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

#include "search/exchanges.h"
#include "search/traffic.h"
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
  std::int64_t time(const Transfer& its, const TileGrid& written, const TileGrid& read,
                    Traffic& values, Traffic& gradients) const;

  const Problem& problem_;
  const Ways ways_;
  const std::int64_t least_message_;
  std::mutex mutex_;
  std::unordered_map<Transfer, std::int64_t, Hash> known_;
};

}  // namespace flexlegion
