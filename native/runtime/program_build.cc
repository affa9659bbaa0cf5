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
// 4. A schedule for each kind of run: train, evaluate, predict (program_schedule.cc).
// 5. seal() (executor.h): instances, partitions, launchers.
//
// The plan says what is touched; nothing is decided here but how Legion is told.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "plan/fusion.h"
#include "plan/shards.h"
#include "runtime/leaf_task.h"
#include "runtime/machine.h"
#include "runtime/pass_bodies.h"
#include "runtime/program.h"

namespace flexlegion {

using namespace Legion;

namespace {

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

// Each tensor's value has a region, each stack of the plan has one, and so has each further buffer
// that rounds take in turn. Tenants of a register have the region of the first one (Plan::home_of).
void Program::create_regions() {
  std::set<Place> recomputed;  // what the backward pass computes again
  for (const Launch& launch : plan_.launches) {
    for (const Requirement& r : launch.requirements) {
      if (r.field != Field::state && r.index == kRecomputed) recomputed.insert(r);
    }
  }
  for (TensorId t : graph_.tensors.ids()) {
    const Tensor& tensor = graph_.tensors[t];
    const bool weight = tensor.kind == TensorKind::weight;
    const Content content = weight                             ? Content::weights
                            : tensor.kind == TensorKind::input ? Content::batches
                                                               : Content::activations;
    const auto add = [&](Field field, const std::vector<std::int64_t>& shape, Content of,
                         DataType type, int states) {
      for (int index : {0, kRecomputed}) {
        if (index != 0 && recomputed.count({t, field, index}) == 0) continue;
        for (int buffer = 0; buffer < plan_.buffers({t, field}); ++buffer) {
          const Place home = plan_.home_of({t, field, index, buffer});
          const auto [found, fresh] = regions_of_places_.try_emplace(home, -1);
          if (!fresh) continue;
          const LocalRegister* const local = plan_.local_register(home);
          found->second = local == nullptr ? regions_.add(shape, of, type, states)
                                           : regions_.add({local->first.back()}, of, type);
        }
      }
    };
    // The slot is a first dimension. A task's slot is a rectangle like any other.
    const auto add_stack = [&](Field field, int slots, Content of, DataType type) {
      std::vector<std::int64_t> stacked = {slots};
      stacked.insert(stacked.end(), tensor.shape.begin(), tensor.shape.end());
      add(field, stacked, of, type, 0);
    };
    add(Field::value, tensor.shape, content, tensor.type, states_of(t));
    if (plan_.sharding[t] == Sharding::weights) {
      add(Field::copy, tensor.shape, content, tensor.type, 0);
    }
    if (plan_.sharding[t] != Sharding::states) {
      add(Field::reduced, tensor.shape, Content::gradients, tensor.gradient_type(), 0);
    }
    const int nodes = plan_.nodes[t].count(), gradients = plan_.gradients[t].slots;
    const int values = plan_.values[t].slots;
    if (nodes > 0) {
      add_stack(Field::node_sums, nodes, Content::gradients, tensor.gradient_type());
    }
    if (values > 1) add_stack(Field::partial, values, Content::activations, tensor.type);
    if (gradients == 0) continue;
    add_stack(Field::gradient, gradients, weight ? Content::gradients : Content::activations,
              tensor.gradient_type());
  }
  for (int f = 0; f < kFields; ++f) {
    const int elements = plan_.elements[static_cast<std::size_t>(f)];
    if (elements > 0) {
      regions_of_places_[{{}, static_cast<Field>(f)}] = regions_.add({elements});
    }
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
  Place home = plan_.home_of(place);
  FieldID field = kValueField;
  if (place.field == Field::state) {
    home = {place.tensor};
    field += 1 + static_cast<FieldID>(place.index);
  }
  const auto found = regions_of_places_.find(home);
  return {found == regions_of_places_.end() ? -1 : found->second, field};
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

// The plan's requirement in Legion's terms. Rectangles stay, but in a register for tensors of any
// shape: there a tile is a range of its device's part of the row, and is kept apart in `tiles`.
LaunchRequirement Program::runtime_requirement(const Requirement& planned,
                                               const std::vector<int>& devices, int round) const {
  const Place place = plan_.in_round(planned, round);
  const auto [region, field] = region_of(place);
  LaunchRequirement r;
  r.place = plan_.home_of(place);
  r.region = region;
  r.field = field;
  r.privilege = legion_privilege(planned.privilege);
  r.rects = planned.rects;
  const LocalRegister* const local = plan_.local_register(r.place);
  if (local == nullptr) return r;
  r.tiles = r.rects;
  const std::vector<std::int64_t>& shape = graph_.tensors[place.tensor].shape;
  const bool stack = r.tiles.front().rank > static_cast<int>(shape.size());
  if (stack) r.shape[0] = slots_of(plan_, place);
  std::copy(shape.begin(), shape.end(), r.shape.begin() + (stack ? 1 : 0));
  for (std::size_t k = 0; k < r.rects.size(); ++k) {
    r.rects[k] =
        r.tiles[k].empty() ? Rect::of_shape({0}) : local->part(devices[k], r.tiles[k].volume());
  }
  return r;
}

// A load becomes two launches; every other launch of the plan becomes one, in each round.
void Program::add_planned(LaunchId id) {
  const Launch& planned = plan_.launches[id];
  const PassRow& row = row_of(planned.pass);
  planned_.emplace_back();
  if (row.ahead) {
    for (int round = 0; round < plan_.micro_batches; ++round) add_load(planned, round);
    return;
  }
  const int rounds = row.closing ? 1 : plan_.micro_batches;
  for (int round = 0; round < rounds; ++round) {
    planned_.back().push_back(add_round(id, round));
  }
}

// Rounds with the same buffers share a launch. Behind the first round, contributions to a weight's
// gradient add to those of earlier rounds; if each round reduces them, what they sum to adds.
int Program::add_round(LaunchId id, int round) {
  const auto adds = [&](const Requirement& r) {
    const bool contributes = r.role == RequirementRole::contribution &&
                             graph_.tensors[r.tensor].kind == TensorKind::weight &&
                             plan_.sharding[r.tensor] == Sharding::states;
    return round > 0 && (contributes || r.role == RequirementRole::reduced);
  };
  std::vector<int> variant;
  for (const Requirement& r : plan_.launches[id].requirements) {
    variant.push_back(2 * plan_.in_round(r, round).buffer + (adds(r) ? 1 : 0));
  }
  const auto [known, fresh] = variants_.try_emplace({id, variant}, 0);
  if (!fresh) return known->second;
  Launch planned = plan_.launches[id];
  for (Requirement& r : planned.requirements) {
    if (!adds(r)) continue;
    r.privilege = Privilege::read_write;
    if (r.role == RequirementRole::contribution) r.adds.assign(r.rects.size(), true);
  }
  RuntimeLaunch launch;
  launch.task = MachineState::get().task_id(task_name(graph_, planned, optimizer_));
  launch.devices = planned.devices;
  launch.visit = planned.visit;
  for (const Requirement& r : planned.requirements) {
    launch.requirements.push_back(runtime_requirement(r, planned.devices, round));
  }
  LaunchBody its = body_of(
      {graph_, plan_, planned, optimizer_, hyperparameters_, clip_norm_, kernels_[planned.op]});
  launch.body = std::move(its.body);
  launch.recordable = its.recordable;
  const auto answering = static_cast<int>(launches_.size());
  if (answers(graph_, plan_.optimizer, planned)) add_answer(planned, launch);
  known->second = add_launch(std::move(launch));
  // The launch that reads the answer was made first; it is found by the one that it answers for.
  if (known->second != answering) answers_[known->second] = answering;
  return known->second;
}

// What a launch has to tell the host: losses, or whether gradients have overflown.
void Program::add_answer(const Launch& planned, RuntimeLaunch& launch) {
  launch.answers = true;
  const int loss = planned.op.none() ? -1 : loss_number(graph_, planned.op);
  if (loss >= 0) {
    add_loss_answer(loss, launch);
  } else {
    add_overflow_answer(planned, launch);
  }
}

// The tasks of a loss tell the log what they found. A GPU's returns before that is known: it leaves
// it in a region, and a task of the host, which needs that region, tells it.
void Program::add_loss_answer(int number, RuntimeLaunch& loss) {
  const auto tasks = static_cast<std::int64_t>(loss.devices.size());
  const auto tell = [this, number, tasks](const LeafContext& context) {
    const auto task = context.arguments->round * static_cast<std::int32_t>(tasks) + context.point;
    log_.answer(context.arguments->ticket, {number, task, context.metrics});
  };
  if (!on_gpus(loss)) {
    loss.body = [tell, compute = std::move(loss.body)](LeafContext& context) {
      compute(context);
      tell(context);
    };
    return;
  }
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
  answer_on_host(loss.devices, r, [tell](LeafContext& context) {
    std::memcpy(&context.metrics, context.views[0].data, sizeof(Metrics));
    tell(context);
  });
  loss.requirements.push_back(std::move(r));
}

// The task that finds the norm of all gradients tells the log whether it is finite, as a part of
// the first loss's answers.
void Program::add_overflow_answer(const Launch& planned, RuntimeLaunch& clip) {
  const auto tell = [this](const LeafContext& context, const TensorView& norm) {
    Metrics metrics;
    metrics.overflows = std::isfinite(*norm.f32()) ? 0 : 1;
    constexpr int kNoTask = -1;  // of a loss
    log_.answer(context.arguments->ticket, {0, kNoTask, metrics});
  };
  const auto& requirements = planned.requirements;
  const auto total =
      std::find_if(requirements.begin(), requirements.end(),
                   [](const Requirement& r) { return r.role == RequirementRole::total_norm; });
  const auto place = static_cast<std::size_t>(total - requirements.begin());
  if (on_gpus(clip)) {
    answer_on_host(clip.devices, clip.requirements[place],
                   [tell](LeafContext& context) { tell(context, context.views[0]); });
    return;
  }
  clip.body = [tell, place, compute = std::move(clip.body)](LeafContext& context) {
    compute(context);
    tell(context, context.views[place]);
  };
}

void Program::answer_on_host(const std::vector<int>& devices, LaunchRequirement requirement,
                             Body body) {
  RuntimeLaunch answer;
  answer.task = MachineState::get().task_id(kAnswerTask);
  answer.devices = devices;
  answer.side = Side::host;
  answer.answers = true;
  requirement.privilege = LEGION_READ_ONLY;
  answer.requirements = {std::move(requirement)};
  answer.body = std::move(body);
  add_launch(std::move(answer));
}

// How many of a launch's tasks run on this rank: its log hears these alone, and waits for them.
int Program::tasks_here(const RuntimeLaunch& launch) const {
  const MachineState& machine = MachineState::get();
  return static_cast<int>(
      std::count_if(launch.devices.begin(), launch.devices.end(), [&](int device) {
        return machine.devices()[static_cast<std::size_t>(device)].rank == machine.rank();
      }));
}

// A batch takes two steps: host array -> staging tensor, while the iteration before still computes;
// staging tensor -> input tensor, as the first thing of its own iteration, or round. So an
// iteration is always the same trace. Each round has a staging tensor of its own.
void Program::add_load(const Launch& planned, int round) {
  const Requirement& into = *planned.in_role(RequirementRole::loaded);
  const Tensor& tensor = graph_.tensors[into.tensor];
  InputTensor input;
  input.tensor = into.tensor;
  input.round = round;
  input.runs = round < rounds_of(kPredicts) ? planned.runs : planned.runs & ~kPredicts;
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
  feed.requirements = {runtime_requirement(into, planned.devices, round), staging};
  feed.body = [this](LeafContext& context) {
    feed_body(context);
    if (context.arguments->ticket > 0) log_.done(context.arguments->ticket);
  };
  input.feed = add_launch(std::move(feed));
  planned_.back().push_back(input.feed);
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
      if ((r.field != Field::state && !sums) || r.buffer > 0) continue;
      std::vector<Rect> rects = r.rects;
      if (sums) {
        for (Rect& rect : rects) rect = zeroed_by(plan_, r, rect);
      }
      for (int buffer = 0; buffer < plan_.buffers(r); ++buffer) {
        const auto [region, field] = region_of({r.tensor, r.field, r.index, buffer});
        add(region, field, planned.devices, rects);
      }
    }
  }
  // The gradient of an input has no reader but the host.
  for (TensorId t : graph_.tensors.ids()) {
    const GradientStack& stack = plan_.gradients[t];
    if (stack.slots == 0 || stack.fully_written || read[t]) continue;
    const Rect whole = Rect::of_shape(graph_.tensors[t].shape).in_slots(0, stack.slots);
    for (int buffer = 0; buffer < plan_.buffers({t, Field::gradient}); ++buffer) {
      const int region = region_of({t, Field::gradient, 0, buffer}).first;
      add(region, kValueField, {first_user(t)}, {whole});
    }
  }
}

}  // namespace flexlegion
