// Issuing iterations and moving data in and out of a program that is built (program_build.cc).
//
// An iteration is one trace: feed the staged batch, stage the next one, and issue the schedule's
// launches. Legion records the dependences at the first time and replays them afterwards, so the
// same launches have to be issued in the same order each time. All that varies goes by arguments:
// the step, learning rate, label shares, which rows.
//
// Issuing does not wait for tasks, but for a pause now and then (step). An iteration's losses are
// told by tickets: step() opens one, metrics() closes it later, so that the next iterations are
// under way while the host looks at an earlier one's loss.
//
// With several ranks, every rank makes the same calls. Tasks tell their answers to their own rank's
// log, and metrics() exchanges these.
#include "runtime/program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "flexlegion_rt.h"
#include "ops/partial_values.h"
#include "runtime/all_gather.h"
#include "runtime/machine.h"
#include "runtime/views.h"

namespace flexlegion {

using namespace Legion;

Program::Program(const fl_plan& plan, const std::string& optimizer,
                 const Hyperparameters& hyperparameters, std::uint64_t seed, double clip_norm,
                 Precision precision)
    : Executor(precision),
      graph_(plan.graph),
      plan_(plan.plan),
      optimizer_(optimizer),
      hyperparameters_(hyperparameters),
      seed_(seed),
      clip_norm_(clip_norm) {
  if (plan_.optimizer.needs_norm != (clip_norm > 0 || plan_.optimizer.scales)) {
    throw std::invalid_argument("the plan clips gradients and the optimizer does not, or it does");
  }
  service_ = plan_.service;
  build();
  for (int launch : zeroing_) issue(launch, RunState{});
}

Program::~Program() { wait_quietly(); }

int Program::add_data(TensorId tensor, const void* base, std::int64_t rows,
                      const float* byte_values) {
  // The array stays the caller's. Of bytes (images, say), a table gives the number of each of the
  // 256 values.
  HostArray array{static_cast<const char*>(base)};
  if (byte_values != nullptr) {
    const auto values = std::make_shared<std::array<float, 256>>();
    std::copy_n(byte_values, values->size(), values->begin());
    array.byte_values = values;
  }
  const std::lock_guard<std::mutex> lock(data_mutex_);
  data_[next_data_] = {std::move(array), rows, tensor};
  return next_data_++;
}

// Called by tasks on other threads.
HostArray Program::host_array(int data) {
  const std::lock_guard<std::mutex> lock(data_mutex_);
  return data_.at(data).array;
}

// Waits first: tasks may still read those arrays.
void Program::drop_data(const std::vector<int>& data) {
  wait();
  const std::lock_guard<std::mutex> lock(data_mutex_);
  for (int dropped : data) data_.erase(dropped);
}

// Leaf tasks read these rows unchecked, and an open trace cannot be left: so mistakes end here.
void Program::check_batch(const Batch& batch) {
  const std::lock_guard<std::mutex> lock(data_mutex_);
  for (int data : batch.data) {
    const auto found = data_.find(data);
    if (found == data_.end()) throw std::invalid_argument("no data " + std::to_string(data));
    for (std::int64_t row : batch.rows) {
      if (row < 0 || row >= found->second.rows) {
        throw std::invalid_argument("no row " + std::to_string(row) + " in data of " +
                                    std::to_string(found->second.rows) + " rows");
      }
    }
  }
}

void Program::stage(unsigned runs, const Batch& batch) {
  check_batch(batch);
  issue_stage(runs, batch);
}

// Of each input that such a run reads, the rows of a batch go to the staging tensor. Without data
// for it, the launch is issued all the same, and copies nothing: a trace has to be the same each
// time.
void Program::issue_stage(unsigned runs, const Batch& batch) {
  for (const InputTensor& input : inputs_) {
    if (!(input.runs & runs)) continue;
    int data = -1;
    for (int candidate : batch.data) {
      if (data_.at(candidate).tensor == input.tensor) data = candidate;
    }
    const auto extent = static_cast<std::size_t>(graph_.tensors[input.tensor].shape.front());
    const std::size_t first = std::min(extent * input.round, batch.rows.size());
    const std::size_t last = std::min(first + extent, batch.rows.size());
    const std::vector<std::int64_t> rows(batch.rows.begin() + static_cast<std::ptrdiff_t>(first),
                                         batch.rows.begin() + static_cast<std::ptrdiff_t>(last));
    issue(input.stage, RunState{}, data, &rows);
  }
}

// What tasks of a round are told of it: which samples of the batch are theirs.
RunState Program::in_round(RunState run, int round) const {
  if (plan_.micro_batches == 1 || inputs_.empty()) return run;
  const std::int64_t samples = graph_.tensors[inputs_.front().tensor].shape.front();
  run.first_sample = samples * round;
  run.valid_samples = std::clamp<std::int64_t>(run.valid_samples - run.first_sample, 0, samples);
  return run;
}

// First everything that can be refused, then the trace: an open trace cannot be left.
std::int64_t Program::step(unsigned runs, const RunState& state,
                           const std::vector<double>& label_shares, const Batch& next) {
  raise_failure();
  if (static_cast<int>(label_shares.size()) != losses_) {
    throw std::invalid_argument("each loss needs its label share");
  }
  check_batch(next);
  // Legion gives back what finished operations held when nothing more urgent is to do. With small
  // tasks on busy cores that is too seldom, and memory grows; a pause lets it catch up.
  constexpr std::size_t kLaunchesBetweenPauses = 4096;
  launches_since_pause_ += schedules_.at(runs).launches.size();
  if (launches_since_pause_ > kLaunchesBetweenPauses) {
    wait_quietly();
    launches_since_pause_ = 0;
  }
  Runtime* runtime = Runtime::get_runtime();
  Context ctx = Runtime::get_context();
  const Schedule& schedule = schedules_.at(runs);
  RunState run = state;
  run.batch_samples = run.valid_samples;
  run.seed = seed_;
  run.training = (runs & kTrains) != 0;
  if (plan_.optimizer.scales && run.training != 0 && !(run.loss_scale > 0)) {
    throw std::invalid_argument("gradients that are stored as float16 have to be scaled");
  }
  std::vector<std::int64_t> shares(label_shares.size());  // as they follow a task's arguments
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double share = label_shares[i] * (run.loss_scale > 0 ? run.loss_scale : 1.0);
    // They travel in the place of row numbers, as 64 bits each.
    std::memcpy(&shares[i], &share, sizeof(share));
  }
  // 0: nothing will be told, and nobody asks.
  const std::int64_t ticket = schedule.answers ? log_.open(schedule.telling) : 0;
  runtime->begin_trace(ctx, schedule.trace);
  // A batch is fed when its round comes; the staging tensors are free for the next one after that.
  int fed = -1;
  const auto feed = [&](int round) {
    for (const InputTensor& input : inputs_) {
      if (input.runs & runs && input.round == round) {
        issue(input.feed, run, -1, nullptr, ticket, round);
      }
    }
    fed = round;
    if (round == rounds_of(runs) - 1) issue_stage(runs, next);
  };
  for (const auto& [launch, round] : schedule.launches) {
    while (fed < round) feed(fed + 1);
    issue(launch, in_round(run, round), -1, &shares, ticket, round);
  }
  runtime->end_trace(ctx, schedule.trace);
  return ticket;
}

