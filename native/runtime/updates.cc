// The bodies of updates, of the launches that find by how much to clip gradients, and of those that
// gather and spread weights, and sum their gradients inside nodes or shard by shard.
//
// An update's task has a shard of one operator's weights. For each weight it finds value, optimizer
// states and gradient among its views; the device's update() does the rest, block by block
// (ops/weight_update.cc). A table's gradient is not a tensor: the task has the tokens and the
// gradients of what was looked up.
//
// Clipping by the norm of all gradients takes three passes: `norm`, whose tasks have the update's
// shards, each give one number; `clip` finds the norm of these numbers, which is that of all
// gradients, since squares add up; updates then read it. Float16 training takes the same way to
// learn whether a gradient has overflowed.

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "ops/partial_values.h"
#include "runtime/pass_bodies.h"

namespace flexlegion {

namespace {

// Scratch slots of this file; kernels use the lower ones.
constexpr int kLookedUpSlot = 3100;  // + requirement
constexpr int kReducedSlot = 4100;

// What an update or norm launch has for one weight: positions among its requirements.
struct UpdatedWeight {
  TensorId tensor;
  std::size_t value = 0;
  std::ptrdiff_t gradient = -1;  // of a table: none
  bool reduced = false;          // whether the gradient is no stack, but the sum of one
  std::vector<std::size_t> states;
  struct Lookup {
    std::ptrdiff_t tokens = -1;
    std::size_t rows = 0;
    std::int64_t padding = kNoPadding;
    bool of_batch = false;  // whether tokens come with the samples, and are no constants
  };
  std::map<std::pair<OpId, int>, Lookup> lookups;  // by the operator that looked rows up, by round
  std::vector<Rect> shards;                        // of a table: each task's
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
        weight.reduced = r.field == Field::reduced;
        break;
      case RequirementRole::looked_up_tokens:
        weight.lookups[{r.lookup, r.buffer}].tokens = static_cast<std::ptrdiff_t>(i);
        weight.lookups[{r.lookup, r.buffer}].of_batch =
            graph.tensors[r.tensor].kind != TensorKind::weight;
        break;
      case RequirementRole::looked_up_gradient:
        weight.lookups[{r.lookup, r.buffer}].rows = i;
        weight.lookups[{r.lookup, r.buffer}].padding =
            Attributes(graph.operators[r.lookup].attributes).integer("padding", kNoPadding);
        break;
      case RequirementRole::optimizer_state:
        weight.states.push_back(i);
        break;
      default:
        weight.tensor = r.tensor;
        weight.value = i;
    }
  }
  // A norm task has no table rows among its own requirements, only their gradients: which rows are
  // its shard is the update's to say.
  for (const Requirement& r : update.requirements) {
    if (r.role == RequirementRole::updated) weights[r.operand].shards = r.rects;
  }
  std::vector<UpdatedWeight> result;
  for (auto& [operand, weight] : weights) {
    // Of constant tokens, all rounds have the first one's.
    for (auto& [of, lookup] : weight.lookups) {
      if (lookup.tokens < 0) lookup.tokens = weight.lookups.at({of.first, 0}).tokens;
    }
    result.push_back(std::move(weight));
  }
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

// Of what a micro-batch looked up, the part that samples did. Those that fill up a batch look up
// row 0, by zeros; what they are given has no gradient, but a lazy optimizer would take the row for
// one that was looked up.
Lookup without_padding(Lookup lookup, const RunState& run, int round) {
  const std::int64_t samples = lookup.tokens.shape[0];
  for (TensorView* const view : {&lookup.tokens, &lookup.gradient}) {
    const std::int64_t lo = view->tile.lo[0], hi = view->tile.hi[0];
    *view = narrowed(*view, 0, lo, std::clamp(run.batch_samples - samples * round, lo, hi));
  }
  return lookup;
}

// Positions among views -> the views, partial gradients of looked-up rows being summed.
WeightGradient gradient_in(const LeafContext& context, const UpdatedWeight& weight) {
  const auto& views = context.views;
  WeightGradient gradient;
  if (weight.gradient >= 0) {
    const TensorView& view = views[static_cast<std::size_t>(weight.gradient)];
    gradient.stack = weight.reduced && view.present() ? in_one_slot(view) : view;
    return gradient;
  }
  gradient.of_table = true;
  const Rect& shard = weight.shards[static_cast<std::size_t>(context.point)];
  gradient.rows = {shard.lo[0], shard.hi[0], kAnyRow};
  for (const auto& [of, lookup] : weight.lookups) {
    // A look-up of a task that has no samples.
    const TensorView& tokens = views[static_cast<std::size_t>(lookup.tokens)];
    if (tokens.tile.empty()) continue;
    const int slot = kLookedUpSlot + static_cast<int>(lookup.rows);
    Lookup its{tokens, summed(views[lookup.rows], slot, *context.device), lookup.padding};
    if (lookup.of_batch) its = without_padding(std::move(its), context.arguments->run, of.second);
    if (!its.tokens.tile.empty()) gradient.lookups.push_back(std::move(its));
  }
  return gradient;
}

// An optimizer's, for the weights of a group.
class UpdateKernels : public KernelsOfKinds<UpdateKernel> {
 public:
  UpdateKernels(const PlannedWork& work, const Hyperparameters::Group& group) : rate_(group.rate) {
    fill(work.launch.devices, [&](DeviceKind kind) {
      return make_update_kernel(work.optimizer, group.attributes, kind);
    });
  }
  // An iteration as these weights see it.
  RunState in_group(RunState run) const {
    run.learning_rate *= rate_;
    return run;
  }

