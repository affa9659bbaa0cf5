// Which values of a row are among its largest, for both kinds of device.
#pragma once

#include <cstdint>

#include "gpu/portable.h"

namespace flexlegion {

// Whether x[i * step] is one of the k largest of n values; of equal ones, the first count as
// larger.
template <typename Values>
FL_DEVICE inline bool among_largest(const Values& x, std::int64_t step, std::int64_t n,
                                    std::int64_t i, std::int64_t k) {
  const float mine = x[i * step];
  std::int64_t larger = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const float other = x[j * step];
    larger += other > mine || (other == mine && j < i) ? 1 : 0;
  }
  return larger < k;
}

}  // namespace flexlegion
