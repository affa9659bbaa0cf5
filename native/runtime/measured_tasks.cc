// Measurements of tasks of a plan, and of sums.
//
// A task's time depends on more than its kernel: on strides, on which of its data lies in caches,
// and on what the other devices of its memory do meanwhile. So the measured task is made as a
// program would make it:
// - its tiles lie in instances of the whole tensor's strides (surrounded);
// - what an earlier task would have computed just before stays in the caches, what is older is
//   evicted (is_fresh);
// - the neighbours run the same task, over data of their own, but share what the whole launch
//   reads, as weights (read_by_all);
// - what it reads holds numbers of sensible magnitudes.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "runtime/leaf_task.h"
#include "runtime/machine.h"
#include "runtime/measurement.h"
#include "runtime/pass_bodies.h"
#include "support/error.h"

namespace flexlegion {

using namespace Legion;

namespace {

// The launch as if it had that task alone.
Launch only(const Launch& launch, std::size_t part) {
  Launch one = launch;
  one.devices = {launch.devices.at(part)};
  one.first_task = static_cast<int>(part);
  for (Requirement& r : one.requirements) {
    r.rects = {r.rects.at(part)};
    if (!r.adds.empty()) r.adds = {r.adds.at(part)};
  }
  return one;
}

// Host array -> staging tensor -> input tensor, as Program::add_load. Both halves are measured in
// one step and their times added (Measurement::times).
Times measure_load(const Graph& graph, const Launch& launch, const Repeats& repeats) {
  const Requirement& into = *launch.in_role(RequirementRole::loaded);
  const Tensor& tensor = graph.tensors[into.tensor];
  const Rect box = Rect::of_shape(tensor.shape);
  const std::vector<float> host(static_cast<std::size_t>(box.volume()));
  // Rows in no order, as an epoch's permutation gives them.
  std::vector<std::int64_t> rows(static_cast<std::size_t>(tensor.shape.front()));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), std::minstd_rand(1));
  const Rect& rect = into.rects.front();
  const int device = launch.devices.front();
  Measurement measurement(device, repeats.sweep_bytes);
  const int staging = measurement.add_region(tensor.shape, tensor.type);
  const int input = measurement.add_region(tensor.shape, tensor.type);
  measurement.add_measured(
      kStageTask, device, {whole(staging, LEGION_WRITE_DISCARD, rect)},
      [&host](LeafContext& context) {
        stage_rows(context.views[0], {reinterpret_cast<const char*>(host.data())}, context.rows,
                   context.arguments->rows);
      },
      {}, {}, Side::pinned);
  measurement.add_measured(
      kFeedTask, device,
      {whole(input, LEGION_WRITE_DISCARD, rect), whole(staging, LEGION_READ_ONLY, rect)},
      feed_body);
  return measurement.run(RunState{}, repeats, &rows);
}

// The whole tensor, or whole slots of its partial values. In training, tiles that share a memory
// lie in one instance, so their strides are the whole tensor's.
LaunchRequirement surrounded(LaunchRequirement tile, const Tensor& tensor, bool stacked) {
  Rect& rect = tile.rects.front();
  const int first = stacked ? 1 : 0;
  for (int d = first; d < rect.rank; ++d) {
    rect.lo[d] = 0;
    rect.hi[d] = tensor.shape[static_cast<std::size_t>(d - first)];
  }
  return tile;
}

// Whether what a task reads was computed just now. Its weights, what was saved, and the memory that
// it writes to come from long before.
bool is_fresh(RequirementRole role) {
  switch (role) {
    case RequirementRole::input:
    case RequirementRole::partial:
    case RequirementRole::output_gradient:
    case RequirementRole::weight_gradient:
    case RequirementRole::looked_up_gradient:
      return true;
    default:
      return false;
  }
}

using Regions = std::map<std::pair<TensorId, Field>, int>;  // of tensors; states lie beside values

// Operands that every task of a launch reads as a whole, as those do that are split by samples
// their weights. Its neighbours have them from the same memory, so that caches hold them once.
std::vector<bool> read_by_all(const Graph& graph, const Launch& launch) {
  std::vector<bool> shared;
  for (const Requirement& r : launch.requirements) {
    const bool value =
        r.field == Field::value && r.privilege == Privilege::read && !r.tensor.none();
    shared.push_back(value && launch.devices.size() > 1 &&
                     r.rects.front() == Rect::of_shape(graph.tensors[r.tensor].shape));
  }
  return shared;
}

