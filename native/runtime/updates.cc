#include "runtime/updates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "ops/simd.h"
#include "ops/strided_loop.h"
#include "ops/table_gradient.h"
#include "runtime/views.h"

namespace flexlegion {

namespace {

// Scratch slots of this file; kernels use the lower ones.
constexpr int kPackedSlot = 3000, kScaledSlot = 3001;
constexpr int kSummedSlot = 3100;  // + requirement

constexpr std::int64_t kBlockElements = 1 << 15;  // that stay in the cache

// What an update launch has for one weight: positions among its requirements.
struct UpdatedWeight {
  std::size_t value = 0;
  std::ptrdiff_t gradient = -1;  // of a table: none
  std::vector<std::size_t> states;
  std::vector<std::pair<std::size_t, std::size_t>> lookups;  // (tokens, gradient of their rows)
};

// See PlanBuilder::add_update_requirements.
std::vector<UpdatedWeight> updated_weights(const Launch& planned) {
  std::vector<UpdatedWeight> weights;
  const auto& requirements = planned.requirements;
  for (std::size_t i = 0; i < requirements.size(); ++i) {
    const Requirement& r = requirements[i];
    if (i == 0 || r.operand != requirements[i - 1].operand) weights.emplace_back();
    UpdatedWeight& weight = weights.back();
    if (r.field == Field::value && r.privilege == Privilege::read) {
      weight.lookups.emplace_back(i, i + 1);
      ++i;
    } else if (r.field == Field::gradient) {
      weight.gradient = static_cast<std::ptrdiff_t>(i);
    } else if (r.field == Field::value) {
      weight.value = i;
    } else {
      weight.states.push_back(i);
    }
  }
  return weights;
}

std::vector<Lookup> lookups_in(const std::vector<TensorView>& views,
                               const std::vector<std::pair<std::size_t, std::size_t>>& positions) {
  std::vector<Lookup> lookups;
  for (const auto& [tokens, gradient] : positions) {
    if (views[tokens].tile.empty()) continue;
    const int slot = kSummedSlot + static_cast<int>(gradient);
    lookups.push_back({views[tokens], summed(views[gradient], slot)});
  }
  return lookups;
}

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
    TensorView gradient = summed(rows_of(stack, 1, lo, hi), kSummedSlot);
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

// What the gradient is multiplied with so that its norm is at most `clip_norm`.
float clipping(const TensorView& squares, double clip_norm) {
  double sum = 0;
  for (std::int64_t i = 0; i < squares.volume(); ++i) sum += squares.f32()[i];
  // As PyTorch: the small number keeps a norm of zero from dividing.
  return static_cast<float>(std::min(1.0, clip_norm / (std::sqrt(sum) + 1e-6)));
}

// Updates one weight's shard, block by block.
class Updater {
 public:
  Updater(UpdateKernel& kernel, const TensorView& value, std::vector<TensorView> states,
          float factor, const RunState& run)
      : kernel_(kernel), value_(value), states_(std::move(states)), factor_(factor), run_(run) {}

  // Rows [lo, hi) of the shard, by a dense gradient.
  void operator()(std::int64_t lo, std::int64_t hi, TensorView gradient) {
    if (factor_ != 1.0f) {
      float* const scaled = scratch(kScaledSlot, gradient.volume());
      scale_row(gradient.f32(), factor_, scaled, gradient.volume());
      gradient.data = scaled;
    }
    parts_.clear();
    for (const TensorView& state : states_) parts_.push_back(rows_of(state, 0, lo, hi));
    kernel_.update(rows_of(value_, 0, lo, hi), gradient, parts_, run_);
  }

 private:
  UpdateKernel& kernel_;
  const TensorView& value_;
  const std::vector<TensorView> states_;
  const float factor_;
  const RunState& run_;
  std::vector<TensorView> parts_;
};

}  // namespace

bool is_gradient(const Requirement& requirement) {
  return requirement.privilege == Privilege::read;
}

Body update_body(const Launch& planned, std::shared_ptr<UpdateKernel> kernel, double clip_norm) {
  return [weights = updated_weights(planned), kernel, clip_norm](LeafContext& context) {
    const auto& views = context.views;
    const float factor = clip_norm > 0 ? clipping(views.back(), clip_norm) : 1.0f;
    for (const UpdatedWeight& weight : weights) {
      const TensorView& value = views[weight.value];
      if (!value.present()) continue;
      std::vector<TensorView> states;
      for (std::size_t i : weight.states) states.push_back(views[i]);
      Updater update(*kernel, value, std::move(states), factor, context.arguments->run);
      if (weight.gradient >= 0) {
        for_each_block(views[static_cast<std::size_t>(weight.gradient)], update);
        continue;
      }
      for_each_row_block(lookups_in(views, weight.lookups), value.extent(0), value.extent(1),
                         kernel->skips_zeros(), update);
    }
  };
}

Body norm_body(const Launch& planned) {
  Launch gradients = planned;  // the requirements that such a task has
  auto& all = gradients.requirements;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& r) { return !is_gradient(r); }),
            all.end());
  return [weights = updated_weights(gradients)](LeafContext& context) {
    double sum = 0;
    const auto add = [&sum](std::int64_t, std::int64_t, const TensorView& gradient) {
      sum += sum_of_squares(gradient.f32(), gradient.volume());
    };
    for (const UpdatedWeight& weight : weights) {
      if (weight.gradient >= 0) {
        for_each_block(context.views[static_cast<std::size_t>(weight.gradient)], add);
        continue;
      }
      const std::vector<Lookup> lookups = lookups_in(context.views, weight.lookups);
      if (lookups.empty()) continue;
      const TensorView& rows = lookups.front().gradient;
      for_each_row_block(lookups, kAnyRow, rows.extent(rows.rank() - 1), true, add);
    }
    *context.views.back().f32() = static_cast<float>(sum);
  };
}

}  // namespace flexlegion