 private:
  double rate_;
};

// If the norm of all gradients is above `clip_norm`, they are scaled down to it; 0: whatever it is.
LaunchBody update_body(const PlannedWork& work) {
  std::vector<UpdatedWeight> updated = updated_weights(work.graph, work.launch, work.launch);
  std::vector<UpdateKernels> each;
  for (const UpdatedWeight& weight : updated) {
    each.emplace_back(work, work.hyperparameters.of(weight.tensor));
  }
  const double ema = work.hyperparameters.ema;
  // The first iteration's average is another work than that of those which repeat it.
  const bool repeats = ema == 0 && std::all_of(each.begin(), each.end(), [&](const auto& kernels) {
                         return kernels.repeat_on(work.launch.devices);
                       });
  const auto update = [weights = std::move(updated), kernels = std::move(each), ema,
                       norm = place_of(work.launch, RequirementRole::clipped_by),
                       clip_norm = work.clip_norm](LeafContext& context) {
    const auto& views = context.views;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      const UpdatedWeight& weight = weights[w];
      const TensorView& value = views[weight.value];
      if (!value.present()) continue;
      const RunState run = kernels[w].in_group(context.arguments->run);
      WeightUpdate change{
          kernels[w].on(context.kind), value, {}, gradient_in(context, weight), run, {}, 0, {}};
      for (std::size_t i : weight.states) change.states.push_back(views[i]);
      if (value.narrow()) {  // then its master is the last of the states (plan/graph.h)
        change.rounded = value;
        change.value = change.states.back();
        change.states.pop_back();
      }
      if (ema != 0) {
        change.average = change.states.back();
        change.ema = ema;
        change.states.pop_back();
      }
      if (norm >= 0) {
        change.norm = views[static_cast<std::size_t>(norm)];
        change.clip_norm = clip_norm;
      }
      context.device->update(change);
    }
  };
  return {update, repeats ? Recordable::at_one_rate : Recordable::never};
}

const Launch& update_of(const Plan& plan, OpId op) {
  return *std::find_if(plan.launches.begin(), plan.launches.end(), [op](const Launch& launch) {
    return launch.pass == Pass::update && launch.op == op;
  });
}

// Finds the norm of the gradients that the task of equal number of the update is about to use.
LaunchBody norm_body(const PlannedWork& work) {
  const Launch& update = update_of(work.plan, work.launch.op);
  return {[weights = updated_weights(work.graph, work.launch, update),
           norm = place_of(work.launch, RequirementRole::norm)](LeafContext& context) {
    std::vector<WeightGradient> found;
    for (const UpdatedWeight& weight : weights) found.push_back(gradient_in(context, weight));
    context.device->find_norm(found, context.views[static_cast<std::size_t>(norm)].f32());
  }};
}

