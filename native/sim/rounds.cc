// The event loop of rounds.h.
//
// Before it begins:
// 1. lay_out(): which tasks exist in which rounds. Those that end the iteration count as the last
//    round's, and so do hops that carry what all rounds have added up.
// 2. find_waits(): which task, in a later round, waits for which. find_back_pressure() reads that
//    off each flow: an edge or transfer says who uses what a task wrote.
// 3. count_predecessors(): of each task of each round.
//
// Then time goes from event to event: a task gets ready, or a device gets free. When all events of
// a moment are known, each device that is free takes the first of its ready tasks. The end of a
// task is known when it starts, so its successors are told at once.
//
// Costs: (tasks + edges) times rounds, and a logarithm for the heaps.
#include "sim/rounds.h"

#include <algorithm>
#include <stdexcept>

#include "sim/charges.h"

namespace flexlegion {

// A task is in all rounds, or in the last one. Its visit says how urgent it is (ServiceOrder); a
// hop is as urgent as a task that waits for it.
void Rounds::lay_out(Timeline& line) {
  const auto& blocks = graph_.blocks();
  const auto& flows = graph_.flows();
  rounds_ = graph_.problem().graph.micro_batches;
  tasks_ = line.tasks / rounds_;
  launch_tasks_ = line.first_task.back();
  owner_.assign(static_cast<std::size_t>(tasks_), 0);
  user_of_.assign(static_cast<std::size_t>(tasks_), 0);
  first_round_.assign(static_cast<std::size_t>(tasks_), 0);
  visit_.assign(static_cast<std::size_t>(tasks_), 0);
  const Problem& problem = graph_.problem();
  order_ = ServiceOrder(problem.graph, [this](OpId op) -> const std::vector<int>& {
    return graph_.strategy()[op].devices;
  });
  std::vector<int> visits(blocks.size());
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    visits[l] = order_.visit(problem.graph, problem.facts, graph_.launches()[l]);
  }
  for (int l = 0; l < static_cast<int>(blocks.size()); ++l) {
    const int first = rounds_ - graph_.rounds_of(l);
    for (int t = line.first_task[l]; t < line.first_task[l + 1]; ++t) {
      owner_[t] = l;
      user_of_[t] = blocks[l].device[t - line.first_task[l]];
      first_round_[t] = first;
      visit_[t] = visits[l];
    }
  }
  for (int f = 0; f < static_cast<int>(flows.size()); ++f) {
    const Flow& flow = *flows[f];
    for (int h = 0; h < static_cast<int>(flow.hops.size()); ++h) {
      const int task = line.first_hop[f] + h;
      const Transfer& transfer = flow.transfers[flow.hops[h].transfer];
      owner_[task] = ~f;
      user_of_[task] = problem.machine.devices() + flow.hops[h].link;
      first_round_[task] = rounds_ - graph_.rounds_of(f, transfer);
      // An updated weight travels for the next iteration: nobody waits for it in this one.
      const bool awaited = transfer.first_consumer < (&transfer + 1)->first_consumer;
      if (!awaited) continue;
      const auto& reader = flow.consumers[static_cast<std::size_t>(transfer.first_consumer)];
      visit_[task] = visits[graph_.flow_ids()[f].parties[reader.party]];
    }
  }
  line.rows.of.resize(static_cast<std::size_t>(tasks_));
  for (int t = 0; t < tasks_; ++t) {
    if (first_round_[t] == 0) line.rows.of[t] = line.rows.each++;
  }
  int behind = line.rows.each;
  for (int t = 0; t < tasks_; ++t) {
    if (first_round_[t] > 0) line.rows.of[t] = behind++;
  }
}

