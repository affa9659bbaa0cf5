#include "runtime/updates.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "ops/partial_values.h"

namespace flexlegion {

namespace {

// Scratch slots of this file; kernels use the lower ones.
constexpr int kLookedUpSlot = 3100;  // + requirement

// What an update or norm launch has for one weight: positions among its requirements.
struct UpdatedWeight {
  std::size_t value = 0;
  std::ptrdiff_t gradient = -1;  // of a table: none
  std::vector<std::size_t> states;
  struct Lookup {
    std::size_t tokens = 0, rows = 0;
    std::int64_t padding = kNoPadding;
  };
  std::map<OpId, Lookup> lookups;  // by the operator that looked rows up
  std::vector<Rect> shards;        // of a table: each task's
};

// The weights of an update launch, or of the norm launch that has the same tasks.
std::vector<UpdatedWeight> updated_weights(const Graph& graph, const Launch& planned,
                                           const Launch& update) {
  std::map<int, UpdatedWeight> weights;  // by operand
  for (std::size_t i = 0; i < planned.requirements.size(); ++i) {
    const Requirement& r = planned.requirements[i];
    if (r.tensor.none()) continue;
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
        weight.lookups[r.lookup].padding =
            Attributes(graph.operators[r.lookup].attributes).integer("padding", kNoPadding);
        break;
      case RequirementRole::optimizer_state:
        weight.states.push_back(i);
        break;
      default:
        weight.value = i;
    }
  }
  for (const Requirement& r : update.requirements) {
    if (r.role == RequirementRole::updated) weights[r.operand].shards = r.rects;
  }
  std::vector<UpdatedWeight> result;
  for (auto& [operand, weight] : weights) result.push_back(std::move(weight));
  return result;
}

// Where the requirement in that role is among a launch's, or -1.
std::ptrdiff_t place_of(const Launch& planned, RequirementRole role) {
  const auto& all = planned.requirements;
  const auto found =
      std::find_if(all.begin(), all.end(), [role](const auto& r) { return r.role == role; });
  return found == all.end() ? -1 : found - all.begin();
}

// A view as a stack of one partial value.
TensorView in_one_slot(const TensorView& view) {
  TensorView stack = view;
  stack.tile = view.tile.in_slots(0, 1);
  std::copy_n(view.stride.begin(), view.rank(), stack.stride.begin() + 1);
  std::copy_n(view.shape.begin(), view.rank(), stack.shape.begin() + 1);
  stack.stride[0] = stack.shape[0] = 1;
  return stack;
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
  const Rect& shard = weight.shards[static_cast<std::size_t>(context.point)];
  gradient.rows = {shard.lo[0], shard.hi[0], kAnyRow};
  for (const auto& [op, lookup] : weight.lookups) {
    if (views[lookup.tokens].tile.empty()) continue;
    const int slot = kLookedUpSlot + static_cast<int>(lookup.rows);
    gradient.lookups.push_back(
        {views[lookup.tokens], summed(views[lookup.rows], slot, *context.device), lookup.padding});
  }
  return gradient;
}

}  // namespace

void UpdateKernels::provide(const std::string& optimizer, const Attributes& hyperparameters,
                            const std::vector<int>& devices) {
  fill(devices,
       [&](DeviceKind kind) { return make_update_kernel(optimizer, hyperparameters, kind); });
}

Body update_body(const Graph& graph, const Launch& planned, const UpdateKernels& kernels,
                 double clip_norm) {
  return [weights = updated_weights(graph, planned, planned),
          norm = place_of(planned, RequirementRole::clipped_by), kernels,
          clip_norm](LeafContext& context) {
    const auto& views = context.views;
    for (const UpdatedWeight& weight : weights) {
      const TensorView& value = views[weight.value];
      if (!value.present()) continue;
      WeightUpdate update{kernels.on(context.kind), value, {}, gradient_in(context, weight),
                          context.arguments->run,   {},    0,  {}};
      for (std::size_t i : weight.states) update.states.push_back(views[i]);
      if (value.narrow()) {  // then its master is the last of the states (plan/graph.h)
        update.rounded = value;
        update.value = update.states.back();
        update.states.pop_back();
      }
      if (norm >= 0) {
        update.norm = views[static_cast<std::size_t>(norm)];
        update.clip_norm = clip_norm;
      }
      context.device->update(update);
    }
  };
}

Recordable recordable_update(const UpdateKernels& kernels, const std::vector<int>& devices) {
  return kernels.repeat_on(devices) ? Recordable::at_one_rate : Recordable::never;
}

Body norm_body(const Graph& graph, const Launch& planned, const Launch& update) {
  return [weights = updated_weights(graph, planned, update),
          norm = place_of(planned, RequirementRole::norm)](LeafContext& context) {
    std::vector<WeightGradient> found;
    for (const UpdatedWeight& weight : weights) found.push_back(gradient_in(context, weight));
    context.device->find_norm(found, context.views[static_cast<std::size_t>(norm)].f32());
  };
}

Body clip_body(const Launch& planned) {
  return [norms = place_of(planned, RequirementRole::all_norms),
          total = place_of(planned, RequirementRole::total_norm)](LeafContext& context) {
    WeightGradient all;
    all.stack = in_one_slot(context.views[static_cast<std::size_t>(norms)]);
    context.device->find_norm({all}, context.views[static_cast<std::size_t>(total)].f32());
  };
}

}  // namespace flexlegion
