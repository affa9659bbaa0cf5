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

namespace flexlegion::gpu {

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

// Elements [i, i + W).
template <int W>
FL_DEVICE inline Lanes<W> load(Width<W>, const Reals& from, std::int64_t i) {
  Lanes<W> lanes;
  if constexpr (W == 1) {
    lanes[0] = from[i];
  } else if (is_narrow(from.type())) {
    const Piece piece = load_piece(static_cast<const Narrow*>(from.data()) + i);
    const auto bits = [&](int k) {
      return static_cast<Narrow>(piece.words[k / 2] >> (k % 2 * 16) & 0xffffU);
    };
    if (from.type() == DataType::float16) {
      for (int k = 0; k < W; ++k) lanes[k] = widened(DataType::float16, bits(k));
    } else {
      for (int k = 0; k < W; ++k) lanes[k] = widened(DataType::bfloat16, bits(k));
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
    Piece piece{};
    const auto put = [&](int k, Narrow bits) {
      piece.words[k / 2] |= static_cast<std::uint32_t>(bits) << (k % 2 * 16);
    };
    if (to.type() == DataType::float16) {
      for (int k = 0; k < W; ++k) put(k, rounded(DataType::float16, lanes[k]));
    } else {
      for (int k = 0; k < W; ++k) put(k, rounded(DataType::bfloat16, lanes[k]));
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
      const std::int64_t row = i / groups;
      body(Width<kWide>(), row, (i - row * groups) * kWide);
    });
  } else {
    for_each(rows * columns, [=] FL_BODY(std::int64_t i) {
      const std::int64_t row = i / columns;
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

}  // namespace flexlegion::gpu
