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
//
// Groups of devices that train the same layers with other samples wait for each other only at the
// end. Until then one of such replicas is played (sim/replicas.h); the others' times are equal.
// When the first task is about to start whose end what ends the iteration waits for, in the last
// round, all replicas are put where that one is, and everything is played from there on.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/service_order.h"
#include "sim/contention.h"
#include "sim/ready_queue.h"
#include "sim/replicas.h"
#include "sim/time_queue.h"
#include "sim/timeline.h"
#include "sim/utility.h"

namespace flexlegion {

class Rounds {
 public:
  Rounds(const TaskGraph& graph, UtilityProcessors& utility, const Contention& contention)
      : graph_(graph), utility_(utility), contention_(contention) {}

  // Fills a timeline whose tasks are numbered; as Simulation::full.
  bool play(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails);
  bool folds = true;                               // replicas are played once
  std::int64_t played() const { return played_; }  // without replicas' tasks

 private:
  // A task of a round by its number there, all tasks of launches first, then hops.
  struct After {  // who waits, and how many rounds later
    int task, rounds;
  };
  // A task of some round that gets ready, or, counted on, a device.
  using Event = TimeQueue::Event;

  void lay_out(Timeline& line);
  void find_waits(const Timeline& line);
  void find_back_pressure(const Timeline& line, int flow);
  void find_runtime_work(Timeline& line);
  void count_predecessors(const Timeline& line, bool last_alone);
  void push_ready(const Timeline& line);
  void take(const Timeline& line, const Event& event);
  static void forget_times(Timeline& line);
  // body(task, who waits for it, the first round in which it is told), of a flow.
  template <typename Body>
  void for_each_wait(const Timeline& line, int f, const Body& body) const {
    const Flow& flow = *graph_.flows()[f];
    const FlowId& id = graph_.flow_ids()[f];
    const auto task = [&](const TaskRef& at) {
      return line.first_task[id.parties[at.party]] + at.part;
    };
    for (int slot = 0; slot < id.writers; ++slot) {
      const int launch = id.parties[slot];
      const int parts = static_cast<int>(graph_.blocks()[launch].device.size());
      for (int k = 0; k < parts; ++k) {
        const int writer = flow.first_writer[slot] + k, mine = line.first_task[launch] + k;
        for (int e = flow.first_edge[writer]; e < flow.first_edge[writer + 1]; ++e) {
          const int reader = id.parties[flow.edges[e].party];
          body(mine, task(flow.edges[e]), graph_.first_told(f, launch, reader));
        }
        // A transfer's first hop waits for its writer, and its readers for the last hop.
        for (int t = flow.first_transfer[writer]; t < flow.first_transfer[writer + 1]; ++t) {
          const Transfer &transfer = flow.transfers[t], &next = flow.transfers[t + 1];
          const int hop = line.first_hop[f] + transfer.first_hop;
          body(mine, hop, first_round_[hop]);
          for (int c = transfer.first_consumer; c < next.first_consumer; ++c) {
            body(line.first_hop[f] + next.first_hop - 1, task(flow.consumers[c]),
                 first_round_[hop]);
          }
        }
      }
    }
  }

  // Replicas (sim/folded_rounds.cc).
  bool find_replicas(const Timeline& line);
  void describe_tasks(const Timeline& line);
  bool rounds_end(std::int64_t now) const;
  bool unfold(Timeline& line, std::int64_t limit);
  int first_open_round(const Timeline& line);
  void unfold_times(Timeline& line, int first);
  void unfold_queues(const Timeline& line);
  bool unfold_users(std::int64_t limit);
  void tell_of_each_round(Timeline& line);
  bool is_played(int task) const {  // while replicas are not
    return first_round_[task] == 0 && replicas_.stands(task);
  }
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
  std::vector<int> user_of_;                       // a task: the device or link that serves it
  std::vector<int> first_round_;                   // a task: the first one that has it
  ServiceOrder order_;
  std::vector<int> visit_;  // a task: as in ServiceOrder
  std::vector<char> each_;  // a flow: whether what ends the iteration reads it of every round
  std::vector<std::pair<int, After>> pairs_;  // who is waited for, before they are sorted
  std::vector<int> first_after_;              // a task, and one more
  std::vector<After> after_;
  std::vector<std::int32_t> pending_;  // an entry of the timeline
  std::vector<std::int32_t> crossings_;
  TimeQueue events_;
  std::vector<Event> present_;      // events of the moment
  std::vector<ReadyQueue> queues_;  // a device, or link
  std::vector<std::int64_t> free_, remaining_;
  std::vector<int> last_;  // a device: its last task, of all rounds
  std::vector<int> woken_;
  std::vector<char> is_woken_;
  std::int64_t played_ = 0, unfolded_ = 0;  // tasks; of replicas, that were not played
  Replicas replicas_;
  bool folded_ = false;            // replicas are not played
  std::vector<char> ends_rounds_;  // a row: what ends the iteration waits for one of its tasks
};

}  // namespace flexlegion