// The launch of one task as a step on a device, over regions of its own, filled with numbers, but
// for those that it `shares`, which the first that asks fills.
void add_plan_task(Measurement& measurement, int device, const fl_plan& plan, const Launch& launch,
                   const std::string& optimizer, const Hyperparameters& hyperparameters,
                   std::int32_t bound, const std::vector<bool>& shares, Regions& shared) {
  const Graph& graph = plan.graph;
  Regions own;
  std::vector<LaunchRequirement> requirements, around;
  std::vector<bool> cold;
  for (std::size_t i = 0; i < launch.requirements.size(); ++i) {
    const Requirement& r = launch.requirements[i];
    // The norm's passes read a number for each task of all updates, which are not here.
    if (r.tensor.none())
      throw std::invalid_argument("passes over the iteration's fields are not measured");
    const Tensor& tensor = graph.tensors[r.tensor];
    const bool gradient = r.field == Field::gradient;
    const bool stacked = gradient || r.field == Field::partial;
    const Field of = stacked ? r.field : Field::value;
    // A tensor's value and states are fields of one region; its stacks are regions of their own.
    const auto [region, fresh] = (shares[i] ? shared : own).try_emplace({r.tensor, of}, 0);
    if (fresh) {
      std::vector<std::int64_t> shape = tensor.shape;
      const int slots =
          gradient ? plan.plan.gradients[r.tensor].slots : plan.plan.values[r.tensor].slots;
      if (stacked) shape.insert(shape.begin(), slots);
      const int states = stacked ? 0 : plan.plan.optimizer.states_of(tensor);
      region->second = measurement.add_region(shape, type_of(graph, {r.tensor, of}), states);
    }
    LaunchRequirement mine = whole(region->second, legion_privilege(r.privilege), r.rects.front());
    if (r.field == Field::state) mine.field += 1 + static_cast<FieldID>(r.index);
    const bool filled = shares[i] && !fresh;
    if (!r.rects.front().empty() && !filled) {
      const LaunchRequirement all = surrounded(mine, tensor, stacked);
      const bool known = std::any_of(around.begin(), around.end(), [&](const auto& other) {
        return other.region == all.region && other.field == all.field && other.rects == all.rects;
      });
      if (!known) {
        measurement.add_fill(device, all, zero_body);
        around.push_back(all);
      }
    }
    requirements.push_back(mine);
    cold.push_back(!is_fresh(r.role));
    if (r.privilege == Privilege::write || filled) continue;
    Values values;
    values.bound = bound;
    // An optimizer's state may be a mean of squares.
    values.positive = r.role == RequirementRole::optimizer_state;
    if (!gradient && tensor.kind == TensorKind::weight && tensor.shape.size() > 1) {
      // As weights are at first: sums of products are of their factors' size, and gates stay open.
      const auto inputs = Rect::of_shape(tensor.shape).volume() / tensor.shape.front();
      values.largest = 1.0f / std::sqrt(static_cast<float>(std::max<std::int64_t>(1, inputs)));
    }
    measurement.add_fill(device, mine,
                         [values](LeafContext& context) { fill_body(context, values); });
  }
  Launch here = launch;
  here.devices = {device};
  OperatorKernels kernels;
  LaunchBody its = body_of({graph, plan.plan, here, optimizer, hyperparameters, 0, kernels});
  measurement.add_measured(task_name(graph, launch, optimizer), device, std::move(requirements),
                           std::move(its.body), cold, shares, Side::device, its.recordable);
}

TaskTimes with_alone(Measurement& measurement, const RunState& state, const Repeats& repeats) {
  Times together = measurement.run(state, repeats);
  return {std::move(together), measurement.run_alone(state)};
}

}  // namespace

TaskTimes measure_task(const fl_plan& plan, const std::string& optimizer,
                       const Hyperparameters& hyperparameters, LaunchId id, int part,
                       std::int32_t bound, Precision precision, const Repeats& repeats) {
  const Launch& all = plan.plan.launches.at(id.index());
  const Launch launch = only(all, static_cast<std::size_t>(part));
  if (row_of(launch.pass).ahead) return {measure_load(plan.graph, launch, repeats), {}};
  RunState state;
  state.step = 1;
  // A full batch in training: no padding.
  state.valid_samples = state.batch_samples = plan.graph.tensors.front().shape.front();
  state.label_share = 1.0 / static_cast<double>(state.valid_samples);
  state.learning_rate = 1e-3;
  state.training = 1;
  const auto run_on = [&](const std::vector<int>& devices) {
    Measurement measurement(launch.devices.front(), repeats.sweep_bytes, precision);
    const std::vector<bool> shares = read_by_all(plan.graph, all);
    Regions shared;
    for (int device : devices) {
      add_plan_task(measurement, device, plan, launch, optimizer, hyperparameters, bound, shares,
                    shared);
    }
    return with_alone(measurement, state, repeats);
  };
  try {
    return run_on(neighbours(launch.devices.front()));
  } catch (const UserMistake&) {  // too little memory for all: then for one
    return run_on({launch.devices.front()});
  }
}

TaskTimes measure_sum(int device, std::int64_t slots, std::int64_t elements,
                      const Repeats& repeats) {
  Measurement measurement(device, repeats.sweep_bytes);
  for (int each : neighbours(device)) {
    const int region = measurement.add_region({slots, elements});
    const LaunchRequirement stack =
        whole(region, LEGION_READ_ONLY, Rect::of_shape({slots, elements}));
    measurement.add_fill(each, stack, [](LeafContext& context) { fill_body(context, Values()); });
    measurement.add_measured(row_of(Pass::sum).name, each, {stack}, sum_body);
  }
  return with_alone(measurement, RunState{}, repeats);
}

}  // namespace flexlegion
