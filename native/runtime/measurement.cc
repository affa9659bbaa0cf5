#include "runtime/measurement.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "flexlegion_rt.h"
#include "runtime/leaf_task.h"
#include "runtime/machine.h"
#include "runtime/updates.h"
#include "support/error.h"

namespace flexlegion {

using namespace Legion;

namespace {

// Brings that much of the calling thread's own memory into its core's caches, in place of others'.
void sweep(std::int64_t bytes) {
  thread_local std::vector<std::int64_t> memory;
  memory.resize(static_cast<std::size_t>(bytes) / sizeof(std::int64_t));
  for (std::int64_t& word : memory) ++word;
}

#ifdef __x86_64__
constexpr std::int64_t kLine = 64;

void flush(const char* first, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += kLine) _mm_clflush(first + at);
}

// The same in no order: a hundredth of the time, where the processor has it.
__attribute__((target("clflushopt"))) void flush_unordered(const char* first, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += kLine) _mm_clflushopt(const_cast<char*>(first + at));
}
#endif

// Takes a tile out of all caches.
void evict(const TensorView& view) {
#ifdef __x86_64__
  static const bool unordered = __builtin_cpu_supports("clflushopt") != 0;
  std::int64_t elements = 1;  // from the first to the last
  for (int d = 0; d < view.rank(); ++d) elements += (view.extent(d) - 1) * view.stride[d];
  const auto bytes = elements * static_cast<std::int64_t>(sizeof(float));
  (unordered ? flush_unordered : flush)(static_cast<const char*>(view.data), bytes);
  _mm_mfence();
#endif
}

// A run that takes longer (ns) varies little from one to the next, and needs no more than these few
// after its first, or measuring a large network would take longer than training it.
constexpr std::int64_t kLongRun = 200'000'000;
constexpr int kRunsOfLong = 3;

// The device, and after it those that share its memory: in training they compute at the same time.
std::vector<int> neighbours(int device) {
  const auto& devices = MachineState::get().devices();
  std::vector<int> all{device};
  for (int other = 0; other < static_cast<int>(devices.size()); ++other) {
    if (other != device && devices[static_cast<std::size_t>(other)].memory ==
                               devices[static_cast<std::size_t>(device)].memory) {
      all.push_back(other);
    }
  }
  return all;
}

class Measurement : public Executor {
 public:
  // Runs tasks on `device`; before each that is measured, memory is swept.
  Measurement(int device, std::int64_t sweep_bytes, Precision precision = Precision::fp32)
      : Executor(precision), device_(device), sweep_bytes_(sweep_bytes) {}
  ~Measurement() override { wait_quietly(); }

  int add_region(const std::vector<std::int64_t>& shape, int fields) {
    return regions_.add(shape, fields);
  }

  // A launch of one task.
  int add_task(const std::string& task, int device, std::vector<LaunchRequirement> requirements,
               Body body, Side side = Side::device) {
    RuntimeLaunch launch;
    launch.task = MachineState::get().task_id(task);
    launch.devices = {device};
    launch.side = side;
    launch.requirements = std::move(requirements);
    launch.body = std::move(body);
    return add_launch(std::move(launch));
  }

  // Fills what a task reads there, before anything is measured.
  void add_fill(int device, LaunchRequirement requirement, Body body) {
    requirement.privilege = LEGION_WRITE_DISCARD;
    fills_.push_back(
        add_task(kFillTask, device, {std::move(requirement)}, std::move(body), Side::host));
  }

  // A task to measure: a step that logs its times, if it runs on our device; elsewhere it keeps
  // that processor busy. The operands that are `cold` were not used for long.
  void add_measured(const std::string& task, int device,
                    std::vector<LaunchRequirement> requirements, Body body,
                    const std::vector<bool>& cold = {}, Side side = Side::device) {
    add_sweep(device, requirements, cold);
    const int launch = add_task(task, device, std::move(requirements), std::move(body), side);
    if (device == device_) launches_[static_cast<std::size_t>(launch)].log = &add_log();
    add_step(launch);
  }

  Times& add_log() {
    logs_.emplace_back();
    return logs_.back();
  }
  void add_step(int launch) { steps_.push_back(launch); }
  // Records the steps as a trace, so that Legion's analysis does not hold them up.
  void trace() { traced_ = true; }

