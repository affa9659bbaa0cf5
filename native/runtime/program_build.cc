// How a program is made from a plan: regions, launches and what they need, once. program.cc then
// only issues.
//
// Steps, in the order of build():
// 1. Regions: for each tensor its value (a weight's optimizer states are more fields of it), and
//    stacks of partial values and gradients where the plan has slots for them.
// 2. Launches: each of the plan's becomes one of the runtime's, with the same rectangles as
//    requirements, and a body from its pass. A load becomes two: stage, on the host, and feed.
// 3. Launches of the runtime's own: zeroing what is summed into and not fully written, storing and
//    saving weights.
// 4. A schedule for each kind of run: train, evaluate, predict. Neighbouring launches are fused
//    where the plan's rule allows it, and those that tell the host something are counted.
// 5. seal() (executor.h): instances, partitions, launchers.
//
// The plan says what is touched; nothing is decided here but how Legion is told.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "plan/fusion.h"
#include "plan/shards.h"
#include "runtime/fusion.h"
#include "runtime/leaf_task.h"
#include "runtime/machine.h"
#include "runtime/pass_bodies.h"
#include "runtime/program.h"

namespace flexlegion {

using namespace Legion;

namespace {

// A number for each device's memory.
std::vector<int> memories() {
  std::map<Memory, int> numbers;
  std::vector<int> memory_of;
  for (const Device& device : MachineState::get().devices()) {
    const auto number = static_cast<int>(numbers.size());
    memory_of.push_back(numbers.try_emplace(device.memory, number).first->second);
  }
  return memory_of;
}

bool on_gpus(const RuntimeLaunch& launch) {
  const auto& devices = MachineState::get().devices();
  return std::any_of(launch.devices.begin(), launch.devices.end(), [&](int device) {
    return devices[static_cast<std::size_t>(device)].kind == DeviceKind::gpu;
  });
}

}  // namespace

void Program::build() {
  for (const Operator& op : graph_.operators) losses_ += op.is_loss ? 1 : 0;
  create_regions();
  for (LaunchId id : plan_.launches.ids()) add_planned(id);
  add_zeroing();
  for (TensorId t : graph_.tensors.ids()) {
    if (graph_.tensors[t].kind != TensorKind::weight) continue;
    std::vector<Place> places = {{t}};
    for (int s = 0; s < states_of(t); ++s) places.push_back({t, Field::state, s});
    for (const Place& place : places) {
      add_store(place);
      add_save(place);
    }
  }
  // Last, since a fused launch is made of launches that are there.
  for (unsigned runs : {kTrains, kEvaluates, kPredicts}) add_schedule(runs);
  seal("the plan");
}

// Consecutive launches become one where nothing is lost by it (fusion.h).
void Program::add_schedule(unsigned runs) {
  Schedule& schedule = schedules_[runs];
  schedule.trace = MachineState::get().next_trace_id();
  const IdVector<LaunchId, int> numbers =
      run_numbers(graph_, plan_, runs, memories(), graph_.fused_launches);
  std::vector<std::vector<int>> order;  // runs
  int last = -1;
  for (LaunchId id : planned_.ids()) {
    if (numbers[id] < 0) continue;
    // Launches of one run have one number, and follow each other.
    if (numbers[id] != last) order.emplace_back();
    last = numbers[id];
    order.back().push_back(planned_[id]);
    const auto answer = answers_.find(id);
    // A task on the host that tells what a GPU found; it follows its launch, and fuses with
    // nothing.
    if (answer != answers_.end()) order.push_back({answer->second});
    const RuntimeLaunch& teller = launches_[static_cast<std::size_t>(order.back().back())];
    if (!teller.answers) continue;
    schedule.answers = true;
    schedule.telling += tasks_here(teller);
  }
  for (const InputTensor& input : inputs_) {
    if (!(input.runs & runs)) continue;
    schedule.telling += tasks_here(launches_[static_cast<std::size_t>(input.feed)]);
  }
  for (const std::vector<int>& run : order) {
    int launch = run.front();
    if (run.size() > 1) {
      // Kinds of runs may have the same run of launches in common, and share its fused launch.
      const auto [known, fresh] = fused_.try_emplace(run, 0);
      if (fresh) known->second = add_launch(fused(launches_, run));
      launch = known->second;
    }
    schedule.launches.push_back(launch);
  }
}

void Program::create_regions() {
  for (TensorId t : graph_.tensors.ids()) {
    const Tensor& tensor = graph_.tensors[t];
    const bool weight = tensor.kind == TensorKind::weight;
    const Content content = weight                             ? Content::weights
                            : tensor.kind == TensorKind::input ? Content::batches
                                                               : Content::activations;
    // Tensors that take turns in a register share the region of the first of them.
    const auto add = [&](Field field, const std::vector<std::int64_t>& shape, Content of,
                         DataType type, int states) {
      const Place place{t, field};
      const Place home = plan_.home_of(place);
      const auto [found, fresh] = region_of_home_.try_emplace(home, -1);
      if (fresh) found->second = regions_.add(shape, of, type, states);
      return found->second;
    };
    value_region_.push_back(add(Field::value, tensor.shape, content, tensor.type, states_of(t)));
    // The slot is a first dimension. A task's slot is a rectangle like any other.
    const auto add_stack = [&](Field field, int slots, Content of, DataType type) {
      std::vector<std::int64_t> stacked = {slots};
      stacked.insert(stacked.end(), tensor.shape.begin(), tensor.shape.end());
      return add(field, stacked, of, type, 0);
    };
    const int nodes = plan_.nodes[t].count();
    node_sums_region_.push_back(nodes == 0 ? -1
                                           : add_stack(Field::node_sums, nodes, Content::gradients,
                                                       tensor.gradient_type()));
    const int values = plan_.values[t].slots, gradients = plan_.gradients[t].slots;
    partial_region_.push_back(
        values > 1 ? add_stack(Field::partial, values, Content::activations, tensor.type) : -1);
    gradient_region_.push_back(gradients == 0
                                   ? -1
                                   : add_stack(Field::gradient, gradients,
                                               weight ? Content::gradients : Content::activations,
                                               tensor.gradient_type()));
  }
  for (int elements : plan_.elements) {
    iteration_region_.push_back(elements == 0 ? -1 : regions_.add({elements}));
  }
}

// Weights that are not trained have no states.
int Program::states_of(TensorId tensor) const {
  const Tensor& what = graph_.tensors[tensor];
  const bool trained = what.kind == TensorKind::weight && what.needs_gradient;
  return trained ? plan_.optimizer.states_of(what) : 0;
}

// Which region and field a place of the plan is. A weight's states are fields of its value's
// region: they have its index space and its partitions.
std::pair<int, FieldID> Program::region_of(const Place& place) const {
  const TensorId t = place.tensor;
  switch (place.field) {
    case Field::value:
      return {value_region_[t], kValueField};
    case Field::partial:
      return {partial_region_[t], kValueField};
    case Field::gradient:
      return {gradient_region_[t], kValueField};
    case Field::node_sums:
      return {node_sums_region_[t], kValueField};
    case Field::state:
      return {value_region_[t], kValueField + 1 + static_cast<FieldID>(place.index)};
    default:
      return {iteration_region_[static_cast<std::size_t>(place.field)], kValueField};
  }
}

int Program::node_of(Memory memory) const {
  const auto& devices = MachineState::get().devices();
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const Device& its = devices[d];
    if (memory != its.memory && memory != its.host_memory && memory != its.pinned) continue;
    return graph_.node(static_cast<int>(d));
  }
  return Executor::node_of(memory);
}