// Lists who waits for whom across rounds, sorted by who is waited for: of task t, those in `after_`
// from first_after_[t] on. Each flow is of one of three kinds.
void Rounds::find_waits(const Timeline& line) {
  pairs_.clear();
  for (int f = 0; f < static_cast<int>(graph_.flows().size()); ++f) {
    const FlowId& id = graph_.flow_ids()[f];
    if (id.kind == FlowKind::turns) {
      // A register for what is there on demand: the first tenant of a round waits for the users of
      // the last one in an earlier round.
      const Flow& flow = *graph_.flows()[f];
      const auto task = [&](const TaskRef& at) {
        return line.first_task[id.parties[at.party]] + at.part;
      };
      for (const auto& [used, written] : flow.around) {
        pairs_.push_back({task(used), {task(written), flow.buffers}});
      }
    } else if (id.in_rounds) {
      find_back_pressure(line, f);
    } else {
      // What ends the iteration reads it. Each round's contribution adds to that of the round
      // before, so it comes later, and the last one hands over the sum. If rounds leave something
      // apart, this only keeps them in order.
      for (int slot = 0; slot < id.writers; ++slot) {
        const int launch = id.parties[slot];
        if (graph_.rounds_of(launch) < rounds_) continue;
        for (int t = line.first_task[launch]; t < line.first_task[launch + 1]; ++t) {
          pairs_.push_back({t, {t, 1}});
        }
      }
    }
  }
  // A counting sort by who is waited for.
  first_after_.assign(static_cast<std::size_t>(tasks_) + 1, 0);
  for (const auto& [task, after] : pairs_) ++first_after_[static_cast<std::size_t>(task) + 1];
  for (int t = 0; t < tasks_; ++t) first_after_[t + 1] += first_after_[t];
  after_.resize(pairs_.size());
  std::vector<int> next(first_after_.begin(), first_after_.end() - 1);
  for (const auto& [task, after] : pairs_) after_[next[task]++] = after;
}

// Who has to be done with what a round has written of a tensor before a later round writes it.
// Rounds that are `later` apart have the same buffer, in each memory: there, whoever writes it
// waits for those who used it. What came by a transfer is written by that transfer.
void Rounds::find_back_pressure(const Timeline& line, int f) {
  const Flow& flow = *graph_.flows()[f];
  const FlowId& id = graph_.flow_ids()[f];
  const int later = flow.buffers;
  if (later >= rounds_) return;
  const std::vector<int> last_use = graph_.launch_graph().last_uses(id);
  const auto ends = [&](const TaskRef& at) {
    return line.first_task[last_use[at.party]] + at.part;
  };
  std::vector<int> chain;
  for (int slot = 0; slot < id.writers; ++slot) {
    const int launch = id.parties[slot];
    for (int k = 0; k < static_cast<int>(graph_.blocks()[launch].device.size()); ++k) {
      const int mine = line.first_task[launch] + k;
      if (last_use[slot] != launch) pairs_.push_back({ends({slot, k}), {mine, later}});
      // A reader that also writes adds to what is there, and others read the sum. They use the same
      // memory, so the chain goes on with that reader.
      chain.assign(1, flow.first_writer[slot] + k);
      while (!chain.empty()) {
        const int writer = chain.back();
        chain.pop_back();
        for (int e = flow.first_edge[writer]; e < flow.first_edge[writer + 1]; ++e) {
          const TaskRef& reader = flow.edges[e];
          pairs_.push_back({ends(reader), {mine, later}});
          if (reader.party < id.writers) {
            chain.push_back(flow.first_writer[reader.party] + reader.part);
          }
        }
        // A sender's memory is free when data have left over the first hop.
        for (int t = flow.first_transfer[writer]; t < flow.first_transfer[writer + 1]; ++t) {
          pairs_.push_back({line.first_hop[f] + flow.transfers[t].first_hop, {mine, later}});
        }
      }
    }
  }
  // In the memory where it arrives, a transfer waits for those who read what it brought before.
  for (int t = 0; t < flow.transfer_count(); ++t) {
    const int hop = line.first_hop[f] + flow.transfers[t].first_hop;
    for (int c = flow.transfers[t].first_consumer; c < flow.transfers[t + 1].first_consumer; ++c) {
      pairs_.push_back({ends(flow.consumers[c]), {hop, later}});
    }
  }
}