  // Runs all steps again and again. Returns what is logged; the logs are added up.
  Times run(const RunState& state, const Repeats& repeats,
            const std::vector<std::int64_t>* rows = nullptr) {
    report_ = add_task(kBytesTask, device_, {}, [this](LeafContext& context) {
      const auto* first = reinterpret_cast<const char*>(totals_.data());
      context.bytes.data.assign(first, first + totals_.size() * sizeof(std::int64_t));
    });
    seal("a task to be measured");
    for (int fill : fills_) issue(fill, state);
    // The first run shows how long one takes, on all ranks alike.
    repeat(1, state, rows);
    const std::int64_t first = std::max<std::int64_t>(1, times().back());
    if (first > kLongRun) {
      repeat(std::min(kRunsOfLong, repeats.most), state, rows);
      return times();
    }
    if (repeats.warmups > 1) repeat(repeats.warmups - 1, state, rows);
    const std::int64_t once = std::max<std::int64_t>(1, times().back());
    const std::int64_t fitting = repeats.budget_ns / once;
    repeat(static_cast<int>(std::clamp<std::int64_t>(fitting, repeats.least, repeats.most)), state,
           rows);
    return times();
  }

 private:
  // Has caches before a task be what they are in an iteration. This claims to write what the task
  // uses, or else Legion would run all sweeps first; it leaves that as it is.
  void add_sweep(int device, const std::vector<LaunchRequirement>& requirements,
                 const std::vector<bool>& cold) {
    if (sweep_bytes_ == 0) return;
    std::vector<LaunchRequirement> touched;
    std::vector<bool> evicted;
    for (std::size_t i = 0; i < requirements.size(); ++i) {
      const LaunchRequirement& r = requirements[i];
      const auto same = [&r](const LaunchRequirement& other) {
        return other.region == r.region && other.field == r.field;
      };
      if (r.rects.front().empty() || std::any_of(touched.begin(), touched.end(), same)) continue;
      touched.push_back(r);
      if (r.privilege == LEGION_READ_ONLY) touched.back().privilege = LEGION_READ_WRITE;
      evicted.push_back(i < cold.size() && cold[i]);
    }
    if (touched.empty()) return;
    add_step(add_task(kTouchTask, device, std::move(touched),
                      [bytes = sweep_bytes_, evicted](LeafContext& context) {
                        if (context.kind != DeviceKind::cpu) return;
                        sweep(bytes);
                        for (std::size_t i = 0; i < evicted.size(); ++i) {
                          if (evicted[i]) evict(context.views[i]);
                        }
                      }));
  }

  void repeat(int count, const RunState& state, const std::vector<std::int64_t>* rows) {
    wait_quietly();
    for (Times& log : logs_) log.clear();
    Runtime* runtime = Runtime::get_runtime();
    Context ctx = Runtime::get_context();
    if (traced_ && !trace_) trace_ = MachineState::get().next_trace_id();
    for (int i = 0; i < count; ++i) {
      if (trace_) runtime->begin_trace(ctx, *trace_);
      for (int launch : steps_) issue(launch, state, rows == nullptr ? -1 : 0, rows);
      if (trace_) runtime->end_trace(ctx, *trace_);
    }
    wait_quietly();
  }

  // What the device's rank logged, made known to all ranks. So is a failure: ranks that went on
  // without the one that failed would wait for it forever.
  Times times() {
    totals_.clear();
    if (!failed()) {
      totals_.assign(logs_.front().size(), 0);
      for (const Times& log : logs_) {
        for (std::size_t i = 0; i < totals_.size(); ++i) totals_[i] += log.at(i);
      }
    }
    const Bytes bytes =
        issue(report_, RunState{}).get_result<Bytes>(DomainPoint(0), /*silence_warnings=*/true);
    Times result(bytes.data.size() / sizeof(std::int64_t));
    std::memcpy(result.data(), bytes.data.data(), bytes.data.size());
    raise_failure();
    if (result.empty()) throw std::runtime_error("a measured task failed on another rank");
    return result;
  }

  const int device_;
  const std::int64_t sweep_bytes_;
  std::deque<Times> logs_;  // a deque: launches keep pointers into it
  std::vector<int> fills_, steps_;
  bool traced_ = false;
  std::optional<TraceID> trace_;
  Times totals_;
  int report_ = 0;
};

// The launch as if it had that task alone.
Launch only(const Launch& launch, std::size_t part) {
  Launch one = launch;
  one.devices = {launch.devices.at(part)};
  for (Requirement& r : one.requirements) {
    r.rects = {r.rects.at(part)};
    if (!r.adds.empty()) r.adds = {r.adds.at(part)};
  }
  return one;
}

LaunchRequirement whole(int region, PrivilegeMode privilege, const Rect& rect) {
  LaunchRequirement r;
  r.region = region;
  r.field = kValueField;
  r.privilege = privilege;
  r.rects = {rect};
  return r;
}