// The tasks of an iteration on this rank have told their answers; later iterations may still run.
void Program::finish(std::int64_t ticket) {
  log_.wait(ticket);
  raise_failure();
}

Program::AllMetrics Program::metrics(const std::vector<std::int64_t>& tickets, std::int64_t say) {
  // What this rank tells: a number, and of each ticket the answers, after their count.
  std::vector<std::int64_t> counts = {say};
  std::vector<Answer> answers;
  for (std::int64_t ticket : tickets) {
    const std::vector<Answer> its = log_.close(ticket);
    counts.push_back(static_cast<std::int64_t>(its.size()));
    answers.insert(answers.end(), its.begin(), its.end());
  }
  raise_failure();
  const std::size_t head = counts.size() * sizeof(std::int64_t);
  std::vector<char> mine(head + answers.size() * sizeof(Answer));
  std::memcpy(mine.data(), counts.data(), head);
  if (!answers.empty()) {
    std::memcpy(mine.data() + head, answers.data(), answers.size() * sizeof(Answer));
  }
  std::vector<std::vector<char>> told;
  if (MachineState::get().ranks() == 1) {
    told.push_back(std::move(mine));
  } else {
    told = all_gather(mine);
  }
  // Sums are formed in the order of tasks, so that they do not depend on who ran which when.
  AllMetrics all;
  std::memcpy(&all.heard, told.front().data(), sizeof(all.heard));
  std::vector<std::size_t> at(told.size(), head);
  for (std::size_t t = 0; t < tickets.size(); ++t) {
    std::map<std::pair<int, int>, Metrics> of_tasks;
    for (std::size_t rank = 0; rank < told.size(); ++rank) {
      const char* const data = told[rank].data();
      std::int64_t count = 0;
      std::memcpy(&count, data + (t + 1) * sizeof(count), sizeof(count));
      for (; count > 0; --count, at[rank] += sizeof(Answer)) {
        Answer answer;
        std::memcpy(&answer, data + at[rank], sizeof(answer));
        of_tasks[{answer.loss, answer.task}] = answer.metrics;
      }
    }
    std::vector<Metrics>& sums = all.sums.emplace_back(static_cast<std::size_t>(losses_));
    for (const auto& [of, metrics] : of_tasks)
      sums[static_cast<std::size_t>(of.first)].add(metrics);
  }
  return all;
}