// Of each task of each round: how many it waits for. Each wait that is counted here ends in one
// call of deliver(), so this has to agree with finish_task(), finish_hop(), arrive() and release().
// Hops behind a transfer's first one wait for the hop before them alone, which pushes them itself.
//
// Where replicas are not played, this counts what those wait for that are; and when they have been
// unfolded, of what is in the last round alone.
void Rounds::count_predecessors(const Timeline& line, bool last_alone) {
  const auto count = [&](int task, int from) {
    if (folded_ ? !is_played(task) : last_alone && first_round_[task] == 0) return;
    for (int j = from; j < rounds_; ++j) {
      ++pending_[line.entry(std::max(j, first_round_[task]), task)];
    }
  };
  const auto& blocks = graph_.blocks();
  for (int l = 0; l < static_cast<int>(blocks.size()); ++l) {
    const int backward = graph_.launch_graph().follower_of[l];
    if (backward < 0) continue;
    for (int t = line.first_task[backward]; t < line.first_task[backward + 1]; ++t) {
      count(t, first_round_[t]);
    }
  }
  // A flow's waits, from the first round in which its writer is waited for. A reader that is in the
  // last round alone has the waits for all those rounds there.
  for (int f = 0; f < static_cast<int>(graph_.flows().size()); ++f) {
    for_each_wait(line, f, [&](int, int to, int first) { count(to, first); });
  }
  for (const auto& [task, after] : pairs_) {
    count(after.task, first_round_[task] + after.rounds);
  }
}

// What the runtime has to do for all rounds, where it takes time (sim/utility.h).
void Rounds::find_runtime_work(Timeline& line) {
  const auto& blocks = graph_.blocks();
  utility_.begin();
  crossings_.assign(static_cast<std::size_t>(launch_tasks_), 0);
  for (int l = 0; l < static_cast<int>(blocks.size()); ++l) {
    for (int j = 0; j < graph_.rounds_of(l); ++j)
      utility_.count_launch(blocks[l].device, !line.runs_on[l]);
  }
  for (int f = 0; f < static_cast<int>(graph_.flows().size()); ++f) {
    graph_.for_each_crossing(f, [&](int reader, int part) {
      ++crossings_[line.first_task[reader] + part];
      for (int j = 0; j < graph_.rounds_of(reader); ++j) {
        utility_.count_crossing(blocks[reader].device[part]);
      }
    });
  }
  line.iteration_time = utility_.work();
  line.owed.assign(line.entries(), 0);
  line.runtime_time.assign(line.entries(), 0);
}

// Tells a task that a predecessor has ended, or a hop that its data can leave. The latest such time
// makes it ready, and is its cause. `from` is numbered over all rounds, and so it is kept: counted
// on from the first launch.
void Rounds::deliver(Timeline& line, int round, int task, std::int64_t time, int from) {
  if (folded_ && first_round_[task] > 0) return;  // tell_of_each_round() does
  const std::size_t at = line.entry(round, task);
  if (time > line.ready_time[at] || line.cause[at].place < 0) {
    line.ready_time[at] = time;
    line.cause[at] = {0, from};
  }
  if (--pending_[at] == 0) {
    events_.push(line.ready_time[at], static_cast<std::uint32_t>(index(round, task)));
  }
}

// Tells those who wait in later rounds.
void Rounds::release(Timeline& line, int round, int task, std::int64_t end) {
  for (int a = first_after_[task]; a < first_after_[task + 1]; ++a) {
    const After& after = after_[a];
    if (round + after.rounds >= rounds_) continue;
    deliver(line, round + after.rounds, after.task, end, index(round, task));
  }
}

