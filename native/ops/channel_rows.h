// Passes over tiles of (..., channel) whose parameters and sums belong to channels: which rows lie
// at equal distances, and loops over them in blocks that keep the parameters in registers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "ops/narrow.h"
#include "ops/register_tiles.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"

namespace flexlegion {

constexpr int kLanes = 16;
using Floats = VectorOf<kLanes>::Floats;
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));

FLEXLEGION_INLINE void load(float& value, const float* from) { value = *from; }
FLEXLEGION_INLINE void store(float* to, const float& value) { *to = value; }

// ReLU, and its gradient. For vectors, bits tell: where the machine's are narrower than these, GCC
// compares them element by element.
using SignedWords = VectorOf<kLanes>::Indices;

// result = max(z, 0). NaN stays NaN, so that training that diverges is noticed. As whole numbers
// with a sign, the bits of negative numbers are those of -infinity and below; those of NaNs with a
// sign lie above. Halves of both are compared by the sign of their difference, which cannot
// overflow.
FLEXLEGION_INLINE void relu_of(const Floats& z, Floats& result) {
  constexpr std::int32_t kHalfOfMinusInfinity = -0x400000;  // of the bits 0xff800000
  const SignedWords bits = reinterpret_cast<SignedWords>(z);
  const SignedWords kept = (kHalfOfMinusInfinity - (bits >> 1)) >> 31;
  result = reinterpret_cast<Floats>(bits & kept);
}
FLEXLEGION_INLINE void relu_of(const float& z, float& result) { result = z < 0.0f ? 0.0f : z; }

// All bits of a lane whose z > 0, and none of others. The bits of a positive number have no sign,
// but their negation has one; those of 0 have none in either, those of -0 in both. A NaN counts by
// its sign: forward, it has shown already.
FLEXLEGION_INLINE void mark_positive(const Floats& z, SignedWords& kept) {
  const Words bits = reinterpret_cast<Words>(z);
  kept = reinterpret_cast<SignedWords>(-bits & ~bits) >> 31;
}

// result = z > 0 ? value : 0.
FLEXLEGION_INLINE void where_positive(const Floats& z, const Floats& value, Floats& result) {
  SignedWords kept;
  mark_positive(z, kept);
  result = reinterpret_cast<Floats>(reinterpret_cast<SignedWords>(value) & kept);
}
FLEXLEGION_INLINE void where_positive(const float& z, const float& value, float& result) {
  std::int32_t bits;
  std::memcpy(&bits, &z, sizeof(bits));
  result = bits > 0 ? value : 0.0f;
}

// result = z > 0 ? value : other, likewise.
FLEXLEGION_INLINE void choose(const Floats& z, const Floats& value, const Floats& other,
                              Floats& result) {
  SignedWords kept;
  mark_positive(z, kept);
  result = reinterpret_cast<Floats>((reinterpret_cast<SignedWords>(value) & kept) |
                                    (reinterpret_cast<SignedWords>(other) & ~kept));
}
FLEXLEGION_INLINE void choose(const float& z, const float& value, const float& other,
                              float& result) {
  std::int32_t bits;
  std::memcpy(&bits, &z, sizeof(bits));
  result = bits > 0 ? value : other;
}

using Halves = Bfloat16 __attribute__((vector_size(2 * kLanes)));
FLEXLEGION_INLINE void load(Floats& value, const Bfloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  std::memcpy(&value, &words, sizeof(value));
}
FLEXLEGION_INLINE void store(Bfloat16* to, const Floats& value) {
  Words words;
  std::memcpy(&words, &value, sizeof(words));
  round_bits(words, (words & 0x7fffffffU) > 0x7f800000U);
  const Halves result = __builtin_convertvector(words >> 16, Halves);
  std::memcpy(to, &result, sizeof(result));
}
FLEXLEGION_INLINE void load(float& value, const Bfloat16* from) {
  const std::uint32_t bits = static_cast<std::uint32_t>(*from) << 16;
  std::memcpy(&value, &bits, sizeof(value));
}
FLEXLEGION_INLINE void store(Bfloat16* to, const float& value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  round_bits(bits, (bits & 0x7fffffff) > 0x7f800000);
  *to = static_cast<Bfloat16>(bits >> 16);
}
template <typename V>
FLEXLEGION_INLINE void add_to(double* totals, const V& sums) {
  constexpr int kCount = sizeof(V) / sizeof(float);
  float lanes[kCount];
  std::memcpy(lanes, &sums, sizeof(V));
  for (int i = 0; i < kCount; ++i) totals[i] += lanes[i];
}

