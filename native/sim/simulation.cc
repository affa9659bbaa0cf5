// The full and the delta simulation algorithm (FlexFlow, sections 5.2 and 5.3).
//
// Full: a discrete event simulation. A task is ready when its last predecessor has ended. Ready
// tasks wait in a heap by (ready time, number). The least is taken out, starts when it is ready and
// its device is free, and its end is delivered to its successors. Links are devices, and hops are
// their tasks. It costs O(T log T) for T tasks and hops.
//
// Delta: a proposal changes few blocks and flows, and nothing before the first moment that these
// can show is touched. That part of the old timeline is copied, and the event loop goes on from
// there. FlexFlow propagates changes task by task and stops where times agree again. On one queue
// in order of time a common past is simpler, and is found by comparing numbers. The present can
// contradict the copied past (a task may now be ready earlier), and then all is played again. So
// both algorithms give the same timeline.
//
// Beyond the paper:
// - Neighbours slow each other down (contention.h), and the runtime takes time of its own
//   (utility.h).
// - Early rejection: with a limit, the simulation stops once some device's end and the work that it
//   has yet to do exceed the limit, or the start of a task and its tail do.
//
// Ties are broken by the number of the task, which depends on the strategy alone. So the result
// never depends on the order of a container.
#include "sim/simulation.h"

#include <algorithm>

#include "sim/charges.h"

namespace flexlegion {

namespace {

// Added to the predecessors of a task that has its times already, so that it never becomes ready.
constexpr std::int32_t kKept = 1 << 30;

}  // namespace

// Task numbers, predecessors, loads: everything before the first event.
void Simulation::lay_out(Timeline& line) {
  const auto& blocks = graph_.blocks();
  const auto& flows = graph_.flows();
  line.number(graph_);
  line.make_room(line.entries());
  const auto normal = static_cast<std::size_t>(line.first_task.back());
  const auto tasks = static_cast<std::size_t>(line.tasks);
  if (owner_.size() < tasks) owner_.resize(tasks);
  // Of launches' tasks only: a hop has one predecessor, which sets its times before they are read.
  std::fill_n(line.ready_time.begin(), normal, 0);
  std::fill_n(line.cause.begin(), normal, Cause{});
  pending_.assign(normal, 0);
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    std::fill(owner_.begin() + line.first_task[l], owner_.begin() + line.first_task[l + 1],
              static_cast<std::int32_t>(l));
    const int backward = graph_.launch_graph().follower_of[l];
    if (backward < 0) continue;
    for (int t = line.first_task[backward]; t < line.first_task[backward + 1]; ++t) ++pending_[t];
  }
  for (std::size_t f = 0; f < flows.size(); ++f) {
    std::fill(owner_.begin() + line.first_hop[f], owner_.begin() + line.first_hop[f + 1],
              ~static_cast<std::int32_t>(f));
    const auto& parties = graph_.flow_ids()[f].parties;
    for (const auto* readers : {&flows[f]->edges, &flows[f]->consumers}) {
      for (const TaskRef& to : *readers) {
        ++pending_[line.first_task[parties[to.party]] + to.part];
      }
    }
  }
  free_.assign(graph_.load().size(), 0);
  last_.assign(graph_.load().size(), Cause{});
  // What each device has yet to do: if a device's last end and this exceed the limit, the
  // simulation is over.
  remaining_ = graph_.load();
  if (utility_.active()) {
    utility_.begin();
    for (std::size_t l = 0; l < blocks.size(); ++l) {
      utility_.count_launch(blocks[l].device, !line.runs_on[l]);
    }
    crossings_.assign(normal, 0);
    for (int f = 0; f < static_cast<int>(flows.size()); ++f) {
      graph_.for_each_crossing(f, [&](int reader, int part) {
        ++crossings_[line.first_task[reader] + part];
        utility_.count_crossing(blocks[reader].device[part]);
      });
    }
    // Launches are issued iterations ahead. Where issuing takes longer than all else, all else
    // waits for it.
    line.iteration_time = utility_.work();
    last_ready_.assign(static_cast<std::size_t>(graph_.problem().machine.memories), -1);
    if (line.owed.size() < normal) {
      line.owed.resize(normal);
      line.runtime_time.resize(normal);
    }
  }
  heap_.clear();
  kept_until_ = 0;
  broken_ = false;
  played_ = 0;
}

// Which launches are issued together with the one before them, and so take no launch time of their
// own. Where the runtime takes no time on any device, nobody needs to know.
void Simulation::find_fused(Timeline& line) {
  if (utility_.active()) {
    fused_.find(line.runs_on);
  } else {
    line.runs_on.assign(graph_.blocks().size(), 0);
  }
}

