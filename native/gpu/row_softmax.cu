// The softmax of rows that lie in memory, and its gradient, by a team of threads for each row.
//
// The row is read twice. In the first read, each thread keeps a running maximum and the sum of
// exp(x - maximum), scaled down when the maximum rises; the team combines these. In the second,
// results are written. So nothing is read a third time to find the maximum alone. Elements beyond a
// row's length, which a causal mask hides, get weight 0.
#include "gpu/row_softmax.h"

#include "gpu/lanes.h"

namespace flexlegion::gpu {

void softmax_rows(const float* x, const Reals& y, std::int64_t rows, std::int64_t width,
                  const RowLengths& lengths) {
  const Reals from(const_cast<float*>(x), DataType::float32);
  const bool aligned = begins_wide(from) && begins_wide(y);
  for_each_row_team(rows, width, aligned, [=] FL_BODY(auto wide, const Team& team, std::int64_t r) {
    constexpr int kWidth = wide.value;
    const std::int64_t n = lengths.of(r), first = r * width;
    // The maximum, and the sum of exp(x - maximum) as if that were what was found so far.
    float maximum = -INFINITY, sum = 0;
    for (std::int64_t j = team.rank * kWidth; j < n; j += team.size * kWidth) {
      const auto values = load(wide, from, first + j);
      float most = maximum;
      for (int k = 0; k < kWidth; ++k) {
        if (j + k < n && values[k] > most) most = values[k];
      }
      if (most == -INFINITY) continue;
      sum *= expf(maximum - most);
      maximum = most;
      for (int k = 0; k < kWidth; ++k) {
        if (j + k < n) sum += expf(values[k] - maximum);
      }
    }
    const float top = team.maximum(maximum);
    // A row without numbers has no maximum, and a thread may have found none.
    const float mine = maximum == -INFINITY ? 0.0f : sum * expf(maximum - top);
    const float scale = 1.0f / team.sum(mine);
    for (std::int64_t j = team.rank * kWidth; j < width; j += team.size * kWidth) {
      Lanes<kWidth> results{};
      if (j < n) {
        const auto values = load(wide, from, first + j);
        for (int k = 0; k < kWidth; ++k) {
          // Not so if all are: infinity less infinity is no number.
          const bool counts = j + k < n && values[k] != -INFINITY;
          results[k] = counts ? expf(values[k] - top) * scale : 0.0f;
        }
      }
      store(y, first + j, results);
    }
  });
}

void softmax_rows_backward(const Reals& y, const Reals& z, const float* dz, const Reals& dx,
                           std::int64_t rows, std::int64_t width) {
  const Reals grad(const_cast<float*>(dz), DataType::float32);
  const bool aligned = begins_wide(y) && begins_wide(z) && begins_wide(grad) && begins_wide(dx);
  for_each_row_team(rows, width, aligned, [=] FL_BODY(auto wide, const Team& team, std::int64_t r) {
    constexpr int kWidth = wide.value;
    const std::int64_t first = r * width;
    float sum = 0;
    for (std::int64_t j = team.rank * kWidth; j < width; j += team.size * kWidth) {
      const auto kept = load(wide, z, first + j), grads = load(wide, grad, first + j);
      for (int k = 0; k < kWidth; ++k) sum += kept[k] * grads[k];
    }
    sum = team.sum(sum);
    for (std::int64_t j = team.rank * kWidth; j < width; j += team.size * kWidth) {
      auto kept = load(wide, z, first + j);
      const auto grads = load(wide, grad, first + j), weights = load(wide, y, first + j);
      for (int k = 0; k < kWidth; ++k) kept[k] = kept[k] * grads[k] - weights[k] * sum;
      store(dx, first + j, kept);
    }
  });
}

}  // namespace flexlegion::gpu
