// Regions and index launches that belong together, and how they are issued: what a program
// (program.h) and a measurement (measurement.h) have in common.
//
// All calls come from the top-level task's thread, in the same order on every rank (control
// replication).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "legion.h"
#include "plan/service_order.h"
#include "runtime/launch.h"
#include "runtime/regions.h"

namespace flexlegion {

// When a task ran here.
struct TaskRecord {
  std::int32_t launch, part, device, round;
  std::int32_t thread;      // the system's number of the one that ran it
  std::int64_t start, end;  // ns of now_ns()
  // Of these, ns that its thread had a core; the rest was taken by others. A GPU has no others.
  std::int64_t computed;
};

class Executor {
 public:
  // `precision` is what its tasks on GPUs compute with.
  explicit Executor(Precision precision = Precision::fp32);
  // Gives the regions back. Nothing may be running: a derived class, whose members running tasks
  // may use, waits in its own destructor.
  virtual ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  static Executor& find(int id);

  // For leaf tasks and the mapper.
  RuntimeLaunch& launch(int index) { return launches_[static_cast<std::size_t>(index)]; }
  const RegionStore& regions() const { return regions_; }
  Precision precision() const { return precision_; }
  void report_failure(const std::string& what);
  // The node of a memory. Copies to it come from the same node, where they can.
  virtual int node_of(Legion::Memory memory) const;
  // Called after that, on the failed task's thread.
  virtual void on_failure() {}
  // A task that has run here.
  void note(const TaskRecord& record);
  // A GPU's task whose work is issued, so many times; the marks are DeviceFunctions::mark()'s.
  void note_later(const TaskRecord& record, int begin, int end, int times = 1);
  // Whether somebody wants to know when that launch's tasks run.
  bool times(const RuntimeLaunch& launch) const { return recording_ || launch.log != nullptr; }

  // From now on, whether to note when each task runs; what was noted before is forgotten.
  void record(bool on);

  void wait();

 protected:
  int add_launch(RuntimeLaunch launch);
  // Fixes partitions, footprints and launchers; after that, launches are only issued. Throws
  // UserMistake if a memory is too small for what `what` needs.
  void seal(const std::string& what);
  Legion::FutureMap issue(int launch, const RunState& state, int data = -1,
                          const std::vector<std::int64_t>* rows = nullptr, std::int64_t ticket = 0,
                          int round = 0);
  void wait_quietly();
  void raise_failure();
  bool failed();
  // All that was noted, also of GPUs, for whose work it waits.
  std::vector<TaskRecord> noted();
  void settle();

  RegionStore regions_;
  std::deque<RuntimeLaunch> launches_;  // a deque: tasks hold references while others are added
  ServiceOrder service_;

 private:
  void check_memory(const std::string& what) const;
  void await_memory() const;
  std::map<Legion::Memory, std::int64_t> bytes_of_others() const;

  const int id_;
  const Precision precision_;
  std::vector<char> argument_buffer_;
  std::atomic<bool> recording_{false};
  std::mutex records_mutex_;
  struct Pending {
    TaskRecord record;
    int begin, end, times;
  };
  std::vector<TaskRecord> records_;
  std::vector<Pending> pending_;
  std::mutex failure_mutex_;
  std::string failure_;
};

}  // namespace flexlegion