void Simulation::deliver(Timeline& line, int launch, int part, std::int64_t time, Cause from) {
  const auto task = static_cast<std::uint32_t>(line.first_task[launch] + part);
  // Kept tasks have their causes already, and no predecessor ends later than they are ready.
  if (time > line.ready_time[task] || line.cause[task].place < 0) {
    line.ready_time[task] = time;
    line.cause[task] = from;
  }
  if (--pending_[task] > 0) return;
  // What is kept never comes here, see kKept.
  if (line.ready_time[task] < kept_until_) broken_ = true;
  heap_.push(line.ready_time[task], task);
}

// Tells who waits for a task that it has ended: readers in the same memory, transfers' first hops,
// and the task that follows it.
void Simulation::finish_task(Timeline& line, int launch, int part, std::uint32_t task) {
  const std::int64_t end = line.end_time[task];
  const Cause self{launch, part};
  for (const auto [f, slot] : graph_.launch_graph().out_flows[launch]) {
    const Flow& flow = *graph_.flows()[f];
    if (flow.carries_nothing()) continue;
    const int writer = flow.first_writer[slot] + part;
    const auto& parties = graph_.flow_ids()[f].parties;
    for (int e = flow.first_edge[writer]; e < flow.first_edge[writer + 1]; ++e) {
      const int reader = parties[flow.edges[e].party], its = flow.edges[e].part;
      std::int64_t ready = end;
      if (utility_.active()) {
        ready += utility_.wake(graph_.blocks()[launch].device[part],
                               graph_.blocks()[reader].device[its]);
      }
      deliver(line, reader, its, ready, self);
    }
    for (int t = flow.first_transfer[writer]; t < flow.first_transfer[writer + 1]; ++t) {
      const int hop = flow.transfers[t].first_hop;
      const std::int64_t ready =
          hop_ready(graph_.problem().machine.links[flow.hops[hop].link], end);
      const auto number = static_cast<std::uint32_t>(line.first_hop[f] + hop);
      // A hop that was ready before is kept, and has its times.
      if (ready < kept_until_) continue;
      line.ready_time[number] = ready;
      line.cause[number] = self;
      heap_.push(ready, number);
    }
  }
  const int backward = graph_.launch_graph().follower_of[launch];
  if (backward >= 0) deliver(line, backward, part, end, self);
}

// Tells who waits for a transfer that it is there.
void Simulation::arrive(Timeline& line, int f, int transfer, std::int64_t end, Cause from) {
  const Flow& flow = *graph_.flows()[f];
  const auto& parties = graph_.flow_ids()[f].parties;
  for (int c = flow.transfers[transfer].first_consumer;
       c < flow.transfers[transfer + 1].first_consumer; ++c) {
    deliver(line, parties[flow.consumers[c].party], flow.consumers[c].part, end, from);
  }
}

// A hop that begins lets the next one begin. The last one's end is the arrival, for which consumers
// wait.
void Simulation::finish_hop(Timeline& line, int f, int hop, std::uint32_t task) {
  const Flow& flow = *graph_.flows()[f];
  const int transfer = flow.hops[hop].transfer;
  const Cause self{~f, hop};
  if (hop + 1 < flow.transfers[transfer + 1].first_hop) {
    const std::int64_t ready =
        hop_ready(graph_.problem().machine.links[flow.hops[hop + 1].link], line.start_time[task]);
    if (ready < kept_until_) return;
    line.ready_time[task + 1] = ready;
    line.cause[task + 1] = self;
    heap_.push(ready, task + 1);
    return;
  }
  arrive(line, f, transfer, line.end_time[task], self);
}

// When a device takes the task: when it is ready, or else when the device's last task has ended,
// which is then the cause.
void Simulation::serve(Timeline& line, std::uint32_t task, int device, std::int64_t exe_time) {
  std::int64_t start = line.ready_time[task];
  if (free_[device] > start) {
    start = free_[device];
    line.cause[task] = last_[device];
  }
  line.start_time[task] = start;
  line.end_time[task] = start + exe_time;
  remaining_[device] -= exe_time;
}

// The same, with what busy neighbours and the runtime take. Loads of task graphs and bounds leave
// that out: it is never negative.
void Simulation::start_task(Timeline& line, int launch, int part, std::uint32_t task) {
  const Block& block = graph_.blocks()[launch];
  const int device = block.device[part];
  serve(line, task, device, block.exe_time[part]);
  const std::int64_t start = line.start_time[task];
  line.end_time[task] += contention_.extra(block, part, start, free_);
  if (!utility_.active()) return;
  const bool issued = !line.runs_on[launch];
  const bool first = issued && utility_.first_there(block.device, part);
  std::int64_t& its = line.runtime_time[task];
  its = utility_.start(device, start, first, crossings_[task], free_) +
        (issued ? utility_.dispatch(device) : 0);
  line.end_time[task] += its;
  line.owed[task] = utility_.owed(device);
}

