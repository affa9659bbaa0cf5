// Several elements at a time. Memory is moved fastest by 16 bytes a thread, and to find a place
// costs as much for eight elements as for one.
//
// Bodies are written for any number of elements, which they are told as a type: Width<8> where all
// tiles have these beside each other and aligned, else Width<1>.
#pragma once

#include <cstdint>
#include <cstring>

#include "gpu/launch.h"
#include "gpu/real.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace flexlegion::gpu {

// i / by, both of them not negative. GPUs divide numbers of 64 bits by a hundred instructions.
FL_DEVICE inline std::int64_t divided(std::int64_t i, std::int64_t by) {
  if (((i | by) >> 32) == 0) return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(by);
  return i / by;
}

template <int W>
struct Width {
  static constexpr int value = W;
};
constexpr int kWide = 8;

// What a thread has of W elements that follow each other.
template <int W>
struct Lanes {
  float of[W];

  FL_DEVICE float& operator[](int k) { return of[k]; }
  FL_DEVICE float operator[](int k) const { return of[k]; }
};

// Sixteen bytes, moved by one instruction.
struct alignas(16) Piece {
  std::uint32_t words[4];
};
constexpr std::int64_t kPieceBytes = sizeof(Piece);

FL_DEVICE inline Piece load_piece(const void* from) {
#ifdef __CUDA_ARCH__
  return *static_cast<const Piece*>(from);
#else
  Piece piece;
  std::memcpy(&piece, from, sizeof(piece));
  return piece;
#endif
}
FL_DEVICE inline void store_piece(void* to, const Piece& piece) {
#ifdef __CUDA_ARCH__
  *static_cast<Piece*>(to) = piece;
#else
  std::memcpy(to, &piece, sizeof(piece));
#endif
}

// Two narrow numbers in a word, the first one below, and as floats.
template <DataType kType>
FL_DEVICE inline std::uint32_t narrow_pair(float first, float second) {
#ifdef __CUDA_ARCH__
  if constexpr (kType == DataType::float16) {
    return same_bits<std::uint32_t>(__floats2half2_rn(first, second));
  } else {
    return same_bits<std::uint32_t>(__floats2bfloat162_rn(first, second));
  }
#else
  return rounded(kType, first) | static_cast<std::uint32_t>(rounded(kType, second)) << 16;
#endif
}
template <DataType kType>
FL_DEVICE inline void widen_pair(std::uint32_t pair, float& first, float& second) {
#ifdef __CUDA_ARCH__
  if constexpr (kType == DataType::float16) {
    const float2 both = __half22float2(same_bits<__half2>(pair));
    first = both.x;
    second = both.y;
    return;
  }
#endif
  first = widened(kType, static_cast<Narrow>(pair & 0xffffU));
  second = widened(kType, static_cast<Narrow>(pair >> 16));
}

// Elements [i, i + W).
template <int W>
FL_DEVICE inline Lanes<W> load(Width<W>, const Reals& from, std::int64_t i) {
  Lanes<W> lanes;
  if constexpr (W == 1) {
    lanes[0] = from[i];
  } else if (is_narrow(from.type())) {
    const Piece piece = load_piece(static_cast<const Narrow*>(from.data()) + i);
    if (from.type() == DataType::float16) {
      for (int k = 0; k < W; k += 2) {
        widen_pair<DataType::float16>(piece.words[k / 2], lanes[k], lanes[k + 1]);
      }
    } else {
      for (int k = 0; k < W; k += 2) {
        widen_pair<DataType::bfloat16>(piece.words[k / 2], lanes[k], lanes[k + 1]);
      }
    }
  } else {
    const auto* const floats = static_cast<const float*>(from.data()) + i;
    for (int p = 0; p < W / 4; ++p) {
      const Piece piece = load_piece(floats + 4 * p);
      for (int k = 0; k < 4; ++k) lanes[4 * p + k] = same_bits<float>(piece.words[k]);
    }
  }
  return lanes;
}

