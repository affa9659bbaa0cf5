// A program: the plan made executable. It owns the regions, turns every launch of the plan into an
// index launch, moves data in and out, and issues iterations, each as one trace.
//
// All calls come from the top-level task's thread, in the same order on every rank (control
// replication). They only issue work; Legion runs it when its inputs are there. Reading (read,
// metrics) waits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "legion.h"
#include "ops/kernel.h"
#include "plan/handles.h"
#include "runtime/bodies.h"
#include "runtime/executor.h"
#include "runtime/hyperparameters.h"
#include "runtime/iteration_log.h"

namespace flexlegion {

// The rows of host arrays that make up a batch. `data` names the arrays (add_data), at most one an
// input tensor.
struct Batch {
  std::vector<int> data;
  std::vector<std::int64_t> rows;  // at most the batch size; the rest of the batch is padding
};

class Program : public Executor {
 public:
  Program(const fl_plan& plan, const std::string& optimizer, const Hyperparameters& hyperparameters,
          std::uint64_t seed, double clip_norm, Precision precision);
  ~Program() override;  // waits for running work

  // Makes a row-major host array known: row r of it can become a row of the batch of `tensor`. The
  // caller keeps it alive until drop_data() of it, which waits. With `byte_values` (256) it has
  // bytes that stand for these.
  int add_data(TensorId tensor, const void* base, std::int64_t rows,
               const float* byte_values = nullptr);
  void drop_data(const std::vector<int>& data);

  // Brings a batch into the staging tensors.
  void stage(unsigned runs, const Batch& batch);
  // How many micro-batches such a run has: a prediction is of the first one, whose output it leaves
  // behind.
  int rounds_of(unsigned runs) const { return runs == kPredicts ? 1 : plan_.micro_batches; }
  // Issues one iteration (Runs: train, evaluate or predict) over the staged batch, and stages
  // `next` (may be empty) while it computes. `label_shares` are of the graph's losses (RunState).
  // Returns a ticket for its metrics.
  std::int64_t step(unsigned runs, const RunState& state, const std::vector<double>& label_shares,
                    const Batch& next);
  // Waits until this rank has read that iteration's batch and computed its part of the losses.
  void finish(std::int64_t ticket);
  // Of each ticket, of each of the graph's losses, the sums over the batch, of all ranks (overflows
  // are the first loss's); waits for them. A ticket can be asked once. Every rank says a number,
  // too, and hears the first rank's.
  struct AllMetrics {
    std::vector<std::vector<Metrics>> sums;
    std::int64_t heard = 0;
  };
  AllMetrics metrics(const std::vector<std::int64_t>& tickets, std::int64_t say);
  void on_failure() override { log_.give_up(); }
  int node_of(Legion::Memory memory) const override;
  int losses() const { return losses_; }

  // A whole tensor, or to read a field of the iteration, from or to the host, every rank alike.
  // Reading combines partial values; it reads what so many micro-batches have left.
  void write(const Place& place, const void* host);
  void read(Place place, int rounds, void* host);

  // Where a weight is kept between iterations: a device for each of its shards, which leave nothing
  // out and do not overlap.
  std::pair<std::vector<int>, std::vector<Rect>> home_of(TensorId weight) const;
  // Copies shards of weights and of optimizer states to the host, each rank those of its devices,
  // and returns when they are there. All ranks copy the same fields.
  struct HostShard {
    Place place;
    int shard = 0;  // of home_of()
    void* to = nullptr;
    std::array<std::int64_t, kMaxRegionRank> stride{};  // in elements
  };
  void save(const std::vector<HostShard>& shards);

  // What was noted since record(true), by the plan's launches (or FL_STAGED, ...).
  std::vector<TaskRecord> records();

  // A launch of the plan: the place in an iteration of what is issued for it, or -1.
  std::vector<std::int32_t> issued(unsigned runs) const;

 private:
  struct Data {
    HostArray array;
    std::int64_t rows;
    TensorId tensor;
  };
  struct InputTensor {  // of one micro-batch
    TensorId tensor;
    int round = 0;
    int stage = 0, feed = 0;  // launches
    unsigned runs = 0;
  };

  struct Schedule;
  // Building, in this order.
  void build();
  void create_regions();
  void add_planned(LaunchId id);
  int add_round(LaunchId id, int round);
  void add_load(const Launch& planned, int round);
  void add_answer(const Launch& planned, RuntimeLaunch& launch);
  void add_loss_answer(int number, RuntimeLaunch& loss);
  void add_overflow_answer(const Launch& planned, RuntimeLaunch& clip);
  void answer_on_host(const std::vector<int>& devices, LaunchRequirement requirement, Body body);
  void add_runs(const std::vector<std::vector<LaunchId>>& runs, int round, Schedule& schedule);
  int tasks_here(const RuntimeLaunch& launch) const;
  void add_zeroing();
  void add_store(const Place& place);
  void add_save(const Place& place);
  void add_schedule(unsigned runs);
  // `devices`: of the tasks, one each.
  LaunchRequirement runtime_requirement(const Requirement& planned, const std::vector<int>& devices,
                                        int round) const;
  int states_of(TensorId tensor) const;  // optimizer states
  std::pair<int, Legion::FieldID> region_of(const Place& place) const;
  int first_user(TensorId tensor) const;

  // Of a weight with a master, that is its value to the outside.
  Place exact(const Place& place) const;
  void store(const Place& place, int data);

  void read_buffer(const Place& place, const TensorView& to);
  void read_of_iteration(Field field, void* host);
  RunState in_round(RunState run, int round) const;
  bool written(int region, Legion::FieldID field) const;
  void check_batch(const Batch& batch);
  void issue_stage(unsigned runs, const Batch& batch);
  HostArray host_array(int data);

  const Graph graph_;
  const Plan plan_;
  const std::string optimizer_;
  const Hyperparameters hyperparameters_;
  const std::uint64_t seed_;
  const double clip_norm_;                  // 0: gradients are not clipped
  std::map<Place, int> regions_of_places_;  // of homes (Plan::home_of), and of their buffers
  int losses_ = 0;                          // operators of the graph
  std::vector<InputTensor> inputs_;
  // A launch of the plan: its indices in launches_, by round. Those that end an iteration have one.
  IdVector<LaunchId, std::vector<int>> planned_;
  std::map<std::pair<LaunchId, std::vector<int>>, int> variants_;  // of rounds, by their buffers
  std::vector<int> zeroing_;                                       // launches that run once
  std::map<int, int> answers_;  // of a launch on GPUs that has to tell: the one that reads it
  std::map<OpId, OperatorKernels> kernels_;
  std::map<std::pair<int, Legion::FieldID>, int> stores_;  // (region, field) -> store launch
  std::map<std::pair<int, Legion::FieldID>, int> saves_;   // (region, field) -> save launch
  // While save() runs: (save launch, task) -> where its tile goes on this rank.
  std::map<std::pair<int, int>, HostShard> saving_;
  std::mutex data_mutex_;
  std::map<int, Data> data_;
  int next_data_ = 0;
  // What a kind of run issues, after its batch was fed.
  struct Issued {
    int launch, round;
  };
  struct Schedule {
    std::vector<Issued> launches;
    bool answers = false;  // with losses
    int telling = 0;       // tasks of this rank that tell the log of an iteration
    Legion::TraceID trace = 0;
  };
  std::map<unsigned, Schedule> schedules_;
  std::map<std::vector<int>, int> fused_;  // launches -> the one that stands for them
  IterationLog log_;
  std::size_t launches_since_pause_ = 0;
};

}  // namespace flexlegion
