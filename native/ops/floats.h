// Loops over tiles as floats, however they are stored.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "ops/narrow.h"
#include "ops/strided_loop.h"
#include "ops/team.h"

namespace flexlegion {

constexpr std::int64_t kPiece = 1024;  // elements, of which a few copies stay in the first cache

template <std::size_t N>
using Pointers = std::array<float*, N>;

// Calls run(pointers, length) for pieces of the views that are contiguous in each, on all threads.
// The first `kWritten` views are results; of these, the first `kUpdated` are read as well. Where a
// view is stored narrower, its pieces are copies in the first cache, and results are stored from
// there.
template <std::size_t kWritten, std::size_t kUpdated, std::size_t N, typename Run>
void share_floats(const Views<N>& views, const Run& run) {
  share_views<N>(views, [&run](const Views<N>& parts) {
    const bool narrow = std::any_of(parts.begin(), parts.end(),
                                    [](const TensorView* part) { return part->narrow(); });
    for_each_run<N>(parts, [&](const Offsets<N>& at, std::int64_t n) {
      const std::int64_t piece = narrow ? std::min(n, kPiece) : n;
      alignas(64) float copies[N][kPiece];
      Pointers<N> pointers;
      for (std::int64_t i = 0; i < n; i += piece) {
        const std::int64_t count = std::min(piece, n - i);
        for (std::size_t v = 0; v < N; ++v) {
          const TensorView& part = *parts[v];
          pointers[v] = part.narrow() ? copies[v] : part.f32() + at[v] + i;
          if (part.narrow() && (v < kUpdated || v >= kWritten)) {
            widen(part.type, part.bits() + at[v] + i, copies[v], count);
          }
        }
        run(pointers, count);
        for (std::size_t v = 0; v < kWritten; ++v) {
          const TensorView& part = *parts[v];
          if (part.narrow()) round_off(part.type, copies[v], part.bits() + at[v] + i, count);
        }
      }
    });
  });
}

}  // namespace flexlegion
