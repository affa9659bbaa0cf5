// resize2d: an image enlarged by whole factors, each output the nearest input or a mean of four.
//
// Along an axis, output o lies at (o + 1/2) / factor - 1/2 among the inputs, or, where corners are
// aligned, at o * (in - 1) / (out - 1). Of the two inputs beside that place, each counts the more
// the nearer it is. Places beyond the first or last input are theirs.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/portable.h"
#include "ops/kernel.h"

namespace flexlegion {

// Of an output, the two inputs that it is made of, in the tile, and the second one's share.
struct ResizeTaps {
  std::int64_t first, second;
  float share;

  FL_DEVICE float weight_of(std::int64_t i) const {
    return (i == first ? 1.0f - share : 0.0f) + (i == second ? share : 0.0f);
  }
};

// One axis of a task's tiles.
struct ResizeAxis {
  std::int64_t factor = 1;
  bool nearest = true, aligned = false;
  std::int64_t in = 0, out = 0;              // extents of the tiles
  std::int64_t in_lo = 0, out_lo = 0;        // where they begin
  std::int64_t whole_in = 0, whole_out = 0;  // extents of the tensors

  ResizeAxis() = default;
  ResizeAxis(const Attributes& attributes, const std::string& axis)
      : factor(attributes.integer("factor_" + axis)),
        nearest(attributes.text("kind") == "nearest"),
        aligned(attributes.integer("align_corners") != 0) {}

  ResizeAxis between(const TensorView& x, const TensorView& y, int d) const {
    ResizeAxis tile = *this;
    tile.in = x.extent(d);
    tile.out = y.extent(d);
    tile.in_lo = x.tile.lo[d];
    tile.out_lo = y.tile.lo[d];
    tile.whole_in = x.shape[d];
    tile.whole_out = y.shape[d];
    return tile;
  }

  FL_DEVICE ResizeTaps taps(std::int64_t o) const {
    const std::int64_t place = out_lo + o;
    if (nearest) return {place / factor - in_lo, place / factor - in_lo, 0.0f};
    float at;
    if (aligned) {
      at = whole_out > 1 ? static_cast<float>(place) * static_cast<float>(whole_in - 1) /
                               static_cast<float>(whole_out - 1)
                         : 0.0f;
    } else {
      at = (static_cast<float>(place) + 0.5f) / static_cast<float>(factor) - 0.5f;
      at = at < 0.0f ? 0.0f : at;
    }
    const auto first = static_cast<std::int64_t>(at);
    const std::int64_t last = whole_in - 1;
    return {(first < last ? first : last) - in_lo, (first + 1 < last ? first + 1 : last) - in_lo,
            at - static_cast<float>(first)};
  }

  // The outputs [first_of(i), end_of(i)) have all those that input i is a part of.
  FL_DEVICE std::int64_t first_of(std::int64_t i) const {
    if (whole_in == 1) return 0;
    const std::int64_t first = (in_lo + i - 1) * steps() / gaps() - 1 - out_lo;
    return first < 0 ? 0 : first;
  }
  FL_DEVICE std::int64_t end_of(std::int64_t i) const {
    if (whole_in == 1) return out;
    const std::int64_t end = (in_lo + i + 2) * steps() / gaps() + 2 - out_lo;
    return end > out ? out : (end < 0 ? 0 : end);
  }

 private:
  // From an input to the next there are steps() / gaps() outputs.
  FL_DEVICE std::int64_t steps() const { return aligned ? whole_out - 1 : factor; }
  FL_DEVICE std::int64_t gaps() const { return aligned ? whole_in - 1 : 1; }
};

}  // namespace flexlegion