template <int W>
FL_DEVICE inline void store(const Reals& to, std::int64_t i, const Lanes<W>& lanes) {
  if constexpr (W == 1) {
    to[i] = lanes[0];
  } else if (is_narrow(to.type())) {
    Piece piece;
    if (to.type() == DataType::float16) {
      for (int k = 0; k < W; k += 2) {
        piece.words[k / 2] = narrow_pair<DataType::float16>(lanes[k], lanes[k + 1]);
      }
    } else {
      for (int k = 0; k < W; k += 2) {
        piece.words[k / 2] = narrow_pair<DataType::bfloat16>(lanes[k], lanes[k + 1]);
      }
    }
    store_piece(static_cast<Narrow*>(to.data()) + i, piece);
  } else {
    auto* const floats = static_cast<float*>(to.data()) + i;
    for (int p = 0; p < W / 4; ++p) {
      Piece piece;
      for (int k = 0; k < 4; ++k) piece.words[k] = same_bits<std::uint32_t>(lanes[4 * p + k]);
      store_piece(floats + 4 * p, piece);
    }
  }
}

// to = or += lanes
template <int W>
FL_DEVICE inline void put(const Reals& to, std::int64_t i, Lanes<W> lanes, bool adds) {
  if (adds) {
    const Lanes<W> before = load(Width<W>(), to, i);
    for (int k = 0; k < W; ++k) lanes[k] += before[k];
  }
  store(to, i, lanes);
}

// Whether wide loads and stores may begin there, and at multiples of kWide elements from there.
inline bool begins_wide(const Reals& reals) {
  return reinterpret_cast<std::uintptr_t>(reals.data()) % kPieceBytes == 0;
}

// body(width, r, c) for all elements of rows of columns, and the next ones in their row, as many as
// the width says. Where `aligned`, elements whose columns are multiples of kWide can be loaded and
// stored together.
template <typename Body>
void for_each_in_rows(std::int64_t rows, std::int64_t columns, bool aligned, const Body& body) {
  if (aligned && columns % kWide == 0) {
    const std::int64_t groups = columns / kWide;
    for_each(rows * groups, [=] FL_BODY(std::int64_t i) {
      const std::int64_t row = divided(i, groups);
      body(Width<kWide>(), row, (i - row * groups) * kWide);
    });
  } else {
    for_each(rows * columns, [=] FL_BODY(std::int64_t i) {
      const std::int64_t row = divided(i, columns);
      body(Width<1>(), row, i - row * columns);
    });
  }
}

// body(width, team, row) for all rows: a team of threads for each, whose members deal its elements
// out, as many at a time as the width says. `aligned` as above.
template <typename Body>
void for_each_row_team(std::int64_t rows, std::int64_t columns, bool aligned, const Body& body) {
  if (aligned && columns % kWide == 0) {
    // Of wide elements, half as many keep a thread as busy.
    for_each_team(rows, columns / 2, [=] FL_BODY(const Team& team, std::int64_t row) {
      body(Width<kWide>(), team, row);
    });
  } else {
    for_each_team(rows, columns,
                  [=] FL_BODY(const Team& team, std::int64_t row) { body(Width<1>(), team, row); });
  }
}

// How many elements of a row come before the first that begins sixteen bytes.
FL_DEVICE inline std::int64_t head_of(const Reals& row) {
  const auto address = reinterpret_cast<std::uintptr_t>(row.data());
  const auto past = static_cast<std::int64_t>(address % kPieceBytes);
  return (kPieceBytes - past) % kPieceBytes / element_bytes(row.type());
}

// visit(width, i) for elements [i, i + width) of a row, dealt out to a team. Rows may begin
// anywhere, as those of classes do, of which there are any number: the first `head` elements and
// the last ones are visited one by one, and all where the head is negative.
template <typename Visit>
FL_DEVICE void visit_row(const Team& team, std::int64_t n, std::int64_t head, const Visit& visit) {
  const std::int64_t begin = head < 0 || head > n ? n : head;
  const std::int64_t end = begin + (n - begin) / kWide * kWide;
  for (std::int64_t i = team.rank; i < begin; i += team.size) visit(Width<1>(), i);
  for (std::int64_t i = begin + team.rank * kWide; i < end; i += team.size * kWide) {
    visit(Width<kWide>(), i);
  }
  for (std::int64_t i = end + team.rank; i < n; i += team.size) visit(Width<1>(), i);
}

}  // namespace flexlegion::gpu