// The plan's requirement in Legion's terms. Rectangles stay as they are.
LaunchRequirement Program::runtime_requirement(const Requirement& planned) const {
  const auto [region, field] = region_of(planned);
  LaunchRequirement r;
  r.place = plan_.home_of(planned);
  r.region = region;
  r.field = field;
  r.privilege = legion_privilege(planned.privilege);
  r.rects = planned.rects;
  return r;
}

// A load becomes two launches; every other launch of the plan becomes one.
void Program::add_planned(LaunchId id) {
  const Launch& planned = plan_.launches[id];
  if (row_of(planned.pass).ahead) {
    add_load(planned);
    return;
  }
  RuntimeLaunch launch;
  launch.task = MachineState::get().task_id(task_name(graph_, planned, optimizer_));
  launch.devices = planned.devices;
  for (const Requirement& r : planned.requirements) {
    launch.requirements.push_back(runtime_requirement(r));
  }
  LaunchBody its = body_of(
      {graph_, plan_, planned, optimizer_, hyperparameters_, clip_norm_, kernels_[planned.op]});
  launch.body = std::move(its.body);
  launch.recordable = its.recordable;
  if (answers(graph_, plan_.optimizer, planned)) add_answer(id, launch);
  planned_.push_back(add_launch(std::move(launch)));
}

