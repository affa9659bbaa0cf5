// What all measurements have in common (measure.h): tasks on one device, and on those that share
// its memory, run again and again; a log of times, which all ranks get.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/measure.h"

namespace flexlegion {

// Brings that much of the calling thread's own memory into its core's caches, in place of others'.
void sweep(std::int64_t bytes);

// The device, and after it those that share its memory: in training they compute at the same time.
std::vector<int> neighbours(int device);

// All of a task's field of a region.
LaunchRequirement whole(int region, Legion::PrivilegeMode privilege, const Rect& rect);

class Measurement : public Executor {
 public:
  // Runs tasks on `device`; before each that is measured, memory is swept.
  Measurement(int device, std::int64_t sweep_bytes, Precision precision = Precision::fp32)
      : Executor(precision), device_(device), sweep_bytes_(sweep_bytes) {}
  ~Measurement() override { wait_quietly(); }

  int add_region(const std::vector<std::int64_t>& shape, DataType type = DataType::float32,
                 int states = 0) {
    return regions_.add(shape, Content::other, type, states);
  }

  // A launch of one task.
  int add_task(const std::string& task, int device, std::vector<LaunchRequirement> requirements,
               Body body, Side side = Side::device);

  // Fills what a task reads there, before anything is measured.
  void add_fill(int device, LaunchRequirement requirement, Body body);

  // A task to measure: a step that logs its times, if it runs on our device; elsewhere it keeps
  // that processor busy. The operands that are `cold` were not used for long; those that are
  // `shared` other devices read, too, at the same time. Programs record it if it is `recordable`.
  void add_measured(const std::string& task, int device,
                    std::vector<LaunchRequirement> requirements, Body body,
                    const std::vector<bool>& cold = {}, const std::vector<bool>& shared = {},
                    Side side = Side::device, Recordable recordable = Recordable::never);

  Times& add_log();
  void add_step(int launch) { all_.launches.push_back(launch); }
  // Records the steps as a trace, so that Legion's analysis does not hold them up.
  void trace() { traced_ = true; }

  // Runs all steps again and again. Returns what is logged; the logs are added up.
  Times run(const RunState& state, const Repeats& repeats,
            const std::vector<std::int64_t>* rows = nullptr);
  // Then the measured tasks of our device alone, half as often; nothing if no others ran beside it.
  Times run_alone(const RunState& state);

 private:
  void add_sweep(int device, const std::vector<LaunchRequirement>& requirements,
                 const std::vector<bool>& cold, const std::vector<bool>& shared);
  // Steps in an order of their own, as a trace of their own.
  struct Steps {
    std::vector<int> launches;
    std::optional<Legion::TraceID> trace;
  };
  void repeat(Steps& steps, int count, const RunState& state,
              const std::vector<std::int64_t>* rows);
  Times times();

  const int device_;
  const std::int64_t sweep_bytes_;
  std::deque<Times> logs_;  // a deque: launches keep pointers into it
  std::vector<int> fills_;
  Steps all_, own_;  // own_: those of them that run measured tasks of our device
  bool traced_ = false;
  int counted_ = 0;  // runs that the last times are of
  Times totals_;
  int report_ = 0;
};

}  // namespace flexlegion
