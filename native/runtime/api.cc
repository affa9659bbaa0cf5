// The C ABI of libflexlegion_rt: what Python calls through cffi.
//
// Each function translates: plain arrays and pointers to the runtime's types, results to arrays of
// the caller's, and exceptions to a status with a message, which Python asks for next
// (support/error.h). No exception may cross this boundary. The numbers of enumerations are compared
// with the C++ ones when this file is compiled.
//
// Functions that issue work are called from the top-level task's thread, in the same order on every
// rank.
#include <oneapi/dnnl/dnnl.h>
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "flexlegion_rt.h"
#include "plan/handles.h"
#include "runtime/all_gather.h"
#include "runtime/arenas.h"
#include "runtime/machine.h"
#include "runtime/mapper.h"
#include "runtime/measure.h"
#include "runtime/program.h"
#include "runtime/watchdog.h"
#include "support/error.h"

namespace fl = flexlegion;

// What Python holds: a program, and arrays that outlive the call which fills them.
struct fl_program {
  fl::Program program;
  std::vector<fl_record> records = {};  // what fl_records points to
  // What fl_program_facts points to.
  std::vector<fl_shard> shards = {};
  std::vector<std::int32_t> trains = {}, evaluates = {}, predicts = {};
};

namespace {

using fl::same;
static_assert(same(FL_CPU, fl::DeviceKind::cpu) && same(FL_GPU, fl::DeviceKind::gpu));
static_assert(same(FL_HELD_WEIGHTS, fl::Content::weights) &&
              same(FL_HELD_GRADIENTS, fl::Content::gradients) &&
              same(FL_HELD_OPTIMIZER, fl::Content::states) &&
              same(FL_HELD_ACTIVATIONS, fl::Content::activations) &&
              same(FL_HELD_BATCHES, fl::Content::batches) &&
              same(FL_HELD_OTHER, fl::Content::other));
static_assert(same(FL_FP32, fl::Precision::fp32) && same(FL_TF32, fl::Precision::tf32) &&
              same(FL_BF16, fl::Precision::bf16));

// Which rows of which arrays make a batch.
fl::Batch batch_of(const fl_batch& its) {
  return {{its.data, its.data + its.n_data}, {its.rows, its.rows + its.n_rows}};
}

// What an optimizer is told of the plan's weights.
fl::Hyperparameters hyperparameters_of(const fl_plan& plan, const fl_optimizer& its) {
  fl::Hyperparameters result;
  result.common.attributes = fl::Attributes(fl::attributes_of(its.attributes));
  result.ema = its.ema;
  for (int i = 0; i < its.n_groups; ++i) {
    const fl_parameter_group& group = its.groups[i];
    result.groups.push_back({fl::Attributes(fl::attributes_of(group.attributes)), group.rate});
  }
  if (its.n_groups > 0) {
    result.group_of.assign(its.group_of, its.group_of + plan.graph.tensors.size());
  }
  return result;
}

// A tensor's field by its numbers; the enumerations of both sides agree (plan/api.cc).
fl::Place place_of(int tensor, int field, int state) {
  return {fl::TensorId(tensor), static_cast<fl::Field>(field), state};
}

// For calls without a result: 0, or -1 and a message.
template <typename Body>
int status(Body&& body) {
  return fl::guarded(-1, [&] {
    body();
    return 0;
  });
}

fl::Precision precision_of(int precision) {
  if (precision < FL_FP32 || precision > FL_BF16) {
    throw std::invalid_argument("no precision " + std::to_string(precision));
  }
  return static_cast<fl::Precision>(precision);
}

fl::Repeats repeats_of(const fl_repeats& repeats) {
  return {repeats.warmups, repeats.least, repeats.most, repeats.budget_ns, repeats.sweep_bytes};
}

// Measures, and keeps the times until the next measurement.
template <typename Measure>
int measured(fl_times* out, Measure&& measure) {
  static fl::TaskTimes times;  // what fl_times points to
  return status([&] {
    times = measure();
    *out = {static_cast<int32_t>(times.together.size()), static_cast<int32_t>(times.alone.size()),
            times.together.data(), times.alone.data()};
  });
}

// Recorded beside measured times: another version may be faster or slower.
const char* kernel_library() {
  static const std::string name = [] {
    const dnnl_version_t* const v = dnnl_version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
           std::to_string(v->patch);
  }();
  return name.c_str();
}

}  // namespace

