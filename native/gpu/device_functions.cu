// What the runtime asks of a GPU beside kernels: to move tiles, to update weights, to tell times.
//
// Updates and norms. A weight's gradient, a stack of partial values, is summed into scratch memory,
// multiplied if gradients are clipped or scaled, and used by the optimizer: a few launches, none of
// which waits for the host. The norm stays in device memory: the kernels that need it read it
// there.
//
// Order. Legion gives each task a stream, but all tasks of a device share one scratch memory.
// begin() makes a task's stream wait for an event that the task before it recorded at its end, so
// the device runs one task after the other.
//
// Recording. Work that is the same in every iteration is captured once as a CUDA graph and launched
// as a whole: one launch in place of dozens, whose cost on the host would otherwise be what limits
// small networks. What cannot be captured (a task that waits for the device) is issued as before.
//
// Times. A moment of a stream is an event; events of a device tell only their distances. So a base
// is recorded now and then, whose time the host knows.
#include "ops/device_functions.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "gpu/table_gradient.h"
#include "gpu/view.h"
#include "ops/partial_values.h"

namespace flexlegion::gpu {
namespace {

// Scratch slots of this file, and from each on as many as a table's gradient takes; kernels use the
// lower ones.
constexpr int kSummedSlot = 3000, kScaledSlot = 3001, kSquaresSlot = 3002, kTableSlot = 3010,
              kGatheredSlot = 3020;

// The gradient as it is used, if the norm of all gradients says how.
TensorView used(const TensorView& gradient, const WeightUpdate& update) {
  if (!update.norm.present()) return gradient;
  const TensorView result =
      dense_view(scratch(kScaledSlot, gradient.volume()), gradient.tile, gradient.shape);
  const Strided from(gradient);
  float* const to = result.f32();
  const float* const norm = update.norm.f32();
  const double clip_norm = update.clip_norm, loss_scale = update.run.loss_scale;
  for_each(gradient.volume(), [=] FL_BODY(std::int64_t i) {
    to[i] = from[i] * gradient_factor(*norm, clip_norm, loss_scale);
  });
  return result;
}

// Of a stack with one slot, that slot.
TensorView summed_gradient(const TensorView& stack) {
  return summed(stack, kSummedSlot, *flexlegion::device_functions(DeviceKind::gpu));
}

// The same three ways as ops/weight_update.cc: a gradient that is a tensor; a table of which the
// looked-up rows change; a table of which all rows change, in blocks.
void change(const WeightUpdate& update) {
  const auto by = [&](const TensorView& value, const TensorView& gradient,
                      const std::vector<TensorView>& states) {
    const float* const guard = update.scaled() ? update.norm.f32() : nullptr;
    update.kernel.update(value, used(gradient, update), states, update.run, guard);
  };
  const WeightGradient& gradient = update.gradient;
  if (!gradient.of_table) {
    if (!gradient.stack.present()) return;
    by(update.value, summed_gradient(gradient.stack), update.states);
    if (update.rounded.present()) gpu::copy_view(update.rounded, update.value);
    return;
  }
  const TableRows rows = TableRows::of(update.value);
  const std::int64_t columns = update.value.extent(1);
  if (update.kernel.lazy()) {
    if (gradient.lookups.empty()) return;
    // The rows that tokens name, of the value and of each state, are gathered, updated, and written
    // back.
    const TouchedRows touched(gradient.lookups, rows, columns, kTableSlot);
    const TensorView values = touched.gathered(update.value, kGatheredSlot);
    std::vector<TensorView> states;
    for (const TensorView& state : update.states) {
      const int slot = kGatheredSlot + 1 + static_cast<int>(states.size());
      states.push_back(touched.gathered(state, slot));
    }
    by(values, touched.gradient(), states);
    touched.scatter(values, update.value);
    for (std::size_t i = 0; i < states.size(); ++i) touched.scatter(states[i], update.states[i]);
    return;
  }
  const auto rows_of = [](const TensorView& view, std::int64_t lo, std::int64_t hi) {
    return narrowed(view, 0, view.tile.lo[0] + lo, view.tile.lo[0] + hi);
  };
  for_each_dense_block(gradient.lookups, rows, columns, kTableSlot,
                       [&](std::int64_t lo, std::int64_t hi, const TensorView& block) {
                         std::vector<TensorView> states;
                         for (const TensorView& state : update.states) {
                           states.push_back(rows_of(state, lo, hi));
                         }
                         by(rows_of(update.value, lo, hi), block, states);
                       });
}

// An average goes on in each iteration and in all rows, whichever of them changed.
void update(const WeightUpdate& update) {
  change(update);
  if (!update.average.present()) return;
  const float share = update.new_share();
  for_each_element<2>({&update.average, &update.value}, [=] FL_BODY(auto e) {
    auto averages = e[0];
    const auto values = e[1];
    for (int k = 0; k < e.kWidth; ++k) averages[k] = followed(averages[k], values[k], share);
    e.set(0, averages);
  });
}

// *sum += the squares of a gradient.
void add_squares(const TensorView& gradient, double* sum) {
  const Strided g(gradient);
  const std::int64_t columns = std::max<std::int64_t>(1, gradient.extent(gradient.rank() - 1));
  for_each_team(gradient.volume() / columns, columns,
                [=] FL_BODY(const Team& team, std::int64_t r) {
                  float mine = 0;
                  for (std::int64_t c = team.rank; c < columns; c += team.size) {
                    const float value = g[r * columns + c];
                    mine += value * value;
                  }
                  const float total = team.sum(mine);
                  if (team.rank == 0) add_atomically(sum, static_cast<double>(total));
                });
}

// The norm of some gradients together. The sum of squares stays on the device, where updates read
// the norm: the host never waits for it.
void find_norm(const std::vector<WeightGradient>& gradients, float* norm) {
  double* const total = scratch_doubles(kSquaresSlot, 1);
  for_each(1, [=] FL_BODY(std::int64_t) { *total = 0; });
  for (const WeightGradient& gradient : gradients) {
    if (!gradient.of_table) {
      if (gradient.stack.present()) add_squares(summed_gradient(gradient.stack), total);
    } else if (!gradient.lookups.empty()) {
      const TensorView& rows = gradient.lookups.front().gradient;
      const TouchedRows touched(gradient.lookups, gradient.rows, rows.extent(rows.rank() - 1),
                                kTableSlot);
      add_squares(touched.gradient(), total);
    }
  }
  for_each(1, [=] FL_BODY(std::int64_t) { *norm = static_cast<float>(sqrt(*total)); });
}

#if FLEXLEGION_CUDA

std::int64_t host_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// A device's tasks share its scratch memory: each waits for the one before it, on the device.
struct Order {
  cudaEvent_t done = nullptr;
};

// A thread is one device's, so what it keeps is the device's.
Order& order() {
  thread_local Order mine;
  return mine;
}

void begin(void* stream, void* arena, std::int64_t bytes, Precision precision) {
  begin_task(static_cast<cudaStream_t>(stream), arena, bytes);
  set_precision(precision);
  if (order().done != nullptr) check(cudaStreamWaitEvent(gpu::stream(), order().done, 0));
}

// Of a task that has failed, too: so it leaves the device's own complaints to the next one.
void end() noexcept {
  Order& mine = order();
  if (mine.done == nullptr &&
      cudaEventCreateWithFlags(&mine.done, cudaEventDisableTiming) != cudaSuccess) {
    return;
  }
  cudaEventRecord(mine.done, gpu::stream());
}

// Into a stream of our own: Realm looks after its streams while their tasks run.
Recording record(void* arena, std::int64_t bytes, Precision precision, int parts,
                 const std::function<void(int)>& issue) {
  thread_local cudaStream_t own = nullptr;
  if (own == nullptr) check(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  check(cudaStreamBeginCapture(own, cudaStreamCaptureModeThreadLocal));
  bool failed = false;
  try {
    for (int i = 0; i < parts; ++i) {
      begin_task(own, arena, bytes);
      set_precision(precision);
      issue(i);
    }
  } catch (const std::exception&) {  // what really is wrong shows when it is issued
    failed = true;
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t work = nullptr;
  // The capture has to be ended even if it failed, or the stream stays in it.
  failed = cudaStreamEndCapture(own, &graph) != cudaSuccess || failed;
  failed = failed || cudaGraphInstantiate(&work, graph, 0) != cudaSuccess;
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (failed) {
    cudaGetLastError();  // it is no fault of what comes next
    return nullptr;
  }
  return {work, [](void* its) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(its)); }};
}

// One call for all launches of a task: the host's time for each of them is what a recording saves.
void replay(const Recording& recording) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording.get()), gpu::stream()));
}

