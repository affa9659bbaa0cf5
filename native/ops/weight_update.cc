// What CPU processors do beside kernels: move tiles, and update weights block by block.
//
// A weight's gradient arrives as a stack of partial values, one slot for each task that computed
// it. Summing it as a whole, then scaling, then updating would pass over the memory three times.
// Instead rows are taken in blocks of 32K elements: summed into scratch memory, scaled if gradients
// are clipped or were scaled, and given to the optimizer, while they are in the cache. So value,
// states and every slot are read once.
//
// A table's gradient is never a tensor: its rows are summed from tokens (table_gradient.h), all of
// them, or the looked-up ones if the optimizer is lazy.
#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/partial_values.h"
#include "ops/simd.h"
#include "ops/strided_loop.h"
#include "ops/team.h"

namespace flexlegion {

namespace {

// Scratch slots of this file; kernels use the lower ones.
constexpr int kPackedSlot = 3000, kScaledSlot = 3001, kSummedSlot = 3002;

constexpr std::int64_t kBlockElements = 1 << 15;  // that stay in the cache

// Rows [lo, hi) of a shard, counted from its first; dimension `d` of the view are the rows.
TensorView rows_of(const TensorView& view, int d, std::int64_t lo, std::int64_t hi) {
  return narrowed(view, d, view.tile.lo[d] + lo, view.tile.lo[d] + hi);
}

// Calls body(lo, hi, gradient) for one stack of partial gradients, summed and dense, in blocks of
// rows that stay in the cache between the sum and what `body` does.
template <typename Body>
void for_each_block(const TensorView& stack, Body&& body) {
  if (!stack.present()) return;
  const TensorView head = slot_of(stack, stack.tile.lo[0]);
  const std::int64_t rows = head.extent(0);
  const std::int64_t per_row = std::max<std::int64_t>(1, head.volume() / rows);
  const std::int64_t block = std::max<std::int64_t>(1, kBlockElements / per_row);
  for (std::int64_t lo = 0; lo < rows; lo += block) {
    const std::int64_t hi = std::min(rows, lo + block);
    TensorView gradient =
        summed(rows_of(stack, 1, lo, hi), kSummedSlot, *device_functions(DeviceKind::cpu));
    if (!gradient.dense()) {
      const TensorView packed =
          dense_view(scratch(kPackedSlot, gradient.volume()), gradient.tile, gradient.shape);
      copy_view(packed, gradient);
      gradient = packed;
    }
    body(lo, hi, gradient);
  }
}

FLEXLEGION_SIMD double sum_of_squares(const float* x, std::int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

FLEXLEGION_SIMD void scale_row(const float* x, float factor, float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
}

// Updates one weight's shard, block by block.
class Updater {
 public:
  Updater(UpdateKernel& kernel, const TensorView& value, std::vector<TensorView> states,
          float factor, const RunState& run, const TensorView& rounded)
      : kernel_(kernel),
        value_(value),
        states_(std::move(states)),
        factor_(factor),
        run_(run),
        rounded_(rounded) {}

  // Rows [lo, hi) of the shard, by a dense gradient.
  void operator()(std::int64_t lo, std::int64_t hi, TensorView gradient) {
    if (factor_ != 1.0f) {
      float* const scaled = scratch(kScaledSlot, gradient.volume());
      scale_row(gradient.f32(), factor_, scaled, gradient.volume());
      gradient.data = scaled;
    }
    parts_.clear();
    for (const TensorView& state : states_) parts_.push_back(rows_of(state, 0, lo, hi));
    const TensorView rows = rows_of(value_, 0, lo, hi);
    kernel_.update(rows, gradient, parts_, run_, nullptr);
    if (rounded_.present()) copy_view(rows_of(rounded_, 0, lo, hi), rows);
  }

 private:
  UpdateKernel& kernel_;
  const TensorView& value_;
  const std::vector<TensorView> states_;
  const float factor_;
  const RunState& run_;
  const TensorView rounded_;
  std::vector<TensorView> parts_;
};

// A weight that is no table, on all threads.
void update_rows(const WeightUpdate& update, float factor) {
  const TensorView& value = update.value;
  share_range(value.extent(0), value.volume(), [&](std::int64_t lo, std::int64_t hi) {
    std::vector<TensorView> states;
    for (const TensorView& state : update.states) states.push_back(rows_of(state, 0, lo, hi));
    const TensorView mine = rows_of(value, 0, lo, hi);
    TensorView rounded = update.rounded;
    if (rounded.present()) rounded = rows_of(rounded, 0, lo, hi);
    Updater updater(update.kernel, mine, std::move(states), factor, update.run, rounded);
    for_each_block(rows_of(update.gradient.stack, 1, lo, hi), updater);
  });
}

void change_weight(const WeightUpdate& update) {
  float factor = 1.0f;
  if (update.norm.present()) {
    // The norm is that of all weights' gradients and was computed by a task before. If it is not
    // finite, scaled gradients overflowed, and this iteration changes nothing.
    const float norm = *update.norm.f32();
    if (update.scaled() && !std::isfinite(norm)) return;
    factor = gradient_factor(norm, update.clip_norm, update.run.loss_scale);
  }
  if (!update.gradient.of_table) return update_rows(update, factor);
  Updater updater(update.kernel, update.value, update.states, factor, update.run, update.rounded);
  for_each_row_block(update.gradient.lookups, TableRows::of(update.value), update.value.extent(1),
                     update.kernel.lazy(), updater);
}

FLEXLEGION_SIMD void follow_run(float* average, const float* value, float share, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) average[i] = followed(average[i], value[i], share);
}

// An average goes on in each iteration and in all rows, whichever of them changed.
void update_weight(const WeightUpdate& update) {
  change_weight(update);
  if (!update.average.present()) return;
  const TensorView& value = update.value;
  share_range(value.extent(0), value.volume(), [&](std::int64_t lo, std::int64_t hi) {
    const TensorView average = rows_of(update.average, 0, lo, hi), from = rows_of(value, 0, lo, hi);
    for_each_run<2>({&average, &from}, [&](const Offsets<2>& at, std::int64_t n) {
      follow_run(average.f32() + at[0], from.f32() + at[1], update.new_share(), n);
    });
  });
}

void find_norm(const std::vector<WeightGradient>& gradients, float* norm) {
  double total = 0;
  const auto add = [&total](std::int64_t, std::int64_t, const TensorView& gradient) {
    total += sum_of_squares(gradient.f32(), gradient.volume());
  };
  for (const WeightGradient& gradient : gradients) {
    if (!gradient.of_table) for_each_block(gradient.stack, add);
    if (gradient.lookups.empty()) continue;
    const TensorView& rows = gradient.lookups.front().gradient;
    for_each_row_block(gradient.lookups, gradient.rows, rows.extent(rows.rank() - 1), true, add);
  }
  // Squared and summed in double precision: the squares of large or tiny floats are no floats.
  *norm = static_cast<float>(std::sqrt(total));
}

DeviceFunctions functions() {
  DeviceFunctions result;
  result.copy = copy_view;
  result.add = add_view;
  result.max = max_view;
  result.log_add_exp = log_add_exp_view;
  result.zero = zero_view;
  result.zero_where_equal = zero_where_equal;
  result.scratch = scratch;
  result.update = update_weight;
  result.find_norm = find_norm;
  return result;
}

const RegisterDeviceFunctions registered(functions(), DeviceKind::cpu);

}  // namespace
}  // namespace flexlegion