// Tells all who wait for a task, as Simulation::finish_task; what is not waited for in this round
// (TaskGraph::first_told, first_round_) is not told.
void Rounds::finish_task(Timeline& line, int round, int task) {
  const int launch = owner_[task], part = task - line.first_task[launch];
  const int self = index(round, task);
  const std::int64_t end = line.end_time[line.entry(round, task)];
  const auto& blocks = graph_.blocks();
  for (const auto [f, slot] : graph_.launch_graph().out_flows[launch]) {
    const Flow& flow = *graph_.flows()[f];
    if (flow.carries_nothing()) continue;
    const FlowId& id = graph_.flow_ids()[f];
    const int writer = flow.first_writer[slot] + part;
    for (int e = flow.first_edge[writer]; e < flow.first_edge[writer + 1]; ++e) {
      const int reader = id.parties[flow.edges[e].party], its = flow.edges[e].part;
      if (round < graph_.first_told(f, launch, reader)) continue;
      std::int64_t ready = end;
      if (utility_.active()) {
        ready += utility_.wake(blocks[launch].device[part], blocks[reader].device[its]);
      }
      const int to = line.first_task[reader] + its;
      deliver(line, std::max(round, first_round_[to]), to, ready, self);
    }
    for (int t = flow.first_transfer[writer]; t < flow.first_transfer[writer + 1]; ++t) {
      const int hop = flow.transfers[t].first_hop, to = line.first_hop[f] + hop;
      if (round < first_round_[to]) continue;
      const auto& link = graph_.problem().machine.links[flow.hops[hop].link];
      deliver(line, round, to, hop_ready(link, end), self);
    }
  }
  const int backward = graph_.launch_graph().follower_of[launch];
  if (backward >= 0) deliver(line, round, line.first_task[backward] + part, end, self);
  release(line, round, task, end);
}

// Tells those who wait for a transfer.
void Rounds::arrive(Timeline& line, int round, int f, int transfer, std::int64_t end, int from) {
  const Flow& flow = *graph_.flows()[f];
  const auto& parties = graph_.flow_ids()[f].parties;
  for (int c = flow.transfers[transfer].first_consumer;
       c < flow.transfers[transfer + 1].first_consumer; ++c) {
    const int to = line.first_task[parties[flow.consumers[c].party]] + flow.consumers[c].part;
    deliver(line, std::max(round, first_round_[to]), to, end, from);
  }
}

// As Simulation::finish_hop.
void Rounds::finish_hop(Timeline& line, int round, int task) {
  const int f = ~owner_[task], hop = task - line.first_hop[f];
  const Flow& flow = *graph_.flows()[f];
  const int transfer = flow.hops[hop].transfer, self = index(round, task);
  const std::size_t at = line.entry(round, task);
  if (hop == flow.transfers[transfer].first_hop) release(line, round, task, line.end_time[at]);
  if (hop + 1 < flow.transfers[transfer + 1].first_hop) {
    const auto& link = graph_.problem().machine.links[flow.hops[hop + 1].link];
    const std::size_t next = line.entry(round, task + 1);
    line.ready_time[next] = hop_ready(link, line.start_time[at]);
    line.cause[next] = {0, self};
    events_.push(line.ready_time[next], static_cast<std::uint32_t>(self + 1));
    return;
  }
  arrive(line, round, f, transfer, line.end_time[at], self);
}

// A device takes a task that is ready.
void Rounds::start(Timeline& line, int device, const Ready& ready, std::int64_t now) {
  const int task = static_cast<int>(ready.task);
  const std::size_t at = line.entry(ready.round, task);
  line.start_time[at] = now;
  if (now > line.ready_time[at]) line.cause[at] = {0, last_[device]};
  ++played_;
  last_[device] = index(ready.round, task);
  if (owner_[task] >= 0) {
    const int launch = owner_[task], part = task - line.first_task[launch];
    const Block& block = graph_.blocks()[launch];
    remaining_[device] -= block.exe_time[part];
    line.end_time[at] = now + block.exe_time[part] + contention_.extra(block, part, now, free_);
    if (utility_.active()) {
      const bool issued = !line.runs_on[launch];
      const bool first = issued && utility_.first_there(block.device, part);
      line.runtime_time[at] = utility_.start(device, now, first, crossings_[task], free_) +
                              (issued ? utility_.dispatch(device) : 0);
      line.end_time[at] += line.runtime_time[at];
      line.owed[at] = utility_.owed(device);
    }
    free_[device] = line.end_time[at];
    finish_task(line, ready.round, task);
  } else {
    const Flow& flow = *graph_.flows()[~owner_[task]];
    const int hop = task - line.first_hop[~owner_[task]];
    remaining_[device] -= flow.hops[hop].time;
    line.end_time[at] = now + flow.hops[hop].time;
    const Transfer& transfer = flow.transfers[flow.hops[hop].transfer];
    if (hop > transfer.first_hop) {
      const std::int64_t before = line.end_time[line.entry(ready.round, task - 1)];
      line.end_time[at] = hop_end(line.end_time[at], before);
    }
    free_[device] = line.end_time[at];
    finish_hop(line, ready.round, task);
  }
  line.iteration_time = std::max(line.iteration_time, line.end_time[at]);
  events_.push(free_[device], static_cast<std::uint32_t>(line.tasks + device));
}

