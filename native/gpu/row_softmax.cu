#include "gpu/row_softmax.h"

namespace flexlegion::gpu {

void softmax_rows(const float* x, const Reals& y, std::int64_t rows, std::int64_t width,
                  const RowLengths& lengths) {
  for_each_team(rows, width, [=] FL_BODY(const Team& team, std::int64_t r) {
    const float* const from = x + r * width;
    const Reals to = y + r * width;
    const std::int64_t n = lengths.of(r);
    const RowSoftmax softmax = row_softmax(team, from, n);
    const float scale = 1.0f / softmax.sum;
    for (std::int64_t j = team.rank; j < width; j += team.size) {
      // Not so if all are: infinity less infinity is no number.
      const bool counts = j < n && from[j] != -INFINITY;
      to[j] = counts ? expf(from[j] - softmax.maximum) * scale : 0.0f;
    }
  });
}

void softmax_rows_backward(const Reals& y, const Reals& z, const float* dz, const Reals& dx,
                           std::int64_t rows, std::int64_t width) {
  for_each_team(rows, width, [=] FL_BODY(const Team& team, std::int64_t r) {
    const Reals weights = y + r * width, kept = z + r * width, to = dx + r * width;
    const float* const grad = dz + r * width;
    float sum = 0;
    for (std::int64_t j = team.rank; j < width; j += team.size) sum += kept[j] * grad[j];
    sum = team.sum(sum);
    for (std::int64_t j = team.rank; j < width; j += team.size) {
      to[j] = kept[j] * grad[j] - weights[j] * sum;
    }
  });
}

}  // namespace flexlegion::gpu