// Calls pass.chunk<V, K>(row, rows, column) for the parts of rows x cols: V is a vector, or float
// for what is left of a row, and a chunk is K of them wide. A block of rows stays in the first
// cache while its chunks are taken one after the other, and has few enough rows that their sum in
// single precision is nearly exact.
template <typename Pass>
FLEXLEGION_INLINE void for_each_chunk(const Pass& pass, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kBlockElements = 4096, kFewestRows = 8, kMostRows = 64;
  const std::int64_t block = std::clamp(kBlockElements / cols, kFewestRows, kMostRows);
  for (std::int64_t row = 0; row < rows; row += block) {
    const std::int64_t count = std::min(block, rows - row);
    std::int64_t col = 0;
    for (; col + 4 * kLanes <= cols; col += 4 * kLanes) {
      pass.template chunk<Floats, 4>(row, count, col);
    }
    for (; col + kLanes <= cols; col += kLanes) pass.template chunk<Floats, 1>(row, count, col);
    for (; col < cols; ++col) pass.template chunk<float, 1>(row, count, col);
  }
}

// How many neighbouring rows of few channels are best taken as one row: full vectors, and enough of
// them. Parameters and sums are then needed as often (repeat(), fold()).
inline std::int64_t rows_at_once(std::int64_t channels) {
  constexpr std::int64_t kEnough = 4 * kLanes, kMost = 1024;
  std::int64_t rows = kLanes / std::gcd(channels, std::int64_t{kLanes});
  while (rows * channels < kEnough) rows *= 2;
  return rows * channels <= kMost ? rows : 1;
}

// values[channels] -> values[times][channels]
inline void repeat(float* values, std::int64_t channels, std::int64_t times) {
  for (std::int64_t i = 1; i < times; ++i) std::copy_n(values, channels, values + i * channels);
}

// sums[times][channels] -> sums[channels]
inline void fold(double* sums, std::int64_t channels, std::int64_t times) {
  for (std::int64_t i = channels; i < times * channels; ++i) sums[i % channels] += sums[i];
}

// Scratch memory for sums in double precision; the slot is scratch()'s.
double* doubles(int slot, std::int64_t elements);

// Sums as a gradient, or added to it.
void write_totals(float* gradient, const double* totals, std::int64_t n, bool adds);

// Of task.adds_input_grad or adds_weight_grad, which may be empty.
inline bool adds(const std::vector<bool>& flags, std::size_t i) {
  return i < flags.size() && flags[i];
}

// Rows of `cols` elements at equal distances, in N views.
template <std::size_t N>
struct RowGroup {
  Offsets<N> at{}, pitch{};  // of the first row, and from row to row
  std::int64_t rows = 1, cols = 0;

  // Takes in dimension d, if that leaves the rows at equal distances in all views.
  bool extend(const Views<N>& views, int d) {
    const std::int64_t extent = views[0]->tile.extent(d);
    if (extent == 1) return true;
    for (std::size_t v = 0; v < N; ++v) {
      const std::int64_t stride = views[v]->stride[d];
      if (rows == 1) pitch[v] = stride;
      if (stride != rows * pitch[v]) return false;
    }
    rows *= extent;
    return true;
  }
};

// Calls body(group) for all rows of tiles that have equal extents. Where rows are neighbours in
// memory, `at_once` of them make one.
template <std::size_t N, typename Body>
void for_each_row_group(const Views<N>& views, std::int64_t at_once, Body&& body) {
  const Rect& tile = views[0]->tile;
  if (tile.empty()) return;
  const int last = tile.rank - 1;
  const std::int64_t channels = tile.extent(last);
  RowGroup<N> group;
  group.cols = channels;
  int outer = last;
  while (outer > 0 && group.extend(views, outer - 1)) --outer;
  bool neighbours = at_once > 1;
  for (std::size_t v = 0; v < N; ++v) {
    if (channels > 1 && views[v]->stride[last] != 1) {
      throw std::invalid_argument("a tile whose rows are not contiguous");
    }
    neighbours &= group.pitch[v] == channels;
  }
  const std::int64_t wide = neighbours ? group.rows / at_once : 0;
  for_each_index<N>(views, outer, [&](const Offsets<N>& at) {
    RowGroup<N> part = group;
    part.at = at;
    if (wide > 0) {
      RowGroup<N> joined;
      joined.at = at;
      joined.rows = wide;
      joined.cols = at_once * channels;
      joined.pitch.fill(joined.cols);
      body(static_cast<const RowGroup<N>&>(joined));
      for (std::int64_t& offset : part.at) offset += wide * joined.cols;
      part.rows -= wide * at_once;
    }
    if (part.rows > 0) body(static_cast<const RowGroup<N>&>(part));
  });
}

}  // namespace flexlegion