// Tasks that wait for nobody.
void Rounds::push_ready(const Timeline& line) {
  for (int t = 0; t < launch_tasks_; ++t) {
    if (folded_ && !is_played(t)) continue;
    for (int j = first_round_[t]; j < rounds_; ++j) {
      if (pending_[line.entry(j, t)] == 0) {
        events_.push(0, static_cast<std::uint32_t>(index(j, t)));
      }
    }
  }
}

// Puts what is known of an event into the queues. Numbers from line.tasks on are devices and links
// that get free; the others are tasks.
void Rounds::take(const Timeline& line, const Event& event) {
  int user = static_cast<int>(event.what) - line.tasks;
  if (user < 0) {
    const int round = static_cast<int>(event.what) / tasks_;
    const int task = static_cast<int>(event.what) % tasks_;
    user = user_of_[task];
    queues_[user].push(
        {order_.turn(visit_[task], round), event.time, round, static_cast<std::uint32_t>(task)});
  }
  if (!is_woken_[user]) woken_.push_back(user);
  is_woken_[user] = 1;
}

// The event loop. False: the iteration is sure to take longer than the limit.
bool Rounds::play(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails) {
  lay_out(line);
  find_waits(line);
  folded_ = find_replicas(line);
  if (folded_) line.fold = {rounds_, replicas_.rows(), replicas_.rows_of_tasks()};
  line.make_room(line.entries());
  pending_.assign(line.entries(), 0);
  count_predecessors(line, false);
  forget_times(line);
  const std::size_t users = graph_.load().size();
  free_.assign(users, 0);
  last_.assign(users, 0);
  remaining_ = graph_.load();
  queues_.resize(users);
  for (auto& queue : queues_) queue.clear();
  is_woken_.assign(users, 0);
  woken_.clear();
  events_.clear();
  played_ = unfolded_ = 0;
  if (utility_.active()) find_runtime_work(line);
  if (line.iteration_time > limit) return false;
  push_ready(line);
  while (!events_.empty()) {
    const std::int64_t now = events_.next();
    woken_.clear();
    // Devices choose after all events of this moment, in the order of their numbers: so the order
    // of events does not matter. What that adds to the moment (a link has no latency) comes next.
    events_.take(present_);
    for (const Event& event : present_) take(line, event);
    std::sort(woken_.begin(), woken_.end());
    if (folded_ && rounds_end(now) && !unfold(line, limit)) return false;
    for (int user : woken_) {
      is_woken_[user] = 0;
      auto& queue = queues_[user];
      if (queue.empty() || free_[user] > now) continue;
      const Ready ready = queue.pop();
      start(line, user, ready, now);
      // No iteration is shorter than a task's start and its tail, or than the end of what a device
      // does and what it has yet to do. Differences, as the limit may be the largest number.
      const int owner = owner_[ready.task];
      const bool late = tails != nullptr && owner >= 0 && now > limit - (*tails)[owner];
      if (late || free_[user] > limit - remaining_[user]) return false;
    }
  }
  // Tasks that wait in a circle never get ready, and the events run out without them.
  std::int64_t all_tasks = 0;
  for (int first : first_round_) all_tasks += rounds_ - first;
  if (played_ + unfolded_ != all_tasks) throw std::logic_error("micro-batches wait for each other");
  return true;
}

void Rounds::forget_times(Timeline& line) {
  std::fill_n(line.ready_time.begin(), line.entries(), 0);
  std::fill_n(line.start_time.begin(), line.entries(), 0);
  std::fill_n(line.end_time.begin(), line.entries(), 0);
  std::fill_n(line.cause.begin(), line.entries(), Cause{});
}

}  // namespace flexlegion