// Host array -> staging tensor -> input tensor, as Program::add_load.
Times measure_load(const Graph& graph, const Launch& launch, const Repeats& repeats) {
  const Requirement& into = launch.requirements.front();
  const Tensor& tensor = graph.tensors[static_cast<std::size_t>(into.tensor)];
  const Rect box = Rect::of_shape(tensor.shape);
  const std::vector<float> host(static_cast<std::size_t>(box.volume()));
  // Rows in no order, as an epoch's permutation gives them.
  std::vector<std::int64_t> rows(static_cast<std::size_t>(tensor.shape.front()));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), std::minstd_rand(1));
  const Rect& rect = into.rects.front();
  const int device = launch.devices.front();
  Measurement measurement(device, repeats.sweep_bytes);
  const int staging = measurement.add_region(tensor.shape, 1);
  const int input = measurement.add_region(tensor.shape, 1);
  measurement.add_measured(
      kStageTask, device, {whole(staging, LEGION_WRITE_DISCARD, rect)},
      [&host](LeafContext& context) {
        stage_rows(context.views[0], {reinterpret_cast<const char*>(host.data())}, context.rows,
                   context.arguments->rows);
      },
      {}, Side::pinned);
  measurement.add_measured(
      kFeedTask, device,
      {whole(input, LEGION_WRITE_DISCARD, rect), whole(staging, LEGION_READ_ONLY, rect)},
      feed_body);
  return measurement.run(RunState{}, repeats, &rows);
}

}  // namespace

namespace {

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

// The launch of one task as a step on a device, over regions of its own, filled with numbers.
void add_plan_task(Measurement& measurement, int device, const fl_plan& plan, const Launch& launch,
                   const std::string& optimizer, const Attributes& hyperparameters,
                   std::int32_t bound) {
  const Graph& graph = plan.graph;
  std::map<std::pair<int, Field>, int> regions;  // of tensors; states lie beside values
  std::vector<LaunchRequirement> requirements, around;
  std::vector<bool> cold;
  for (const Requirement& r : launch.requirements) {
    if (r.tensor < 0) throw std::invalid_argument("clipping is not measured");
    const Tensor& tensor = graph.tensors[static_cast<std::size_t>(r.tensor)];
    const bool gradient = r.field == Field::gradient;
    const bool stacked = gradient || r.field == Field::partial;
    const Field of = stacked ? r.field : Field::value;
    const auto [region, fresh] = regions.try_emplace({r.tensor, of}, 0);
    if (fresh) {
      std::vector<std::int64_t> shape = tensor.shape;
      const auto t = static_cast<std::size_t>(r.tensor);
      const int slots = gradient ? plan.plan.gradients[t].slots : plan.plan.values[t].slots;
      if (stacked) shape.insert(shape.begin(), slots);
      region->second = measurement.add_region(shape, stacked ? 1 : 1 + plan.plan.optimizer.states);
    }
    LaunchRequirement mine = whole(region->second, legion_privilege(r.privilege), r.rects.front());
    if (r.field == Field::state) mine.field += 1 + static_cast<FieldID>(r.state);
    if (!r.rects.front().empty()) {
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
    if (r.privilege == Privilege::write) continue;
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
                         [type = gradient ? DataType::float32 : tensor.type,
                          values](LeafContext& context) { fill_body(context, type, values); });
  }
  Body body;
  if (launch.pass == Pass::sum) {
    body = combine_body(plan.plan, launch);
  } else if (launch.pass == Pass::update) {
    UpdateKernels kernels;
    kernels.provide(optimizer, hyperparameters, {device});
    body = update_body(launch, kernels);
  } else {
    const Operator& op = graph.operators[static_cast<std::size_t>(launch.op)];
    OperatorKernels kernels;
    kernels.provide(op, {device});
    body = kernel_body(graph, plan.plan, launch, kernels);
  }
  measurement.add_measured(task_name(graph, launch, optimizer), device, std::move(requirements),
                           std::move(body), cold);
}

}  // namespace

Times measure_task(const fl_plan& plan, const std::string& optimizer,
                   const Attributes& hyperparameters, int index, int part, std::int32_t bound,
                   Precision precision, const Repeats& repeats) {
  const Launch launch =
      only(plan.plan.launches.at(static_cast<std::size_t>(index)), static_cast<std::size_t>(part));
  if (launch.pass == Pass::load) return measure_load(plan.graph, launch, repeats);
  RunState state;
  state.step = 1;
  state.valid_samples = plan.graph.tensors.front().shape.front();
  state.label_share = 1.0 / static_cast<double>(state.valid_samples);
  state.learning_rate = 1e-3;
  state.training = 1;
  const auto run_on = [&](const std::vector<int>& devices) {
    Measurement measurement(launch.devices.front(), repeats.sweep_bytes, precision);
    for (int device : devices) {
      add_plan_task(measurement, device, plan, launch, optimizer, hyperparameters, bound);
    }
    return measurement.run(state, repeats);
  };
  try {
    return run_on(neighbours(launch.devices.front()));
  } catch (const UserMistake&) {  // too little memory for all: then for one
    return run_on({launch.devices.front()});
  }
}