// A weight stored in two bytes has a master in floats, kept as its last optimizer state. Whoever
// reads or writes the value from outside means the master.
Place Program::exact(const Place& place) const {
  const Tensor& what = graph_.tensors.at(place.tensor.index());
  if (place.field != Field::value || !what.has_master()) return place;
  return {place.tensor, Field::state, plan_.optimizer.states_of(what) - 1};
}

void Program::store(const Place& place, int data) {
  const auto store = stores_.find(region_of(place));
  if (store == stores_.end()) throw std::invalid_argument("only weights can be written");
  issue(store->second, RunState{}, data);
}

void Program::write(const Place& place, const void* host) {
  const Place its = exact(place);
  const int data = add_data(place.tensor, host, 0);
  store(its, data);
  if (its != place) store(place, data);  // rounded
  wait();                                // the host array is the caller's again
  const std::lock_guard<std::mutex> lock(data_mutex_);
  data_.erase(data);
}

// All ranks issue the same launches; each copies the shards of its own devices that it has a place
// for.
void Program::save(const std::vector<HostShard>& shards) {
  std::vector<int> launches;
  for (const HostShard& shard : shards) {
    const auto [region, field] = region_of(exact(shard.place));
    const auto save = saves_.find({region, field});
    if (save == saves_.end() || !written(region, field)) {
      throw std::invalid_argument("only weights that have been set can be saved");
    }
    if (launches.empty() || launches.back() != save->second) launches.push_back(save->second);
    if (shard.to != nullptr) saving_[{save->second, shard.shard}] = shard;
  }
  for (int launch : launches) issue(launch, RunState{});
  wait_quietly();
  saving_.clear();
  raise_failure();
}

