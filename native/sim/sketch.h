// A sketch of an iteration: when each launch begins and ends, without a timeline of its tasks.
//
// Coarse phases of a search (Detail::bundles) ask which of two strategies is faster, thousands of
// times. On 64 devices, 99 of 100 tasks of a task graph are hops of transfers, many of which carry
// some bytes; and a queue of hundreds of thousands of tasks in order of time costs more than all
// else. A sketch plays a thousand launches and bundles instead:
//
// - A *launch* is served when all that its tasks wait for has been played. Each of its tasks starts
//   when it is ready and its device is free, as in a simulation.
// - A *bundle* is served when all its writers have ended. Transfers of one launch that share a
//   writer or a destination belong together, and so do those that belong together with the same
//   third one. If there are kLeastBundled of them, they are a bundle; other transfers are played
//   like one. It occupies each link that any of its transfers passes once, with the bytes of all of
//   them, and all links at the same time. It is there when the last link is done and the longest
//   latency has passed; then all who read anything of it may begin. That is less than its transfers
//   take on few links, as each of them passes them one after the other, or more, as nobody begins
//   before all have ended.
//
// Launches and bundles are served in the order of their times; a launch, when its first task is
// ready. Where an iteration has several micro-batches, a launch all of whose devices are busy is
// put off until one is free, so that one of an older micro-batch can go first; registers are given
// back launch by launch (rounds.h tells these rules for tasks).
//
// Of many micro-batches, those are played with which a pipeline fills and empties, and some between
// (find_few_rounds); the others are taken to pass as quickly as these.
//
// A simulation differs where tasks of two launches would take turns on a device. Of what the
// runtime takes there is what it adds to each task; contention is left out. A sketch's time is no
// one's price. It ranks strategies, and whoever is ranked first is simulated.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/service_order.h"
#include "sim/event_heap.h"
#include "sim/task_graph.h"
#include "sim/timeline.h"

namespace flexlegion {

class Sketch {
 public:
  explicit Sketch(const TaskGraph& graph);

  // The iteration's time in ns; kNever as soon as it is sure to take longer than `limit`. `tails`
  // as in Simulation::full. Throws std::logic_error if micro-batches wait for each other.
  std::int64_t play(std::int64_t limit = kNever, const std::vector<std::int64_t>* tails = nullptr);

  // Of the last sketch that was played to its end: the launches, and flows as ~flow, each of which
  // the one before it waited for, from the last one on.
  std::vector<int> critical_path() const;

  // Launches and bundles that were played.
  std::int64_t played() const { return played_; }

 private:
  // An event is a launch or, counted on, a bundle; round by round.
  static constexpr int kNobody = -1;
  struct Launch {
    int waits = 0;           // so many have yet to tell it
    std::int64_t ready = 0;  // of its last task
    std::int64_t end = 0;    // likewise
    int cause = kNobody;     // whom that waited for: an event
  };
  struct Bundle {
    int waits = 0;
    std::int64_t ready = 0;
    int cause = kNobody;
  };
  // In a later round, somebody waits for an event: launches and bundles are numbered as in a round.
  struct After {
    int waiting, rounds;

    bool operator<(const After& o) const {
      return waiting != o.waiting ? waiting < o.waiting : rounds < o.rounds;
    }
    bool operator==(const After& o) const { return waiting == o.waiting && rounds == o.rounds; }
  };

  // What there is to play, and who waits for whom (sim/sketch_waits.cc).
  void lay_out();
  void find_few_rounds();
  void find_rounds();
  void find_back_pressure(int flow);
  void count_waits();

  Launch& launch(int round, int l) { return launches_[round * in_round_.launches + l]; }
  Bundle& bundle(int round, int b) { return bundles_[round * in_round_.bundles + b]; }
  std::int64_t* ready_of(int round, int l) {
    return ready_.data() + round * in_round_.tasks + first_task_[l];
  }
  std::int64_t* end_of(int round, int l) {
    return end_.data() + round * in_round_.tasks + first_task_[l];
  }
  // As TaskGraph::first_told, of the rounds that are played.
  int first_told(int f, int writer, int reader) const {
    return graph_.first_told(f, writer, reader) == 0 ? 0 : rounds_ - 1;
  }
  int event_of(int round, int number) const { return round * events_in_round() + number; }
  int events_in_round() const { return in_round_.launches + in_round_.bundles; }

  void push(int round, int number, std::int64_t time);
  void push_launch(int round, int l);
  void tell(int round, int l, std::int64_t time, int from);
  void tell_bundle(int round, int b, std::int64_t time, int from);
  void release(int round, int number, std::int64_t time);
  std::int64_t put_off(int l, std::int64_t now) const;
  bool play_launch(int round, int l, std::int64_t limit, const std::vector<std::int64_t>* tails);
  void deliver(int round, int l, int flow, int slot);
  bool play_bundle(int round, int b, std::int64_t limit);
  void ended(std::int64_t time, int event);
  std::int64_t skipped_time() const;

  const TaskGraph& graph_;
  std::vector<std::int64_t> dispatch_;  // a device: what the runtime adds to a task
  // Rounds that are played; and that the time counts besides: so many times those between two that
  // have the ends `period_`, if there are any.
  int rounds_ = 1, skipped_ = 0;
  std::pair<int, int> period_;
  std::vector<std::int64_t> round_end_;  // a round: of what is in all rounds
  struct {
    int launches = 0, bundles = 0, tasks = 0;
  } in_round_;
  std::vector<int> first_task_;    // a launch
  std::vector<int> first_bundle_;  // a flow
  std::vector<int> flow_of_;       // a bundle
  std::vector<int> first_round_;   // a launch or bundle: it is in all rounds from there on
  std::vector<int> visit_;         // likewise: as in ServiceOrder
  ServiceOrder order_;
  std::vector<std::pair<int, After>> pairs_;  // by who is waited for, where there are rounds
  std::vector<int> first_after_;              // a launch or bundle: in pairs_
  std::vector<Launch> launches_;
  std::vector<Bundle> bundles_;
  std::vector<std::int64_t> ready_, end_;       // a task
  std::vector<std::int64_t> free_, remaining_;  // a device or link
  std::vector<int> last_;                       // a device or link: the event that it served last
  EventHeap heap_;
  std::int64_t time_ = 0, played_ = 0;
  int last_event_ = kNobody;
};

}  // namespace flexlegion
