// The full and the delta simulation algorithm (FlexFlow, sections 5.2 and 5.3).
//
// Every device, links included, serves its tasks in the order (ready_time, task order). Times are
// integer ns. The delta algorithm gives the same timeline, task by task: what happened before the
// first task that a change can touch stands, and the rest is played again.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/contention.h"
#include "sim/event_heap.h"
#include "sim/fused_launches.h"
#include "sim/rounds.h"
#include "sim/task_graph.h"
#include "sim/timeline.h"
#include "sim/utility.h"

namespace flexlegion {

class Simulation {
 public:
  explicit Simulation(const TaskGraph& graph)
      : graph_(graph),
        fused_(graph),
        utility_(graph.problem()),
        contention_(graph.problem().machine),
        rounds_(graph, utility_, contention_) {}

  // Stops as soon as the iteration is sure to take longer than `limit`, and then returns false.
  // `tails`, if any: what passes at least from the start of a launch's tasks to the iteration's
  // end.
  bool full(Timeline& line, std::int64_t limit = kNever,
            const std::vector<std::int64_t>* tails = nullptr);
  // `before` is the timeline before `change`, which the graph has since undergone.
  bool delta(const Timeline& before, const TaskGraph::Change& change, Timeline& line,
             std::int64_t limit = kNever, const std::vector<std::int64_t>* tails = nullptr);

  // Whether replicas are played once (sim/rounds.h), as they are unless this says otherwise.
  void fold(bool folds) { rounds_.folds = folds; }
  // Tasks that the last simulation played.
  std::int64_t played() const { return played_; }

 private:
  bool in_rounds() const { return graph_.problem().graph.micro_batches > 1; }
  bool play_rounds(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails);
  void find_fused(Timeline& line);
  void lay_out(Timeline& line);
  std::int64_t first_touched(const Timeline& before, const TaskGraph::Change& change,
                             const Timeline& line);
  bool keep(const Timeline& before, std::int64_t until, Timeline& line);
  void keep_owed(const Timeline& before, int old, Timeline& line, int now, int device);
  static bool give_up(Timeline& line);
  bool play(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails);
  bool play_all(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails);
  void finish_task(Timeline& line, int launch, int part, std::uint32_t task);
  void finish_hop(Timeline& line, int flow, int hop, std::uint32_t task);
  void arrive(Timeline& line, int flow, int transfer, std::int64_t end, Cause from);
  void deliver(Timeline& line, int launch, int part, std::int64_t time, Cause from);
  void serve(Timeline& line, std::uint32_t task, int device, std::int64_t exe_time);
  void start_task(Timeline& line, int launch, int part, std::uint32_t task);

  const TaskGraph& graph_;
  FusedLaunches fused_;
  UtilityProcessors utility_;
  Contention contention_;
  Rounds rounds_;
  EventHeap heap_;
  std::vector<std::int32_t> pending_;    // a task: predecessors that have not ended
  std::vector<std::int32_t> owner_;      // a task: its launch, or ~flow
  std::vector<std::int32_t> crossings_;  // a task of a launch: dependencies on other devices' tasks
  std::vector<std::int64_t> free_;       // a device: the end of its last task
  std::vector<Cause> last_;              // a device: its last task
  std::vector<std::int64_t> remaining_;  // a device: time of tasks not yet served
  std::vector<char> changed_launch_, changed_flow_;
  std::vector<std::int64_t> last_ready_;  // a memory: of the last task that was kept
  std::int64_t kept_until_ = 0;
  bool broken_ = false;  // a kept task would have come later
  std::int64_t played_ = 0;
};

}  // namespace flexlegion