Times measure_sum(int device, std::int64_t slots, std::int64_t elements, const Repeats& repeats) {
  Measurement measurement(device, repeats.sweep_bytes);
  for (int each : neighbours(device)) {
    const int region = measurement.add_region({slots, elements}, 1);
    const LaunchRequirement stack =
        whole(region, LEGION_READ_ONLY, Rect::of_shape({slots, elements}));
    measurement.add_fill(
        each, stack, [](LeafContext& context) { fill_body(context, DataType::float32, Values()); });
    measurement.add_measured(kSumTask, each, {stack}, sum_body);
  }
  return measurement.run(RunState{}, repeats);
}

Times measure_launch(int device, const Repeats& repeats) {
  constexpr int kRegions = 4;
  const Rect rect = Rect::of_shape({1});
  Measurement measurement(device, 0);
  Times& log = measurement.add_log();
  std::vector<int> tasks;
  for (int each : neighbours(device)) {
    std::vector<LaunchRequirement> used;
    for (int i = 0; i < kRegions; ++i) {
      used.push_back(whole(measurement.add_region({1}, 1), LEGION_READ_WRITE, rect));
      measurement.add_fill(each, used.back(), zero_body);
    }
    Times* const mine = each == device ? &log : nullptr;
    tasks.push_back(measurement.add_task(
        kTouchTask, each, used,
        [mine, bytes = repeats.sweep_bytes, end = std::int64_t{0}](LeafContext& context) mutable {
          if (mine != nullptr && end != 0) mine->push_back(now_ns() - end);
          if (context.kind == DeviceKind::cpu) sweep(bytes);
          end = now_ns();
        }));
  }
  for (int i = 0; i < FL_LAUNCHES_A_RUN; ++i) {
    for (int task : tasks) measurement.add_step(task);
  }
  measurement.trace();
  return measurement.run(RunState{}, repeats);
}

namespace {

constexpr int kTripsATrace = 8;

Repeats trips_of(int trips) {
  Repeats repeats;
  repeats.least = repeats.most = std::max(1, trips / kTripsATrace);
  return repeats;
}

}  // namespace

Times measure_round_trips(const std::vector<std::pair<int, int>>& ways, std::int64_t bytes,
                          int trips) {
  const std::int64_t elements = std::max<std::int64_t>(1, bytes / 4);
  const Rect rect = Rect::of_shape({elements});
  Measurement measurement(ways.front().first, 0);
  Times& log = measurement.add_log();
  std::vector<int> outward, homeward;
  for (const auto& [from, to] : ways) {
    const int region = measurement.add_region({elements}, 1);
    measurement.add_fill(from, whole(region, LEGION_WRITE_DISCARD, rect), zero_body);
    const LaunchRequirement both = whole(region, LEGION_READ_WRITE, rect);
    outward.push_back(measurement.add_task(kTouchTask, to, {both}, [](LeafContext&) {}));
    // A trip is timed where it begins and ends, as clocks of two nodes do not agree.
    Times* const mine = homeward.empty() ? &log : nullptr;
    homeward.push_back(measurement.add_task(kTouchTask, from, {both},
                                            [mine, last = std::int64_t{0}](LeafContext&) mutable {
                                              const std::int64_t now = now_ns();
                                              if (mine != nullptr && last != 0)
                                                mine->push_back(now - last);
                                              last = now;
                                            }));
  }
  for (int i = 0; i < kTripsATrace; ++i) {
    for (int launch : outward) measurement.add_step(launch);
    for (int launch : homeward) measurement.add_step(launch);
  }
  measurement.trace();
  return measurement.run(RunState{}, trips_of(trips));
}

Times measure_clocks(int here, int there, int trips) {
  const Rect rect = Rect::of_shape({2});  // a time, in elements of four bytes
  Measurement measurement(here, 0);
  const int region = measurement.add_region({2}, 1);
  measurement.add_fill(here, whole(region, LEGION_WRITE_DISCARD, rect), zero_body);
  const LaunchRequirement both = whole(region, LEGION_READ_WRITE, rect);
  const int answer = measurement.add_task(kTouchTask, there, {both}, [](LeafContext& context) {
    const std::int64_t now = now_ns();
    std::memcpy(context.views[0].data, &now, sizeof now);
  });
  Times& log = measurement.add_log();
  const int ask = measurement.add_task(
      kTouchTask, here, {both}, [&log, last = std::int64_t{0}](LeafContext& context) mutable {
        const std::int64_t now = now_ns();
        if (last != 0) {
          std::int64_t its = 0;
          std::memcpy(&its, context.views[0].data, sizeof its);
          log.insert(log.end(), {last, its, now});
        }
        last = now;
      });
  for (int i = 0; i < kTripsATrace; ++i) {
    measurement.add_step(answer);
    measurement.add_step(ask);
  }
  measurement.trace();
  return measurement.run(RunState{}, trips_of(trips));
}

}  // namespace flexlegion