// Finds the norm of all norms.
LaunchBody clip_body(const PlannedWork& work) {
  return {[norms = place_of(work.launch, RequirementRole::all_norms),
           total = place_of(work.launch, RequirementRole::total_norm)](LeafContext& context) {
    WeightGradient all;
    all.stack = in_one_slot(context.views[static_cast<std::size_t>(norms)]);
    context.device->find_norm({all}, context.views[static_cast<std::size_t>(total)].f32());
  }};
}

// Of each weight, what a shard is taken from, and what it is written to: requirements.
struct ShardMove {
  std::size_t from = 0, to = 0;
};
std::map<TensorId, ShardMove> shard_moves(const Launch& planned, RequirementRole to) {
  std::map<TensorId, ShardMove> moves;
  for (std::size_t i = 0; i < planned.requirements.size(); ++i) {
    const Requirement& r = planned.requirements[i];
    (r.role == to ? moves[r.tensor].to : moves[r.tensor].from) = i;
  }
  return moves;
}

// Sums a node's partial gradients of a shard. A node that has contributed nothing to it has zeros.
LaunchBody node_sum_body(const PlannedWork& work) {
  return {[moves = shard_moves(work.launch, RequirementRole::node_sum)](LeafContext& context) {
    const DeviceFunctions& device = *context.device;
    for (const auto& [weight, move] : moves) {
      const TensorView& sum = context.views[move.to];
      if (!sum.present()) continue;
      const TensorView to = slot_of(sum, sum.tile.lo[0]);
      const TensorView& partial = context.views[move.from];
      if (partial.present()) {
        combine(partial, device.add, to, device);
      } else {
        device.zero(to);
      }
    }
  }};
}

// Copies shards to where readers of the weights get them from.
LaunchBody gather_body(const PlannedWork& work) {
  return {[moves = shard_moves(work.launch, RequirementRole::gathered)](LeafContext& context) {
    for (const auto& [weight, move] : moves) {
      const TensorView& copy = context.views[move.to];
      if (copy.present()) context.device->copy(copy, context.views[move.from]);
    }
  }};
}

// Sums partial gradients, or nodes' sums, of shards. Behind the first micro-batch, they are added
// to the sums so far.
LaunchBody reduce_body(const PlannedWork& work) {
  const auto moves = shard_moves(work.launch, RequirementRole::reduced);
  const bool adds = std::any_of(
      work.launch.requirements.begin(), work.launch.requirements.end(), [](const Requirement& r) {
        return r.role == RequirementRole::reduced && r.privilege == Privilege::read_write;
      });
  return {[moves, adds](LeafContext& context) {
    const DeviceFunctions& device = *context.device;
    for (const auto& [weight, move] : moves) {
      const TensorView& sum = context.views[move.to];
      if (!sum.present()) continue;
      const TensorView& partial = context.views[move.from];
      if (adds) {
        device.add(sum, combined(partial, device.add, kReducedSlot, device));
      } else {
        combine(partial, device.add, sum, device);
      }
    }
  }};
}

// Legion brings a task of this pass what it is to spread; there is nothing else to do.
LaunchBody spread_body(const PlannedWork&) {
  return {[](LeafContext&) {}};
}

const RegisterPassBody kGather(Pass::gather, KernelsOf::none, gather_body);
const RegisterPassBody kGatherSpread(Pass::gather_spread, KernelsOf::none, spread_body);
const RegisterPassBody kAgainGather(Pass::again_gather, KernelsOf::none, gather_body);
const RegisterPassBody kAgainSpread(Pass::again_spread, KernelsOf::none, spread_body);
const RegisterPassBody kNodeReduce(Pass::node_reduce, KernelsOf::none, node_sum_body);
const RegisterPassBody kReduce(Pass::reduce, KernelsOf::none, reduce_body);
const RegisterPassBody kNodeSum(Pass::node_sum, KernelsOf::none, node_sum_body);
const RegisterPassBody kSpread(Pass::spread, KernelsOf::none, spread_body);
const RegisterPassBody kUpdate(Pass::update, KernelsOf::optimizers, update_body);
const RegisterPassBody kNorm(Pass::norm, KernelsOf::none, norm_body);
const RegisterPassBody kClip(Pass::clip, KernelsOf::none, clip_body);

}  // namespace

}  // namespace flexlegion