// It is sure to take longer than anybody wants to know.
bool Simulation::give_up(Timeline& line) {
  line.iteration_time = kNever;
  return false;
}

// The event loop. No successor is ready before its predecessor is (times are at least 1 ns, and a
// hop that follows another comes later in the order of tasks), so taking tasks from one queue
// serves each device in its order.
bool Simulation::play(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails) {
  const int devices = graph_.problem().machine.devices();
  while (!heap_.empty()) {
    const std::uint32_t task = heap_.pop();
    ++played_;
    const std::int32_t owner = owner_[task];
    int device;
    if (owner >= 0) {
      const int part = static_cast<int>(task) - line.first_task[owner];
      const Block& block = graph_.blocks()[owner];
      device = block.device[part];
      start_task(line, owner, part, task);
      // As a difference, since the limit may be the largest number there is.
      if (tails != nullptr && line.start_time[task] > limit - (*tails)[owner]) {
        return give_up(line);
      }
      finish_task(line, owner, part, task);
    } else {
      const int hop = static_cast<int>(task) - line.first_hop[~owner];
      const Flow& flow = *graph_.flows()[~owner];
      const Transfer& transfer = flow.transfers[flow.hops[hop].transfer];
      device = devices + flow.hops[hop].link;
      serve(line, task, device, flow.hops[hop].time);
      const bool follows = hop > transfer.first_hop;
      if (follows) line.end_time[task] = hop_end(line.end_time[task], line.end_time[task - 1]);
      finish_hop(line, ~owner, hop, task);
    }
    free_[device] = line.end_time[task];
    last_[device] = owner >= 0 ? Cause{owner, static_cast<int>(task) - line.first_task[owner]}
                               : Cause{owner, static_cast<int>(task) - line.first_hop[~owner]};
    if (line.end_time[task] > line.iteration_time) line.iteration_time = line.end_time[task];
    if (line.end_time[task] > limit - remaining_[device]) {
      return give_up(line);
    }
  }
  line.played = played_;
  return true;
}

// Which launches are fused comes first: it decides what the runtime takes for each task.
bool Simulation::full(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails) {
  find_fused(line);
  if (in_rounds()) return play_rounds(line, limit, tails);
  lay_out(line);
  return play_all(line, limit, tails);
}

// Several micro-batches are played anew for every proposal: the rounds that follow the first touch
// of a change are all but one, mostly.
bool Simulation::play_rounds(Timeline& line, std::int64_t limit,
                             const std::vector<std::int64_t>* tails) {
  line.number(graph_);
  const bool whole = rounds_.play(line, limit, tails);
  line.played = played_ = rounds_.played();
  return whole || give_up(line);
}

// From tasks that wait for nobody, at time 0.
bool Simulation::play_all(Timeline& line, std::int64_t limit,
                          const std::vector<std::int64_t>* tails) {
  if (line.iteration_time > limit) return give_up(line);
  for (int task = 0; task < line.first_task.back(); ++task) {
    if (pending_[task] == 0) heap_.push(0, static_cast<std::uint32_t>(task));
  }
  return play(line, limit, tails);
}

// The earliest time at which the timelines before and after the change can differ.
std::int64_t Simulation::first_touched(const Timeline& before, const TaskGraph::Change& change,
                                       const Timeline& line) {
  changed_launch_.assign(graph_.blocks().size(), 0);
  changed_flow_.assign(graph_.flows().size(), 0);
  for (const auto& [l, block] : change.blocks) changed_launch_[l] = 1;
  for (const auto& [f, flow] : change.flows) changed_flow_[f] = 1;
  std::int64_t first = kNever;
  for (const auto& [l, block] : change.blocks) {
    const int task = before.first_task[l];
    for (std::size_t k = 0; k < block.device.size(); ++k) {
      first = std::min(first, before.ready_time[static_cast<std::size_t>(task) + k]);
    }
  }
  for (std::size_t l = 0; l < line.runs_on.size(); ++l) {
    if (line.runs_on[l] == before.runs_on[l]) continue;
    for (int task = before.first_task[l]; task < before.first_task[l + 1]; ++task) {
      first = std::min(first, before.ready_time[task]);
    }
  }
  for (const auto& [f, flow] : change.flows) {
    const FlowId& id = graph_.flow_ids()[f];
    for (int w = 0; w < id.writers; ++w) {
      const int l = id.parties[w];
      if (changed_launch_[l]) continue;
      for (int task = before.first_task[l]; task < before.first_task[l + 1]; ++task) {
        // A writer that stays as it was shows the change when it ends: only then its successors
        // hear of it.
        first = std::min(first, before.end_time[task]);
      }
    }
  }
  return first;
}

