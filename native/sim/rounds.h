// The timeline of an iteration of several micro-batches (plan.h).
//
// The task graph describes one round, and what ends the iteration. Here each task and hop of the
// round is played once a round, and the rest once. Three waits join the rounds:
//
// - *Back pressure.* A tensor has b registers (ParallelConfig::buffers). Whoever writes it in round
//   j, in a memory, waits for all who used there what round j - b wrote: tasks that read it, until
//   the backward pass if that needs it, and transfers that carry it on. A transfer into a memory
//   waits for those who read there what it brought then. So b = 1 lets the second micro-batch in
//   when the first has left, and with b = p - s at stage s of p a pipeline runs "one forward, one
//   backward", without any other rule.
// - *Sums.* A contribution to a weight's gradient adds to that of the round before.
// - *The end.* Updates, and what comes before and after them, wait for all rounds. What is read
//   of every round, as the rows that were looked up in a table, travels each time; a gradient
//   travels when the last round has added to it.
//
// A device that is free takes, of the tasks that are ready, one whose turn is first
// (plan/service_order.h): "one forward, one backward" in a pipeline; of these, as ever, the one
// that was ready first. Links take what they carry in the order in which those have their turns who
// wait for it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/service_order.h"
#include "sim/contention.h"
#include "sim/timeline.h"
#include "sim/utility.h"

namespace flexlegion {

class Rounds {
 public:
  Rounds(const TaskGraph& graph, UtilityProcessors& utility, const Contention& contention)
      : graph_(graph), utility_(utility), contention_(contention) {}

  // Fills a timeline whose tasks are numbered; as Simulation::full.
  bool play(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails);
  std::int64_t played() const { return played_; }

 private:
  // A task of a round by its number there, all tasks of launches first, then hops.
  struct After {  // who waits, and how many rounds later
    int task, rounds;
  };
  struct Event {
    std::int64_t time;
    std::uint32_t what;  // a task of some round that gets ready, or, counted on, a device

    bool operator>(const Event& o) const { return time != o.time ? time > o.time : what > o.what; }
  };
  struct Ready {
    int turn;
    std::int64_t time;
    int round;
    std::uint32_t task;  // of that round

    bool operator>(const Ready& o) const {
      if (turn != o.turn) return turn > o.turn;
      return time != o.time ? time > o.time : task > o.task;
    }
  };

  void lay_out(Timeline& line);
  void find_waits(const Timeline& line);
  void find_back_pressure(const Timeline& line, int flow);
  void find_runtime_work(Timeline& line);
  void count_predecessors(const Timeline& line);
  void push(std::int64_t time, std::uint32_t what);
  void deliver(Timeline& line, int round, int task, std::int64_t time, int from);
  void start(Timeline& line, int device, const Ready& ready, std::int64_t now);
  void finish_task(Timeline& line, int round, int task);
  void finish_hop(Timeline& line, int round, int task);
  void arrive(Timeline& line, int round, int flow, int transfer, std::int64_t end, int from);
  void release(Timeline& line, int round, int task, std::int64_t end);
  int index(int round, int task) const { return round * tasks_ + task; }

  const TaskGraph& graph_;
  UtilityProcessors& utility_;
  const Contention& contention_;

  int rounds_ = 1, tasks_ = 0, launch_tasks_ = 0;  // the last two: of a round
  std::vector<int> owner_;                         // a task: its launch, or ~flow
  std::vector<int> first_round_;                   // a task: the first one that has it
  ServiceOrder order_;
  std::vector<int> visit_;  // a task: as in ServiceOrder
  std::vector<char> each_;  // a flow: whether what ends the iteration reads it of every round
  std::vector<std::pair<int, After>> pairs_;  // who is waited for, before they are sorted
  std::vector<int> first_after_;              // a task, and one more
  std::vector<After> after_;
  std::vector<std::int32_t> pending_;  // a task of each round
  std::vector<std::int32_t> crossings_;
  std::vector<Event> events_;               // a heap
  std::vector<std::vector<Ready>> queues_;  // a device, or link: a heap
  std::vector<std::int64_t> free_, remaining_;
  std::vector<int> last_;  // a device: its last task, of all rounds
  std::vector<int> woken_;
  std::vector<char> is_woken_;
  std::int64_t played_ = 0;
};

}  // namespace flexlegion
