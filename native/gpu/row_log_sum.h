// Rows of classes, each by a team of threads.
#pragma once

#include <limits>

#include "gpu/view.h"
#include "ops/losses.h"
#include "ops/row_softmax.h"

namespace flexlegion::gpu {

struct Row {
  Reals data;
  std::int64_t step;
  FL_DEVICE Real operator[](std::int64_t i) const { return data[i * step]; }
  // Elements [i, i + W).
  template <int W>
  FL_DEVICE Lanes<W> load(Width<W> width, std::int64_t i) const {
    return gpu::load(width, data, i * step);
  }
};

FL_DEVICE inline Row row_of(const Strided& tile, std::int64_t i) {
  return {tile.row(i), tile.stride[tile.rank - 1]};
}

// As ops/row_softmax.h's row_log_sum().
FL_DEVICE inline RowLogSum log_sum_of(const Team& team, const Row& x, std::int64_t n, float own,
                                      std::int64_t place) {
  float maximum = std::numeric_limits<float>::lowest();
  double sum = 0, before = 0;  // sum: of exp(x - maximum)
  visit_row(team, n, x.step == 1 ? head_of(x.data) : -1, [&](auto width, std::int64_t i) {
    constexpr int W = decltype(width)::value;
    const Lanes<W> values = x.load(width, i);
    float most = maximum, its = 0;
    for (int k = 0; k < W; ++k) most = values[k] > most ? values[k] : most;
    if (most > maximum) {
      sum *= expf(maximum - most);
      maximum = most;
    }
    int earlier = 0;
    for (int k = 0; k < W; ++k) {
      its += expf(values[k] - maximum);
      earlier += values[k] > own || (values[k] == own && i + k < place) ? 1 : 0;
    }
    sum += its;
    before += earlier;
  });
  const float top = team.maximum(maximum);
  const double total = team.sum(sum * expf(maximum - top));
  const double rank = team.sum(before);
  RowLogSum result;
  result.log_sum = top + log(total);
  result.rank = own != own ? n : static_cast<std::int64_t>(rank);
  return result;
}

// A tile's labels: one a sample, or a sample and step; those of samples that count come first.
struct LabelRows {
  std::int64_t count, valid;

  LabelRows(const TensorView& labels, const RunState& run)
      : count(labels.volume()),
        valid(count == 0 ? 0 : valid_samples(labels, run) * (count / labels.extent(0))) {}
};

}  // namespace flexlegion::gpu
