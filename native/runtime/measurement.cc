// Running steps again and again and collecting their times (measurement.h).
//
// A step is a sweep, which brings the caches to the state that they would have in an iteration, and
// the task. Steps are issued as Legion launches like a program's, so the task runs under the
// runtime's own load.
//
// How often: the first run shows how long one takes. A long one is repeated only a few times;
// otherwise warm-ups follow, and then as many runs as the budget of time holds. All ranks have to
// make the same number of launches, so the time that decides is told to all of them (times()).
#include "runtime/measurement.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "ops/team.h"
#include "runtime/leaf_task.h"
#include "runtime/machine.h"

namespace flexlegion {

using namespace Legion;

namespace {

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
  const std::int64_t bytes = elements * element_bytes(view.type);
  (unordered ? flush_unordered : flush)(static_cast<const char*>(view.data), bytes);
  _mm_mfence();
#endif
}

// A run that takes longer (ns) varies little from one to the next, and needs no more than these few
// after its first, or measuring a large network would take longer than training it.
constexpr std::int64_t kLongRun = 200'000'000;
constexpr int kRunsOfLong = 3;

}  // namespace

// Written, not only read: then the lines that go out have to be written back, as in an iteration.
void sweep(std::int64_t bytes) {
  thread_local std::vector<std::int64_t> memory;
  memory.resize(static_cast<std::size_t>(bytes) / sizeof(std::int64_t));
  for (std::int64_t& word : memory) ++word;
}

// The devices that share a device's memory, itself first.
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

// A requirement of one task: a rectangle of a region's only field.
LaunchRequirement whole(int region, PrivilegeMode privilege, const Rect& rect) {
  LaunchRequirement r;
  r.region = region;
  r.field = kValueField;
  r.privilege = privilege;
  r.rects = {rect};
  return r;
}

// A launch of one task, on one device.
int Measurement::add_task(const std::string& task, int device,
                          std::vector<LaunchRequirement> requirements, Body body, Side side) {
  RuntimeLaunch launch;
  launch.task = MachineState::get().task_id(task);
  launch.devices = {device};
  launch.side = side;
  launch.requirements = std::move(requirements);
  launch.body = std::move(body);
  return add_launch(std::move(launch));
}

// Numbers are drawn on the host, once: what is measured reads them, and never writes them.
void Measurement::add_fill(int device, LaunchRequirement requirement, Body body) {
  requirement.privilege = LEGION_WRITE_DISCARD;
  fills_.push_back(
      add_task(kFillTask, device, {std::move(requirement)}, std::move(body), Side::host));
}

// A launch to be timed on one device. Its neighbours run the same beside it, each after a sweep of
// its own.
void Measurement::add_measured(const std::string& task, int device,
                               std::vector<LaunchRequirement> requirements, Body body,
                               const std::vector<bool>& cold, const std::vector<bool>& shared,
                               Side side, Recordable recordable) {
  add_sweep(device, requirements, cold, shared);
  const int launch = add_task(task, device, std::move(requirements), std::move(body), side);
  add_step(launch);
  if (device != device_) return;
  RuntimeLaunch& measured = launches_[static_cast<std::size_t>(launch)];
  measured.log = &add_log();
  measured.recordable = recordable;
  own_.launches.push_back(launch);
}

Times& Measurement::add_log() {
  logs_.emplace_back();
  return logs_.back();
}

// Warm-up, then as many runs as fit the time that is allowed, or a few if one run takes long.
Times Measurement::run(const RunState& state, const Repeats& repeats,
                       const std::vector<std::int64_t>* rows) {
  report_ = add_task(kBytesTask, device_, {}, [this](LeafContext& context) {
    const auto* first = reinterpret_cast<const char*>(totals_.data());
    context.bytes.data.assign(first, first + totals_.size() * sizeof(std::int64_t));
  });
  seal("a task to be measured");
  for (int fill : fills_) issue(fill, state);
  // The first run shows how long one takes, on all ranks alike.
  repeat(all_, 1, state, rows);
  const std::int64_t first = std::max<std::int64_t>(1, times().back());
  if (first > kLongRun) {
    counted_ = std::min(kRunsOfLong, repeats.least);
  } else {
    if (repeats.warmups > 1) repeat(all_, repeats.warmups - 1, state, rows);
    const std::int64_t once = std::max<std::int64_t>(1, times().back());
    // As many runs as the time for them allows, within bounds.
    const std::int64_t fitting = repeats.budget_ns / once;
    counted_ = static_cast<int>(std::clamp<std::int64_t>(fitting, repeats.least, repeats.most));
  }
  repeat(all_, counted_, state, rows);
  return times();
}

// The same task without its neighbours: the difference is their contention.
Times Measurement::run_alone(const RunState& state) {
  if (own_.launches.size() == all_.launches.size()) return {};
  repeat(own_, (counted_ + 1) / 2, state, nullptr);
  return times();
}

// Has caches before a task be what they are in an iteration. This claims to write what the task
// uses, or else Legion would run all sweeps first; it leaves that as it is. What is shared it
// claims to read alone, or else Legion would run one device after the other.
void Measurement::add_sweep(int device, const std::vector<LaunchRequirement>& requirements,
                            const std::vector<bool>& cold, const std::vector<bool>& shared) {
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
    const bool alone = i >= shared.size() || !shared[i];
    if (r.privilege == LEGION_READ_ONLY && alone) touched.back().privilege = LEGION_READ_WRITE;
    evicted.push_back(i < cold.size() && cold[i]);
  }
  if (touched.empty()) return;
  const int launch = add_task(kTouchTask, device, std::move(touched),
                              [bytes = sweep_bytes_, evicted](LeafContext& context) {
                                if (context.kind != DeviceKind::cpu) return;
                                const int threads = team_size();
                                share_out(threads, [bytes](int) { sweep(bytes); });
                                for (std::size_t i = 0; i < evicted.size(); ++i) {
                                  if (evicted[i]) evict(context.views[i]);
                                }
                                // In an iteration, tasks follow each other so closely that a
                                // team's threads are awake.
                                if (threads > 1) share_out(threads, [](int) {});
                              });
  add_step(launch);
  if (device == device_) own_.launches.push_back(launch);
}

// Issues all steps so often, as iterations are issued: in a trace, where programs have one.
void Measurement::repeat(Steps& steps, int count, const RunState& state,
                         const std::vector<std::int64_t>* rows) {
  wait_quietly();
  for (Times& log : logs_) log.clear();
  Runtime* runtime = Runtime::get_runtime();
  Context ctx = Runtime::get_context();
  if (traced_ && !steps.trace) steps.trace = MachineState::get().next_trace_id();
  for (int i = 0; i < count; ++i) {
    if (steps.trace) runtime->begin_trace(ctx, *steps.trace);
    for (int launch : steps.launches) issue(launch, state, rows == nullptr ? -1 : 0, rows);
    if (steps.trace) runtime->end_trace(ctx, *steps.trace);
  }
  wait_quietly();
}

// What the device's rank logged, made known to all ranks. So is a failure: ranks that went on
// without the one that failed would wait for it forever.
Times Measurement::times() {
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

}  // namespace flexlegion