// What a launch has to tell the host: losses, or whether gradients have overflown.
void Program::add_answer(LaunchId planned, RuntimeLaunch& launch) {
  launch.answers = true;
  const OpId op = plan_.launches[planned].op;
  const int loss = op.none() ? -1 : loss_number(graph_, op);
  if (loss >= 0) {
    add_loss_answer(planned, loss, launch);
  } else {
    add_overflow_answer(planned, launch);
  }
}

// The tasks of a loss tell the log what they found. A GPU's returns before that is known: it leaves
// it in a region, and a task of the host, which needs that region, tells it.
void Program::add_loss_answer(LaunchId planned, int number, RuntimeLaunch& loss) {
  const auto tell = [this, number](const LeafContext& context) {
    log_.answer(context.arguments->ticket, {number, context.point, context.metrics});
  };
  if (!on_gpus(loss)) {
    loss.body = [tell, compute = std::move(loss.body)](LeafContext& context) {
      compute(context);
      tell(context);
    };
    return;
  }
  const auto tasks = static_cast<std::int64_t>(loss.devices.size());
  constexpr auto kElements = static_cast<std::int64_t>(sizeof(Metrics) / sizeof(float));
  LaunchRequirement r;
  r.region = regions_.add({tasks, kElements});
  r.field = kValueField;
  r.privilege = LEGION_WRITE_DISCARD;
  for (std::int64_t k = 0; k < tasks; ++k) {
    Rect row = Rect::of_shape({tasks, kElements});
    row.lo[0] = k;
    row.hi[0] = k + 1;
    r.rects.push_back(row);
  }
  answer_on_host(planned, loss.devices, r, [tell](LeafContext& context) {
    std::memcpy(&context.metrics, context.views[0].data, sizeof(Metrics));
    tell(context);
  });
  loss.requirements.push_back(std::move(r));
}

// The task that finds the norm of all gradients tells the log whether it is finite, as a part of
// the first loss's answers.
void Program::add_overflow_answer(LaunchId planned, RuntimeLaunch& clip) {
  const auto tell = [this](const LeafContext& context, const TensorView& norm) {
    Metrics metrics;
    metrics.overflows = std::isfinite(*norm.f32()) ? 0 : 1;
    constexpr int kNoTask = -1;  // of a loss
    log_.answer(context.arguments->ticket, {0, kNoTask, metrics});
  };
  const auto& requirements = plan_.launches[planned].requirements;
  const auto total =
      std::find_if(requirements.begin(), requirements.end(),
                   [](const Requirement& r) { return r.role == RequirementRole::total_norm; });
  const auto place = static_cast<std::size_t>(total - requirements.begin());
  if (on_gpus(clip)) {
    answer_on_host(planned, clip.devices, clip.requirements[place],
                   [tell](LeafContext& context) { tell(context, context.views[0]); });
    return;
  }
  clip.body = [tell, place, compute = std::move(clip.body)](LeafContext& context) {
    compute(context);
    tell(context, context.views[place]);
  };
}