// Devices as Python numbers them, and how much of its memory each has left for tensors: all but the
// arena.
int fl_rt_start(int n_threads, const int32_t* threads, int n_cores, const int32_t* cores,
                int64_t worth_sharing, fl_running* out) {
  return status([&] {
    fl::MachineState::start({threads, threads + n_threads}, {cores, cores + n_cores},
                            worth_sharing);
    fl::watch_ranks();
    const fl::MachineState& machine = fl::MachineState::get();
    const auto& all = machine.devices();
    // What fl_rt_start() gives out points here, so it stays.
    static std::vector<fl_device> devices;
    devices.clear();
    for (const fl::Device& device : all) {
      // Memories are numbered by the first device that has them. Devices of one memory compete for
      // it, so Python has to know which these are.
      const auto first = std::find_if(all.begin(), all.end(), [&](const fl::Device& other) {
        return other.memory == device.memory;
      });
      const auto index = static_cast<int>(devices.size());
      devices.push_back({static_cast<int32_t>(device.kind), device.rank,
                         static_cast<int32_t>(first - all.begin()), device.threads,
                         device.memory.exists() ? static_cast<int64_t>(device.memory.capacity()) -
                                                      fl::arena_bytes(index)
                                                : 0});
    }
    *out = {machine.ranks(), machine.rank(),   static_cast<int32_t>(devices.size()),
            devices.data(),  kernel_library(), fl::has_bfloat16() ? 1 : 0};
  });
}

void fl_rt_leave(int status) { fl::end_all_ranks(status); }

int fl_rt_gpu(int device, fl_gpu* out, int32_t* ways) {
  return status([&] {
    const fl::GpuFacts facts = fl::describe_gpu(device);
    *out = {{},
            {},
            facts.major,
            facts.minor,
            facts.multiprocessors,
            facts.clock_khz,
            facts.memory_clock_khz,
            facts.memory_bus_bits};
    facts.name.copy(out->name, sizeof(out->name) - 1);
    facts.software.copy(out->software, sizeof(out->software) - 1);
    const fl::MachineState& machine = fl::MachineState::get();
    for (int other = 0; other < static_cast<int>(machine.devices().size()); ++other) {
      const fl::Device& its = machine.devices()[static_cast<std::size_t>(other)];
      const bool peer =
          other != device && its.rank == machine.rank() && its.kind == fl::DeviceKind::gpu;
      ways[other] = peer ? fl::peer_class(device, other) : 0;
    }
  });
}

int fl_rt_traffic(int count_copies, fl_traffic* out) {
  static std::vector<std::int64_t> in_use, between;  // what fl_traffic points to
  return status([&] {
    const fl::MachineState& machine = fl::MachineState::get();
    // Each rank's mapper counts the copies that it maps, and nobody adds them up.
    if (count_copies != 0 && machine.ranks() > 1) {
      throw std::invalid_argument("copies can be counted on one rank only");
    }
    in_use = fl::memory_in_use();
    between.clear();
    for (const fl::Device& device : machine.devices()) {
      for (const fl::Device& other : machine.devices()) {
        between.push_back(fl::copied_bytes(device.memory, other.memory));
      }
    }
    *out = {in_use.data(), fl::copied_bytes(), between.data()};
    fl::count_copies(count_copies != 0);
  });
}

int fl_rt_measure_task(const fl_plan* plan, const fl_optimizer* optimizer, int launch, int part,
                       int bound, int precision, const fl_repeats* repeats, fl_times* out) {
  return measured(out, [&] {
    return fl::measure_task(*plan, optimizer->type, hyperparameters_of(*plan, *optimizer),
                            fl::LaunchId(launch), part, bound, precision_of(precision),
                            repeats_of(*repeats));
  });
}

int fl_rt_measure_sum(int device, int64_t slots, int64_t elements, const fl_repeats* repeats,
                      fl_times* out) {
  return measured(out,
                  [&] { return fl::measure_sum(device, slots, elements, repeats_of(*repeats)); });
}

int fl_rt_measure_round_trips(int n_ways, const int32_t* from, const int32_t* to, int64_t bytes,
                              int trips, fl_times* out) {
  return measured(out, [&] {
    std::vector<std::pair<int, int>> ways;
    for (int i = 0; i < n_ways; ++i) ways.emplace_back(from[i], to[i]);
    return fl::TaskTimes{fl::measure_round_trips(ways, bytes, trips), {}};
  });
}

int fl_rt_measure_clocks(int here, int there, int trips, fl_times* out) {
  return measured(out, [&] { return fl::TaskTimes{fl::measure_clocks(here, there, trips), {}}; });
}

// The same number of bytes from each rank, side by side in the order of ranks.
int fl_rt_all_gather(const void* mine, int64_t bytes, void* all) {
  return status([&] {
    const char* const first = static_cast<const char*>(mine);
    char* to = static_cast<char*>(all);
    for (const std::vector<char>& its : fl::all_gather({first, first + bytes})) {
      to = std::copy(its.begin(), its.end(), to);
    }
  });
}

