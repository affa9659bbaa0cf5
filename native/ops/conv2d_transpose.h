// What a transposed convolution's tiles mean, on any device.
//
// Input element i contributes to the output elements i * stride - padding + k * dilation, k being
// the taps of the kernel. So the contributions of all input elements to all taps are one matrix
// product, columns(row of x, tap and filter) = x kernel^T, and an output element is the sum of the
// columns that fall on it. Backwards, an input element gathers from where its taps fell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "gpu/portable.h"
#include "ops/kernel.h"
#include "ops/matrix.h"

namespace flexlegion {

// One axis of a task: which element of the output tile a tap falls on, and back.
struct TransposedAxis {
  std::int64_t taps = 1, stride = 1, dilation = 1;
  std::int64_t in = 0, out = 0;  // extents of the tiles
  std::int64_t first = 0;        // where tap 0 of the input tile's first element falls

  TransposedAxis() = default;
  TransposedAxis(const Attributes& attributes, const std::string& axis)
      : taps(attributes.integer("kernel_" + axis)),
        stride(attributes.integer("stride_" + axis)),
        dilation(attributes.integer("dilation_" + axis)),
        first(-attributes.integer("padding_" + axis)) {
    if (taps < 1 || stride < 1 || dilation < 1 || first > 0) {
      throw std::invalid_argument(
          "a transposed convolution needs kernel, stride and dilation >= 1, and padding >= 0");
    }
  }

  TransposedAxis between(const TensorView& x, const TensorView& y, int d) const {
    TransposedAxis tile = *this;
    tile.in = x.extent(d);
    tile.out = y.extent(d);
    tile.first += x.tile.lo[d] * stride - y.tile.lo[d];
    return tile;
  }

  // Of the output tile; -1 if it falls beside it.
  FL_DEVICE std::int64_t falls_on(std::int64_t i, std::int64_t tap) const {
    const std::int64_t o = first + i * stride + tap * dilation;
    return o >= 0 && o < out ? o : -1;
  }
  // The input element whose tap falls on o; -1 if none does.
  FL_DEVICE std::int64_t comes_from(std::int64_t o, std::int64_t tap) const {
    const std::int64_t distance = o - first - tap * dilation;
    if (distance < 0 || distance % stride != 0) return -1;
    const std::int64_t i = distance / stride;
    return i < in ? i : -1;
  }
};

struct TransposedConvTile {
  TransposedAxis h, w;
  std::int64_t samples = 0, channels = 0, filters = 0;

  FL_DEVICE std::int64_t taps() const { return h.taps * w.taps; }
  FL_DEVICE std::int64_t row() const { return taps() * filters; }  // columns of an input element
  FL_DEVICE std::int64_t sample() const { return h.in * w.in; }    // input elements of a sample
  FL_DEVICE std::int64_t outputs() const { return h.out * w.out * filters; }  // of a sample

  // What the products are of: rows of some samples of x or its gradient, their columns, the kernel.
  Matrix rows_of(void* x, DataType type, std::int64_t first, std::int64_t count) const {
    Matrix rows = Matrix::row_major(x, count * sample(), channels, channels, type);
    rows.data = rows.at(first * sample() * channels);
    return rows;
  }
  Matrix columns_of(void* columns, DataType type, std::int64_t count) const {
    return Matrix::row_major(columns, count * sample(), row(), row(), type);
  }
  Matrix matrix_of(void* kernel, DataType type) const {
    return Matrix::row_major(kernel, row(), channels, channels, type);
  }
};

struct TransposedConvLayer {
  TransposedAxis h, w;
  bool use_bias;

  explicit TransposedConvLayer(const Attributes& attributes)
      : h(attributes, "h"), w(attributes, "w"), use_bias(attributes.integer("use_bias") != 0) {}

  // The kernel is (kh, kw, o, i).
  TransposedConvTile tile(const TensorView& x, const TensorView& y,
                          const TensorView& kernel) const {
    return {h.between(x, y, 1), w.between(x, y, 2), y.extent(0), kernel.extent(3),
            kernel.extent(2)};
  }
};

// body(first sample, how many, memory for their columns), for as many samples at once as have
// columns of about `at_once` elements. `memory(elements)` gives it.
template <typename Memory, typename Body>
void for_each_block(const TransposedConvTile& t, std::int64_t at_once, const Memory& memory,
                    const Body& body) {
  const std::int64_t each = t.sample() * t.row();
  if (each == 0) return;
  const std::int64_t most =
      std::clamp<std::int64_t>(at_once / each, 1, std::max<std::int64_t>(1, t.samples));
  float* const columns = memory(most * each);
  for (std::int64_t first = 0; first < t.samples; first += most) {
    body(first, std::min(most, t.samples - first), columns);
  }
}

}  // namespace flexlegion