// The whole tensor, as floats, on every rank. Partial values are combined here. Of what each
// micro-batch has its own, the first so many, one after the other.
void Program::read(Place place, int rounds, void* host) {
  if (place.tensor.none()) {
    read_of_iteration(place.field, host);
    return;
  }
  const Tensor& what = graph_.tensors.at(place.tensor.index());
  const ValueStack& values = plan_.values[place.tensor];
  Field& field = place.field;
  // Where a reduction is split, and nobody but its readers combines it, there is no value.
  if (field == Field::value && values.slots > 1 && !values.summed) field = Field::partial;
  if (field == Field::gradient && plan_.sharding[place.tensor] != Sharding::states) {
    field = Field::reduced;
  }
  place = exact(place);
  if (plan_.tenancies.count(place) > 0) {
    throw std::invalid_argument("tensor '" + what.name + "': its " + name_of(place.field) +
                                " is not kept, as other tensors have its memory after it; a "
                                "Granularity with keep_tensors keeps all of them");
  }
  if (rounds > plan_.buffers(place) && what.kind != TensorKind::weight) {
    throw std::invalid_argument("tensor '" + what.name + "': its " + name_of(place.field) +
                                " is not kept, as one micro-batch has its memory after the other; "
                                "a Granularity with keep_tensors keeps all of them");
  }
  const Rect whole = Rect::of_shape(what.shape);
  // What is stored narrow is read as floats.
  const DataType type = what.type == DataType::int32 ? DataType::int32 : DataType::float32;
  char* to = static_cast<char*>(host);
  for (place.buffer = 0; place.buffer < rounds; ++place.buffer) {
    read_buffer(place, dense_view(to, whole, whole.hi, type));
    to += whole.volume() * element_bytes(type);
  }
  raise_failure();
}

void Program::read_buffer(const Place& place, const TensorView& to) {
  const auto [region, field_id] = region_of(place);
  // Legion ends the process at a read of what nothing wrote.
  if (region < 0 || !written(region, field_id)) {
    throw std::invalid_argument("tensor '" + graph_.tensors[place.tensor].name +
                                "': nothing has computed that yet");
  }
  const MappedTensor mapped(regions_, region, field_id);
  // The mapping has waited for whatever writes the tensor.
  const TensorView& view = mapped.view();
  if (place.field == Field::gradient || place.field == Field::partial) {
    const DeviceFunctions& host_functions = *device_functions(DeviceKind::cpu);
    const Combine way =
        place.field == Field::partial ? plan_.values[place.tensor].combine : Combine::sum;
    combine(view, merge_of(way, host_functions), to, host_functions);
  } else {
    copy_view(to, view);
  }
}

void Program::read_of_iteration(Field field, void* host) {
  const auto [region, field_id] = region_of({{}, field});
  if (region < 0 || !written(region, field_id)) {
    throw std::invalid_argument(std::string("nothing has computed the iteration's ") +
                                name_of(field));
  }
  const MappedTensor mapped(regions_, region, field_id);
  const Rect all = Rect::of_shape({plan_.elements[static_cast<std::size_t>(field)]});
  copy_view(dense_view(host, all, all.hi, kStateType), mapped.view());
  raise_failure();
}

// Whether a launch that writes there was issued. It may still run: who reads waits for it.
bool Program::written(int region, FieldID field) const {
  for (const RuntimeLaunch& launch : launches_) {
    for (const LaunchRequirement& r : launch.requirements) {
      if (launch.issued && r.region == region && r.field == field &&
          r.privilege != LEGION_READ_ONLY) {
        return true;
      }
    }
  }
  return false;
}

// Records name our launches; outside, the plan's numbers are known.
std::vector<TaskRecord> Program::records() {
  std::vector<int> numbers(launches_.size(), FL_OTHER);
  for (const InputTensor& input : inputs_) numbers[input.stage] = FL_STAGED;
  for (LaunchId l : planned_.ids()) {
    for (int launch : planned_[l]) numbers[static_cast<std::size_t>(launch)] = l.value;
  }
  std::vector<TaskRecord> records = noted();
  for (TaskRecord& record : records) record.launch = numbers[record.launch];
  return records;
}

// A fused launch's place is that of all its parts; of several rounds, the first one's are told.
std::vector<std::int32_t> Program::issued(unsigned runs) const {
  std::map<int, std::int32_t> places;  // of our launches
  const std::vector<Issued>& schedule = schedules_.at(runs).launches;
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].round > 0) continue;
    const auto place = static_cast<std::int32_t>(i);
    places[schedule[i].launch] = place;
    for (const FusedPart& part : launches_[static_cast<std::size_t>(schedule[i].launch)].parts) {
      places[part.launch] = place;
    }
  }
  std::vector<std::int32_t> numbers;
  for (const std::vector<int>& rounds : planned_) {
    const auto found = places.find(rounds.front());
    numbers.push_back(found == places.end() ? -1 : found->second);
  }
  return numbers;
}

}  // namespace flexlegion
