// The sliding windows of a convolution or a pooling, along one axis and over a tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "ops/kernel.h"

namespace flexlegion {

// A window has `kernel` taps, `dilation` elements apart.
struct WindowAxis {
  std::int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;

  // From an operator's attributes kernel_h, stride_h, padding_h, dilation_h (or ..._w).
  WindowAxis(const Attributes& attributes, const std::string& axis)
      : kernel(attributes.integer("kernel_" + axis)),
        stride(attributes.integer("stride_" + axis)),
        padding(attributes.integer("padding_" + axis)),
        dilation(attributes.integer("dilation_" + axis, 1)) {
    if (kernel < 1 || stride < 1 || dilation < 1 || padding < 0 || padding >= span()) {
      // With less padding than a window spans, every window touches the tensor.
      throw std::invalid_argument(
          "a window needs kernel, stride and dilation >= 1, 0 <= padding < what it spans");
    }
  }

  std::int64_t span() const { return (kernel - 1) * dilation + 1; }  // elements
};

// How the windows of an output tile lie in its input tile, along one axis.
struct WindowTile {
  std::int64_t in = 0, out = 0;        // extents of the two tiles
  std::int64_t before = 0, after = 0;  // padding at either end: of a tile inside the tensor, none
  std::int64_t kernel = 1, stride = 1, dilation = 1;

  WindowTile() = default;
  WindowTile(const WindowAxis& axis, const TensorView& input, const TensorView& output, int d)
      : in(input.extent(d)),
        out(output.extent(d)),
        before(input.tile.lo[d] - (output.tile.lo[d] * axis.stride - axis.padding)),
        after((output.tile.hi[d] - 1) * axis.stride - axis.padding + axis.span() -
              input.tile.hi[d]),
        kernel(axis.kernel),
        stride(axis.stride),
        dilation(axis.dilation) {}

  // Which element of the input tile is under a tap of window `o`; one beside the tile is padding.
  constexpr std::int64_t under(std::int64_t o, std::int64_t tap) const {
    return o * stride - before + tap * dilation;
  }

  // What follows is of windows without dilation. The part of window `o` that lies within the tile.
  constexpr std::int64_t begin(std::int64_t o) const {
    return std::max<std::int64_t>(0, o * stride - before);
  }
  constexpr std::int64_t end(std::int64_t o) const {
    return std::min(in, o * stride - before + kernel);
  }

  // The windows [first_over(i), end_over(i)) are those that element i of the input tile lies in.
  constexpr std::int64_t first_over(std::int64_t i) const {
    const std::int64_t beyond = i + before - kernel + 1;  // the earliest start of such a window
    return beyond <= 0 ? 0 : (beyond + stride - 1) / stride;
  }
  constexpr std::int64_t end_over(std::int64_t i) const {
    return i + before < 0 ? 0 : std::min(out, (i + before) / stride + 1);
  }
};

}  // namespace flexlegion
