#include "gpu/row_softmax.h"

namespace flexlegion::gpu {

void softmax_rows(float* x, std::int64_t rows, std::int64_t width, const RowLengths& lengths) {
  for_each_team(rows, width, [=] FL_BODY(const Team& team, std::int64_t r) {
    float* const row = x + r * width;
    const std::int64_t n = lengths.of(r);
    const RowSoftmax softmax = row_softmax(team, row, n);
    const float scale = 1.0f / softmax.sum;
    for (std::int64_t j = team.rank; j < width; j += team.size) {
      // Not so if all are: infinity less infinity is no number.
      const bool counts = j < n && row[j] != -INFINITY;
      row[j] = counts ? expf(row[j] - softmax.maximum) * scale : 0.0f;
    }
  });
}

void softmax_rows_backward(const float* y, float* dy, std::int64_t rows, std::int64_t width) {
  softmax_rows_backward(y, y, dy, rows, width);
}

void softmax_rows_backward(const float* y, const float* z, float* dy, std::int64_t rows,
                           std::int64_t width) {
  for_each_team(rows, width, [=] FL_BODY(const Team& team, std::int64_t r) {
    const float* const weights = y + r * width;
    const float* const kept = z + r * width;
    float* const row = dy + r * width;
    float sum = 0;
    for (std::int64_t j = team.rank; j < width; j += team.size) sum += kept[j] * row[j];
    sum = team.sum(sum);
    for (std::int64_t j = team.rank; j < width; j += team.size) {
      row[j] = kept[j] * row[j] - weights[j] * sum;
    }
  });
}

}  // namespace flexlegion::gpu