void Program::answer_on_host(LaunchId planned, const std::vector<int>& devices,
                             LaunchRequirement requirement, Body body) {
  RuntimeLaunch answer;
  answer.task = MachineState::get().task_id(kAnswerTask);
  answer.devices = devices;
  answer.side = Side::host;
  answer.answers = true;
  requirement.privilege = LEGION_READ_ONLY;
  answer.requirements = {std::move(requirement)};
  answer.body = std::move(body);
  answers_[planned] = add_launch(std::move(answer));
}

// A rank's log hears its own tasks alone, so it waits for as many answers.
int Program::tasks_here(const RuntimeLaunch& launch) const {
  const MachineState& machine = MachineState::get();
  return static_cast<int>(
      std::count_if(launch.devices.begin(), launch.devices.end(), [&](int device) {
        return machine.devices()[static_cast<std::size_t>(device)].rank == machine.rank();
      }));
}

// A batch takes two steps: host array -> staging tensor, while the iteration before still computes;
// staging tensor -> input tensor, as the first thing of its own iteration. So an iteration is
// always the same trace.
void Program::add_load(const Launch& planned) {
  const Requirement& into = *planned.in_role(RequirementRole::loaded);
  const Tensor& tensor = graph_.tensors[into.tensor];
  InputTensor input;
  input.tensor = into.tensor;
  input.runs = planned.runs;
  LaunchRequirement staging;
  staging.region = regions_.add(tensor.shape, Content::batches, tensor.type);
  staging.field = kValueField;
  staging.privilege = LEGION_WRITE_DISCARD;
  staging.rects = into.rects;

  RuntimeLaunch stage;
  stage.task = MachineState::get().task_id(kStageTask);
  stage.devices = planned.devices;
  // A GPU reads pinned memory without a copy by the host.
  stage.side = Side::pinned;
  stage.requirements = {staging};
  stage.body = [this](LeafContext& context) {
    const TaskArguments& arguments = *context.arguments;
    if (arguments.data < 0) return;
    stage_rows(context.views[0], host_array(arguments.data), context.rows, arguments.rows);
  };
  input.stage = add_launch(std::move(stage));

  staging.privilege = LEGION_READ_ONLY;
  RuntimeLaunch feed;
  feed.task = MachineState::get().task_id(kFeedTask);
  feed.devices = planned.devices;
  feed.requirements = {runtime_requirement(into), staging};
  feed.body = [this](LeafContext& context) {
    feed_body(context);
    if (context.arguments->ticket > 0) log_.done(context.arguments->ticket);
  };
  input.feed = add_launch(std::move(feed));
  planned_.push_back(input.feed);
  inputs_.push_back(input);
}

// A weight is stored shard by shard where its update works on it, or, if nothing updates it, part
// by part where it is read first.
void Program::add_store(const Place& place) {
  const auto [region, field_id] = region_of(place);
  RuntimeLaunch store;
  store.task = MachineState::get().task_id(kStoreTask);
  store.side = Side::host;
  LaunchRequirement r;
  r.region = region;
  r.field = field_id;
  r.privilege = LEGION_WRITE_DISCARD;
  std::tie(store.devices, r.rects) = home_of(place.tensor);
  store.requirements = {std::move(r)};
  store.body = [this](LeafContext& context) {
    store_tile(context.views[0], host_array(context.arguments->data).base);
  };
  stores_[{region, field_id}] = add_launch(std::move(store));
}

// The counterpart, to the host. A task that may write maps the instance that updates write to, in
// place; one that reads only might get another one, and a copy. Where the host has no such
// instance, because a GPU has it, reading only leaves the GPU's valid.
void Program::add_save(const Place& place) {
  const auto [region, field_id] = region_of(place);
  RuntimeLaunch save;
  save.task = MachineState::get().task_id(kSaveTask);
  save.side = Side::host;
  LaunchRequirement r;
  r.region = region;
  r.field = field_id;
  std::tie(save.devices, r.rects) = home_of(place.tensor);
  const auto& devices = MachineState::get().devices();
  const bool on_gpu = std::any_of(save.devices.begin(), save.devices.end(), [&](int device) {
    return devices[static_cast<std::size_t>(device)].kind == DeviceKind::gpu;
  });
  r.privilege = on_gpu ? LEGION_READ_ONLY : LEGION_READ_WRITE;
  save.requirements = {std::move(r)};
  save.body = [this](LeafContext& context) {
    const auto found = saving_.find({context.arguments->launch, context.point});
    if (found == saving_.end()) return;
    TensorView host = context.views[0];
    host.data = found->second.to;
    host.stride = found->second.stride;
    copy_view(host, context.views[0]);
  };
  saves_[{region, field_id}] = add_launch(std::move(save));
}