// What a memory's utility processor has to do is what it had after the last task there that stands:
// they were served in the order of ready times, then of numbers, in which this is called.
void Simulation::keep_owed(const Timeline& before, int old, Timeline& line, int now, int device) {
  line.owed[now] = before.owed[old];
  line.runtime_time[now] = before.runtime_time[old];
  std::int64_t& last = last_ready_[graph_.problem().machine.memory_of[device]];
  if (line.ready_time[now] < last) return;
  last = line.ready_time[now];
  utility_.set_owed(device, line.owed[now]);
}

// Takes over from the timeline before the change what happened before `until`, the first moment at
// which the change can show; `play` then goes on from there.
//
// 1. Tasks and hops that were ready before `until` get the times that they had. Their devices are
//    free from the end of the last of them. kKept, added to a task's count of predecessors, marks
//    it.
// 2. Their successors are told, as when they are played, and count one predecessor less.
//
// False, and everything has to be played again, if the new graph contradicts what was taken over: a
// task that has no predecessors any more could have started earlier, or a kept one still has a
// predecessor that was not kept.
bool Simulation::keep(const Timeline& before, std::int64_t until, Timeline& line) {
  const auto& blocks = graph_.blocks();
  const auto& flows = graph_.flows();
  kept_until_ = until;
  const auto copy = [&](int old, int now, int device, std::int64_t exe_time, Cause self) {
    line.ready_time[now] = before.ready_time[old];
    line.start_time[now] = before.start_time[old];
    line.end_time[now] = before.end_time[old];
    line.cause[now] = before.cause[old];
    line.iteration_time = std::max(line.iteration_time, line.end_time[now]);
    remaining_[device] -= exe_time;
    if (line.end_time[now] > free_[device]) {
      free_[device] = line.end_time[now];
      last_[device] = self;
    }
  };
  // First the times of all hops and tasks that stand, then what follows from them.
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    if (changed_launch_[l]) continue;
    for (std::size_t k = 0; k < blocks[l].device.size(); ++k) {
      const int old = before.first_task[l] + static_cast<int>(k);
      if (before.ready_time[old] >= until) continue;
      const int now = line.first_task[l] + static_cast<int>(k);
      copy(old, now, blocks[l].device[k], blocks[l].exe_time[k],
           {static_cast<int>(l), static_cast<int>(k)});
      pending_[now] += kKept;
      if (utility_.active()) keep_owed(before, old, line, now, blocks[l].device[k]);
    }
  }
  const int devices = graph_.problem().machine.devices();
  for (std::size_t f = 0; f < flows.size(); ++f) {
    if (changed_flow_[f]) continue;
    for (std::size_t h = 0; h < flows[f]->hops.size(); ++h) {
      const int old = before.first_hop[f] + static_cast<int>(h);
      if (before.ready_time[old] >= until) continue;
      copy(old, line.first_hop[f] + static_cast<int>(h), devices + flows[f]->hops[h].link,
           flows[f]->hops[h].time, {~static_cast<int>(f), static_cast<int>(h)});
    }
  }
  for (int task = 0; task < line.first_task.back(); ++task) {
    if (pending_[task] == 0) return false;  // it would have come first
  }
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    for (std::size_t k = 0; k < blocks[l].device.size(); ++k) {
      const int now = line.first_task[l] + static_cast<int>(k);
      if (pending_[now] < kKept / 2) continue;
      finish_task(line, static_cast<int>(l), static_cast<int>(k), static_cast<std::uint32_t>(now));
    }
  }
  for (std::size_t f = 0; f < flows.size(); ++f) {
    if (changed_flow_[f]) continue;
    for (std::size_t h = 0; h < flows[f]->hops.size(); ++h) {
      const int hop = static_cast<int>(h);
      if (before.ready_time[before.first_hop[f] + hop] >= until) continue;
      finish_hop(line, static_cast<int>(f), hop,
                 static_cast<std::uint32_t>(line.first_hop[f] + hop));
    }
  }
  // A kept task with a predecessor that is yet to be played would come later, too.
  for (int task = 0; task < line.first_task.back(); ++task) {
    if (pending_[task] > kKept) return false;
  }
  return !broken_;
}

// Takes over what the change cannot have touched, if anything, and plays the rest.
bool Simulation::delta(const Timeline& before, const TaskGraph::Change& change, Timeline& line,
                       std::int64_t limit, const std::vector<std::int64_t>* tails) {
  find_fused(line);
  if (in_rounds()) return play_rounds(line, limit, tails);
  lay_out(line);
  const std::int64_t until = first_touched(before, change, line);
  // A change that shows at once leaves nothing to keep.
  if (until <= 0 || until == kNever) return play_all(line, limit, tails);
  if (line.iteration_time > limit) return give_up(line);
  if (keep(before, until, line)) return play(line, limit, tails);
  lay_out(line);
  return play_all(line, limit, tails);
}

}  // namespace flexlegion
