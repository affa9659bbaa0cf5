#include "runtime/updates.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "ops/partial_gradients.h"

namespace flexlegion {

namespace {

// Scratch slots of this file; kernels use the lower ones.
constexpr int kLookedUpSlot = 3100;  // + requirement

// What an update launch has for one weight: positions among its requirements.
struct UpdatedWeight {
  std::size_t value = 0;
  std::ptrdiff_t gradient = -1;  // of a table: none
  std::vector<std::size_t> states;
  struct Lookup {
    std::size_t tokens = 0, rows = 0;
  };
  std::map<int, Lookup> lookups;  // by the operator that looked rows up
};

std::vector<UpdatedWeight> updated_weights(const Launch& planned) {
  std::map<int, UpdatedWeight> weights;  // by operand
  for (std::size_t i = 0; i < planned.requirements.size(); ++i) {
    const Requirement& r = planned.requirements[i];
    UpdatedWeight& weight = weights[r.operand];
    switch (r.role) {
      case RequirementRole::weight_gradient:
        weight.gradient = static_cast<std::ptrdiff_t>(i);
        break;
      case RequirementRole::looked_up_tokens:
        weight.lookups[r.lookup].tokens = i;
        break;
      case RequirementRole::looked_up_gradient:
        weight.lookups[r.lookup].rows = i;
        break;
      case RequirementRole::optimizer_state:
        weight.states.push_back(i);
        break;
      default:
        weight.value = i;
    }
  }
  std::vector<UpdatedWeight> result;
  for (auto& [operand, weight] : weights) result.push_back(std::move(weight));
  return result;
}

// Positions among views -> the views, partial gradients of looked-up rows being summed.
WeightGradient gradient_in(const LeafContext& context, const UpdatedWeight& weight) {
  const auto& views = context.views;
  WeightGradient gradient;
  if (weight.gradient >= 0) {
    gradient.stack = views[static_cast<std::size_t>(weight.gradient)];
    return gradient;
  }
  gradient.of_table = true;
  for (const auto& [op, lookup] : weight.lookups) {
    if (views[lookup.tokens].tile.empty()) continue;
    const int slot = kLookedUpSlot + static_cast<int>(lookup.rows);
    gradient.lookups.push_back(
        {views[lookup.tokens], summed(views[lookup.rows], slot, *context.device)});
  }
  return gradient;
}

}  // namespace

void UpdateKernels::provide(const std::string& optimizer, const Attributes& hyperparameters,
                            const std::vector<int>& devices) {
  fill(devices,
       [&](DeviceKind kind) { return make_update_kernel(optimizer, hyperparameters, kind); });
}

bool is_gradient(const Requirement& requirement) {
  return requirement.privilege == Privilege::read;
}

Body update_body(const Launch& planned, const UpdateKernels& kernels, double clip_norm) {
  return [weights = updated_weights(planned), kernels, clip_norm](LeafContext& context) {
    const auto& views = context.views;
    for (const UpdatedWeight& weight : weights) {
      const TensorView& value = views[weight.value];
      if (!value.present()) continue;
      WeightUpdate update{kernels.on(context.kind), value, {},       gradient_in(context, weight),
                          context.arguments->run,   {},    clip_norm};
      for (std::size_t i : weight.states) update.states.push_back(views[i]);
      if (clip_norm > 0) update.squares = views.back();
      context.device->update(update);
    }
  };
}

Body norm_body(const Launch& planned) {
  Launch gradients = planned;  // the requirements that such a task has
  auto& all = gradients.requirements;
  all.erase(std::remove_if(all.begin(), all.end(), [](const auto& r) { return !is_gradient(r); }),
            all.end());
  return [weights = updated_weights(gradients)](LeafContext& context) {
    std::vector<WeightGradient> found;
    for (const UpdatedWeight& weight : weights) found.push_back(gradient_in(context, weight));
    context.device->sum_squares(found, context.views.back().f32());
  };
}

}  // namespace flexlegion
