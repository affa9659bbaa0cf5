// What a program for one mesh of devices keeps on each of them while it trains (docs/exporting.md):
// of a weight, its gradient and its optimizer's states the part that its first reader uses, or
// shards of that; of every result the part that the device computes; and a copy of what a backward
// pass reads otherwise than it lies. The sizes of these parts follow from degrees, and from what is
// sharded, and stand in the cost table. What is run again is not counted, as little of it is there
// at a time: this is the least that a program needs.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/problem.h"

namespace flexlegion {

class ProgramMemory {
 public:
  explicit ProgramMemory(const Problem& problem);

  // Of each device; all keep equally much.
  std::int64_t bytes(const PricedStrategy& strategy) const;

 private:
  struct Place {
    OpId op;
    int operand;
    int bytes;  // where the cost table has the operand's
  };
  // What is kept once, and what is read again: kept where it lies otherwise than it was written.
  struct Copy {
    Place read, written;
  };

  const Problem& problem_;
  std::vector<Place> kept_;
  std::vector<Copy> copies_;
};

}  // namespace flexlegion