// An event at which the host looked at its own clock, for others of that device to count from.
// Distances between events are single-precision milliseconds, whose last place within this age is
// half of an event's own resolution, about 500 ns.
struct Base {
  static constexpr std::int64_t kOldest = 4'000'000'000;  // ns

  cudaEvent_t event = nullptr;
  std::int64_t time = 0;

  Base() {
    check(cudaEventCreate(&event));
    check(cudaEventRecord(event, gpu::stream()));
    check(cudaEventSynchronize(event));
    time = host_now();
  }
  Base(const Base&) = delete;
  ~Base() { cudaEventDestroy(event); }
};

struct Mark {
  cudaEvent_t event;
  std::shared_ptr<const Base> base;
};

// Marks are made by threads of all devices, and read by others.
std::mutex marks_mutex;
std::map<int, Mark> marks;
int next_mark = 0;

int mark() {
  thread_local std::shared_ptr<const Base> base;
  if (base == nullptr || host_now() - base->time > Base::kOldest) {
    base = std::make_shared<Base>();  // the only time that a task waits
  }
  Mark mine{nullptr, base};
  check(cudaEventCreate(&mine.event));
  check(cudaEventRecord(mine.event, gpu::stream()));
  const std::lock_guard<std::mutex> lock(marks_mutex);
  marks[next_mark] = mine;
  return next_mark++;
}