// Builds the program: regions, launches and schedules. Whatever can be refused is refused here.
fl_program* fl_program_create(const fl_plan* plan, const fl_optimizer* optimizer, uint64_t seed,
                              double clip_norm, int precision, fl_program_facts* out) {
  return fl::guarded(static_cast<fl_program*>(nullptr), [&] {
    auto handle = std::unique_ptr<fl_program>(
        new fl_program{{*plan, optimizer->type, hyperparameters_of(*plan, *optimizer), seed,
                        clip_norm, precision_of(precision)}});
    for (fl::TensorId weight : plan->graph.tensors.ids()) {
      if (plan->graph.tensors[weight].kind != fl::TensorKind::weight) continue;
      const auto [devices, rects] = handle->program.home_of(weight);
      for (std::size_t i = 0; i < rects.size(); ++i) {
        fl_shard& shard = handle->shards.emplace_back();
        shard = {weight.value, devices[i], {}, {}};
        std::copy_n(rects[i].lo.begin(), rects[i].rank, shard.lo);
        std::copy_n(rects[i].hi.begin(), rects[i].rank, shard.hi);
      }
    }
    handle->trains = handle->program.issued(fl::kTrains);
    handle->evaluates = handle->program.issued(fl::kEvaluates);
    handle->predicts = handle->program.issued(fl::kPredicts);
    *out = {static_cast<int32_t>(handle->shards.size()), handle->shards.data(),
            handle->trains.data(), handle->evaluates.data(), handle->predicts.data()};
    return handle.release();
  });
}

void fl_program_destroy(fl_program* program) {
  status([&] { delete program; });
}

int fl_program_add_data(fl_program* program, int tensor, const void* base, int64_t rows,
                        const float* byte_values) {
  return fl::guarded(
      -1, [&] { return program->program.add_data(fl::TensorId(tensor), base, rows, byte_values); });
}

int fl_program_drop_data(fl_program* program, int n_data, const int32_t* data) {
  return status([&] { program->program.drop_data({data, data + n_data}); });
}

int fl_program_stage(fl_program* program, int runs, const fl_batch* batch) {
  return status([&] { program->program.stage(static_cast<unsigned>(runs), batch_of(*batch)); });
}

// Issues an iteration and returns a ticket for its answers, without waiting for its tasks.
int64_t fl_program_step(fl_program* program, int runs, int64_t step, int64_t valid_samples,
                        int n_losses, const double* label_shares, double learning_rate,
                        double loss_scale, const fl_batch* next) {
  return fl::guarded(std::int64_t{-1}, [&] {
    fl::RunState state;
    state.step = step;
    state.valid_samples = valid_samples;
    state.learning_rate = learning_rate;
    state.loss_scale = loss_scale;
    return program->program.step(static_cast<unsigned>(runs), state,
                                 {label_shares, label_shares + n_losses}, batch_of(*next));
  });
}

// For one iteration, or, without a ticket, for everything that was issued.
int fl_program_wait(fl_program* program, int64_t ticket) {
  return status([&] {
    if (ticket < 0) {
      program->program.wait();
    } else {
      program->program.finish(ticket);
    }
  });
}

// The sums of each loss, ticket by ticket. With several ranks it is collective: all have to ask for
// the same tickets.
int64_t fl_program_metrics(fl_program* program, int n_tickets, const int64_t* tickets, int n_losses,
                           fl_metrics* out, int64_t say) {
  return fl::guarded(std::int64_t{-1}, [&] {
    // The caller's array has this many sums for each ticket.
    if (n_losses != program->program.losses()) {
      throw std::invalid_argument("the graph has another number of losses");
    }
    const auto all = program->program.metrics({tickets, tickets + n_tickets}, say);
    for (const std::vector<fl::Metrics>& sums : all.sums) {
      for (const fl::Metrics& m : sums) {
        *out++ = {m.loss,           m.correct, m.correct_top5, m.squared_error,
                  m.absolute_error, m.labels,  m.samples,      m.overflows};
      }
    }
    return all.heard;
  });
}

// Every rank writes the whole tensor; each takes what its tasks need.
int fl_program_write(fl_program* program, int tensor, int field, int state, const void* host) {
  return status([&] { program->program.write(place_of(tensor, field, state), host); });
}

int fl_program_read(fl_program* program, int tensor, int field, int state, int rounds, void* host) {
  return status([&] { program->program.read(place_of(tensor, field, state), rounds, host); });
}

// Shards of weights into the caller's memory. All ranks name the same shards, and give places for
// those of their own devices.
int fl_program_save(fl_program* program, int n, const fl_host_shard* shards) {
  return status([&] {
    std::vector<fl::Program::HostShard> all;
    for (const fl_host_shard* s = shards; s != shards + n; ++s) {
      auto& shard = all.emplace_back();
      shard = {place_of(s->tensor, s->field, s->state), s->shard, s->to, {}};
      static_assert(std::size(decltype(s->stride){}) == fl::kMaxRegionRank);
      std::copy(std::begin(s->stride), std::end(s->stride), shard.stride.begin());
    }
    program->program.save(all);
  });
}

// GPUs' times are known once their work is done.
int fl_program_record(fl_program* program, int on, fl_records* out) {
  return status([&] {
    program->program.wait();
    program->records.clear();
    for (const fl::TaskRecord& r : program->program.records()) {
      program->records.push_back(
          {r.launch, r.part, r.device, r.round, r.thread, r.start, r.end, r.computed});
    }
    *out = {static_cast<std::int64_t>(program->records.size()), program->records.data()};
    program->program.record(on != 0);
  });
}