std::pair<std::vector<int>, std::vector<Rect>> Program::home_of(TensorId weight) const {
  const Rect whole = Rect::of_shape(graph_.tensors[weight].shape);
  std::vector<int> devices;
  std::vector<Rect> rects;
  for (const Launch& launch : plan_.launches) {
    for (const Requirement& r : launch.requirements) {
      if (r.tensor != weight || r.field != Field::value) continue;
      if (r.role == RequirementRole::updated) return {launch.devices, r.rects};
      if (!devices.empty()) continue;
      const DistinctRects parts = distinct(r.rects);
      std::int64_t volume = 0;
      for (const Rect& rect : parts.rects) volume += rect.volume();
      // Parts that overlap, or leave something out, have no home of their own.
      const bool apart = volume == whole.volume();
      rects = apart ? parts.rects : std::vector<Rect>{whole};
      devices.assign(rects.size(), launch.devices.front());
      for (int k = launch.tasks(); apart && k-- > 0;) {
        devices[static_cast<std::size_t>(parts.of_part[static_cast<std::size_t>(k)])] =
            launch.devices[static_cast<std::size_t>(k)];
      }
    }
  }
  if (devices.empty()) return {{0}, {whole}};  // nothing uses it
  return {devices, rects};
}

int Program::first_user(TensorId tensor) const {
  for (const Launch& launch : plan_.launches) {
    for (const Requirement& r : launch.requirements) {
      if (r.tensor == tensor) return launch.devices.front();
    }
  }
  return 0;
}

// Optimizer states start as zeros, and so does a stack of partial gradients that is not fully
// written: tile by tile where its reader runs, so that no memory holds the whole for that.
void Program::add_zeroing() {
  const auto add = [this](int region, FieldID field, std::vector<int> devices,
                          std::vector<Rect> rects) {
    RuntimeLaunch zero;
    zero.task = MachineState::get().task_id(kZeroTask);
    zero.devices = std::move(devices);
    LaunchRequirement r;
    r.region = region;
    r.field = field;
    r.privilege = LEGION_WRITE_DISCARD;
    r.rects = std::move(rects);
    zero.requirements = {std::move(r)};
    zero.body = zero_body;
    zeroing_.push_back(add_launch(std::move(zero)));
  };
  IdVector<TensorId, bool> read(graph_.tensors.size(), false);
  for (const Launch& planned : plan_.launches) {
    for (const Requirement& r : planned.requirements) {
      const bool sums = starts_as_zeros(plan_, r);
      if (r.field == Field::gradient && r.privilege == Privilege::read) read[r.tensor] = true;
      if (r.field != Field::state && !sums) continue;
      const auto [region, field] = region_of(r);
      std::vector<Rect> rects = r.rects;
      if (sums) {
        for (Rect& rect : rects) rect = zeroed_by(plan_, r, rect);
      }
      add(region, field, planned.devices, std::move(rects));
    }
  }
  // The gradient of an input has no reader but the host.
  for (TensorId t : graph_.tensors.ids()) {
    const GradientStack& stack = plan_.gradients[t];
    if (stack.slots == 0 || stack.fully_written || read[t]) continue;
    const Rect whole = Rect::of_shape(graph_.tensors[t].shape).in_slots(0, stack.slots);
    add(gradient_region_[t], kValueField, {first_user(t)}, {whole});
  }
}

}  // namespace flexlegion
