// Passes over the elements of a tile in blocks that stay in the first cache, beside operands that
// are strided, or repeated.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "ops/broadcast.h"
#include "ops/strided_loop.h"

namespace flexlegion {

constexpr std::int64_t kBlock = 512;

// Calls body(offset, at, n, step) for the elements [first, first + count) of the output's tile, in
// pieces that are `step` apart in the operand: `at` is the piece's place in the range.
template <typename Body>
void for_each_piece(const Spread& spread, std::int64_t first, std::int64_t count, Body&& body) {
  if (spread.rank == 0) return body(std::int64_t{0}, std::int64_t{0}, count, std::int64_t{0});
  const int last = spread.rank - 1;
  std::array<std::int64_t, kMaxRegionRank> index{};
  std::int64_t rest = first, offset = 0;
  for (int d = last; d >= 0; --d) {
    index[d] = d > 0 ? rest % spread.extent[d] : rest;
    rest /= spread.extent[d];
    offset += index[d] * spread.stride[d];
  }
  for (std::int64_t at = 0; at < count;) {
    const std::int64_t n = std::min(count - at, spread.extent[last] - index[last]);
    body(offset, at, n, spread.stride[last]);
    at += n;
    offset += n * spread.stride[last];
    index[last] += n;
    for (int d = last; d > 0 && index[d] == spread.extent[d]; --d) {
      offset += spread.stride[d - 1] - index[d] * spread.stride[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

void add_to_sums(double* to, const float* more, std::int64_t n);
float sum_of(const float* x, std::int64_t n);
void give(float* to, const float* from, std::int64_t n, bool adds);  // writes, or adds
void give(DataType type, Narrow* to, const float* from, std::int64_t n, bool adds);

// An operand that is read: a block's elements as floats, in place if they are dense floats, or
// gathered.
class Source {
 public:
  Source() = default;
  Source(const TensorView& view, const TensorView& output, bool integers, float* buffer)
      : view_(view), spread_(view, output), buffer_(buffer), integers_(integers) {}

  const float* block(std::int64_t first, std::int64_t n) const {
    if (spread_.dense() && !integers_ && !view_.narrow()) return view_.f32() + first;
    for_each_piece(spread_, first, n,
                   [this](std::int64_t offset, std::int64_t at, std::int64_t count,
                          std::int64_t step) { gather(offset, buffer_ + at, count, step); });
    return buffer_;
  }

 private:
  void gather(std::int64_t offset, float* to, std::int64_t n, std::int64_t step) const {
    if (integers_) {
      const std::int32_t* const from = view_.i32() + offset;
      for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i * step]);
      return;
    }
    if (view_.narrow()) {
      const Narrow* const from = view_.bits() + offset;
      if (step == 1) return widen(view_.type, from, to, n);
      for (std::int64_t i = 0; i < n; ++i) to[i] = widened(view_.type, from[i * step]);
      return;
    }
    const float* const from = view_.f32() + offset;
    if (step == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(float));
    } else if (step == 0) {
      std::fill_n(to, n, *from);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i] = from[i * step];
    }
  }

  TensorView view_;
  Spread spread_;
  float* buffer_ = nullptr;
  bool integers_ = false;
};

// An operand that is written: the output, or a gradient. Of a broadcast one, the sums are kept in
// double precision until the end.
class Sink {
 public:
  Sink(const TensorView& view, const TensorView& output, bool adds, int slot)
      : view_(view), spread_(view, output), adds_(adds) {
    if (!spread_.broadcast) return;
    spread_ = Spread(view, output, true);
    const std::int64_t volume = view.volume();
    sums_ = reinterpret_cast<double*>(scratch(slot, 2 * volume));
    std::fill_n(sums_, volume, 0.0);
  }

  // Where a block may be written at once; null: by put().
  float* block(std::int64_t first) const {
    const bool in_place = spread_.dense() && sums_ == nullptr && !adds_ && !view_.narrow();
    return in_place ? view_.f32() + first : nullptr;
  }

  void put(const float* from, std::int64_t first, std::int64_t n) const {
    for_each_piece(
        spread_, first, n,
        [&](std::int64_t offset, std::int64_t at, std::int64_t count, std::int64_t step) {
          if (sums_ == nullptr) {
            store(offset, from + at, count, step);
          } else if (step == 1) {
            add_to_sums(sums_ + offset, from + at, count);
          } else if (step == 0) {
            sums_[offset] += sum_of(from + at, count);
          } else {
            for (std::int64_t i = 0; i < count; ++i) sums_[offset + i * step] += from[at + i];
          }
        });
  }

  // After the last block: what was summed, times `factor`.
  void finish(double factor = 1) const {
    if (sums_ == nullptr) return;
    std::int64_t i = 0;
    for_each_index<1>({&view_}, view_.rank(), [&](const Offsets<1>& at) {
      store_one(at[0], static_cast<float>(factor * sums_[i++]));
    });
  }

 private:
  void store(std::int64_t offset, const float* from, std::int64_t n, std::int64_t step) const {
    if (step != 1) {
      for (std::int64_t i = 0; i < n; ++i) store_one(offset + i * step, from[i]);
    } else if (view_.narrow()) {
      give(view_.type, view_.bits() + offset, from, n, adds_);
    } else {
      give(view_.f32() + offset, from, n, adds_);
    }
  }
  void store_one(std::int64_t offset, float value) const {
    if (view_.narrow()) {
      Narrow& to = view_.bits()[offset];
      to = rounded(view_.type, adds_ ? widened(view_.type, to) + value : value);
    } else {
      float& to = view_.f32()[offset];
      to = adds_ ? to + value : value;
    }
  }

  TensorView view_;
  Spread spread_;
  double* sums_ = nullptr;
  bool adds_;
};

}  // namespace flexlegion