// Waits until the event has passed, and forgets it.
std::int64_t time_of(int number) {
  Mark mine{};
  {
    const std::lock_guard<std::mutex> lock(marks_mutex);
    mine = marks.at(number);
    marks.erase(number);
  }
  float milliseconds = 0;
  check(cudaEventSynchronize(mine.event));
  check(cudaEventElapsedTime(&milliseconds, mine.base->event, mine.event));
  check(cudaEventDestroy(mine.event));
  return mine.base->time + static_cast<std::int64_t>(1e6 * static_cast<double>(milliseconds));
}

// Recorded beside measured times: another version may choose other algorithms.
std::string software() {
  int runtime = 0, blas_parts[3] = {};
  check(cudaRuntimeGetVersion(&runtime));
  const libraryPropertyType parts[] = {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
  for (int i = 0; i < 3; ++i) check(cublasGetProperty(parts[i], &blas_parts[i]));
  int dnn_parts[3] = {};
  for (int i = 0; i < 3; ++i) check(cudnnGetProperty(parts[i], &dnn_parts[i]));
  const auto dotted = [](const int(&numbers)[3]) {
    return std::to_string(numbers[0]) + "." + std::to_string(numbers[1]) + "." +
           std::to_string(numbers[2]);
  };
  return "cuDNN " + dotted(dnn_parts) + ", cuBLAS " + dotted(blas_parts) + ", CUDA " +
         std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10);
}

GpuFacts describe(int ordinal) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal));
  const auto attribute = [ordinal](cudaDeviceAttr which) {
    int value = 0;
    // Some drivers do not tell clocks; then they are 0.
    if (cudaDeviceGetAttribute(&value, which, ordinal) != cudaSuccess) {
      cudaGetLastError();
      value = 0;
    }
    return value;
  };
  GpuFacts facts;
  facts.name = properties.name;
  facts.software = software();
  facts.major = properties.major;
  facts.minor = properties.minor;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.clock_khz = attribute(cudaDevAttrClockRate);
  facts.memory_clock_khz = attribute(cudaDevAttrMemoryClockRate);
  facts.memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth);
  return facts;
}

// 0: copies between these two GPUs go through the host. Else 1 and the rank by which the driver
// compares links.
int peer_class(int from, int to) {
  int reaches = 0, rank = 0;
  check(cudaDeviceCanAccessPeer(&reaches, from, to));
  if (reaches == 0) return 0;
  check(cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, from, to));
  return 1 + rank;
}

#endif

// What is not compiled for a device stays null, and is never called there.
DeviceFunctions functions() {
  DeviceFunctions result;
  result.copy = gpu::copy_view;
  result.add = gpu::add_view;
  result.max = gpu::max_view;
  result.log_add_exp = gpu::log_add_exp_view;
  result.zero = gpu::zero_view;
  result.zero_where_equal = gpu::zero_where_equal;
  result.scratch = gpu::scratch;
  result.update = update;
  result.find_norm = find_norm;
#if FLEXLEGION_CUDA
  result.begin_task = begin;
  result.end_task = end;
  result.record = record;
  result.replay = replay;
  result.mark = mark;
  result.time_of = time_of;
  result.describe = describe;
  result.peer_class = peer_class;
#endif
  return result;
}

const RegisterDeviceFunctions registered(functions(), DeviceKind::gpu);

}  // namespace
}  // namespace flexlegion::gpu
