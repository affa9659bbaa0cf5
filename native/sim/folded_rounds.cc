// Rounds of which one of several replicas is played (rounds.h, replicas.h).
//
// find_replicas() describes the tasks of a round, and who waits for whom, of what is in every
// round. Then play() has the timeline hold times of a share of the tasks.
//
// unfold() comes before the first task starts that ends a replica's rounds: whose end something
// waits for that is in the last round alone. From there on replicas have links in common. So
// 1. of the rounds in which all tasks have started, the times stay as they are, one for all
//    replicas; of the others, each replica gets its own;
// 2. queues, and events to come, are put in place for the users of each replica;
// 3. what ends the iteration learns how many it waits for, and what earlier rounds have told it.
//
// Costs: one walk over the tasks and waits of a round each, and over the times of rounds that are
// under way, which are as many as there are registers.
#include <algorithm>
#include <functional>

#include "sim/rounds.h"

namespace flexlegion {

namespace {

// Of fewer rounds, looking for replicas costs more than it saves.
constexpr int kLeastRounds = 4;

}  // namespace

// False: everything is played, as there are no replicas, or what they take depends on neighbours.
bool Rounds::find_replicas(const Timeline& line) {
  const Problem& problem = graph_.problem();
  if (!folds || rounds_ < kLeastRounds || utility_.active() || problem.costs.contended)
    return false;
  std::vector<int> users = user_of_;
  for (int t = 0; t < tasks_; ++t) {
    if (first_round_[t] > 0) users[t] = Replicas::kNoUser;
  }
  replicas_.begin(users, static_cast<int>(graph_.load().size()));
  const auto each_wait = [&](const auto& body) {
    for (int f = 0; f < static_cast<int>(graph_.flows().size()); ++f) {
      for_each_wait(line, f, body);
    }
  };
  each_wait([&](int from, int to, int) { replicas_.join(from, to); });
  for (const auto& [task, after] : pairs_) replicas_.join(task, after.task);
  for (int f = 0; f < static_cast<int>(graph_.flows().size()); ++f) {
    const Flow& flow = *graph_.flows()[f];
    for (std::size_t h = 0; h < flow.hops.size(); ++h) {
      const int hop = line.first_hop[f] + static_cast<int>(h);
      replicas_.join(hop, line.first_hop[f] + flow.transfers[flow.hops[h].transfer].first_hop);
    }
  }
  if (!replicas_.separate()) return false;
  describe_tasks(line);
  each_wait([&](int from, int to, int first) { replicas_.waits(from, to, {0, first}); });
  for (const auto& [task, after] : pairs_) replicas_.waits(task, after.task, {1, after.rounds});
  replicas_.compare();
  const auto in_rounds = std::count(first_round_.begin(), first_round_.end(), 0);
  if (2 * replicas_.rows() > in_rounds) return false;
  // Who waits for nobody has to begin at once, whenever it is that the rounds end.
  std::vector<char> waits(static_cast<std::size_t>(tasks_), 0);
  ends_rounds_.assign(static_cast<std::size_t>(replicas_.rows()), 0);
  each_wait([&](int from, int to, int) {
    waits[to] = 1;
    if (first_round_[to] > 0 && first_round_[from] == 0) {
      ends_rounds_[replicas_.rows_of_tasks()[from]] = 1;
    }
  });
  for (int t = 0; t < launch_tasks_; ++t) {
    if (first_round_[t] > 0 && !waits[t]) return false;
  }
  return true;
}

void Rounds::describe_tasks(const Timeline& line) {
  const auto& blocks = graph_.blocks();
  for (int l = 0; l < static_cast<int>(blocks.size()); ++l) {
    const int backward = graph_.launch_graph().follower_of[l];
    for (int k = 0; k < static_cast<int>(blocks[l].device.size()); ++k) {
      const int task = line.first_task[l] + k;
      replicas_.describe(task, {l, blocks[l].exe_time[k], visit_[task]});
      if (backward >= 0) replicas_.waits(task, line.first_task[backward] + k, {2});
    }
  }
  for (int f = 0; f < static_cast<int>(graph_.flows().size()); ++f) {
    const Flow& flow = *graph_.flows()[f];
    for (int h = 0; h < static_cast<int>(flow.hops.size()); ++h) {
      const int task = line.first_hop[f] + h;
      const int place = h - flow.transfers[flow.hops[h].transfer].first_hop;
      replicas_.describe(task, {~f, flow.hops[h].time, visit_[task], place});
    }
  }
  const MachineModel& machine = graph_.problem().machine;
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    replicas_.describe_user(machine.devices() + static_cast<int>(i), {machine.links[i].latency});
  }
}

// Whether a device is about to start a task that ends the rounds.
bool Rounds::rounds_end(std::int64_t now) const {
  return std::any_of(woken_.begin(), woken_.end(), [&](int user) {
    const auto& queue = queues_[user];
    if (queue.empty() || free_[user] > now || queue.front().round + 1 < rounds_) return false;
    return ends_rounds_[replicas_.rows_of_tasks()[queue.front().task]] != 0;
  });
}

// False: the iteration is sure to take longer than the limit.
bool Rounds::unfold(Timeline& line, std::int64_t limit) {
  folded_ = false;
  unfold_times(line, first_open_round(line));
  unfold_queues(line);
  count_predecessors(line, true);
  tell_of_each_round(line);
  return unfold_users(limit);
}

// The first round in which some task has not started. Counts the tasks of the others that have.
int Rounds::first_open_round(const Timeline& line) {
  int first = rounds_;
  std::vector<std::int64_t> started(static_cast<std::size_t>(replicas_.components()), 0);
  for (int c = 0; c < replicas_.components(); ++c) {
    if (replicas_.like(c) != c) {
      unfolded_ += started[replicas_.like(c)];  // which has a lower number
      continue;
    }
    for (int round = 0; round < rounds_; ++round) {
      for (const int* task = replicas_.begin_of(c); task != replicas_.end_of(c); ++task) {
        if (line.end_time[line.entry(round, *task)] > 0) {
          ++started[c];
        } else {
          first = std::min(first, round);
        }
      }
    }
  }
  return first;
}

// Gives each replica times of its own from round `first` on.
void Rounds::unfold_times(Timeline& line, int first) {
  const Fold before = line.fold;
  line.fold.rounds = first;
  const std::size_t entries = line.entries();
  const auto spread = [&](auto& values, const auto& twin_of) {
    std::decay_t<decltype(values)> all(entries);
    auto its = values.begin() + static_cast<std::ptrdiff_t>(first) * before.each;
    std::copy(values.begin(), its, all.begin());
    for (int round = first; round < rounds_; ++round) {
      for (int task = 0; task < tasks_; ++task) {
        if (first_round_[task] > 0) continue;
        all[line.entry(round, task)] = twin_of(task, its[before.of[task]]);
      }
      its += before.each;
    }
    values = std::move(all);
  };
  const auto same = [](int, auto value) { return value; };
  spread(line.ready_time, same);
  spread(line.start_time, same);
  spread(line.end_time, same);
  spread(pending_, same);
  spread(line.cause, [&](int task, Cause its) {
    if (its.place < 0) return its;
    const int round = its.place / tasks_, from = its.place % tasks_;
    const int twin = replicas_.twin(from, replicas_.component_of_task(task));
    return Cause{0, index(round, twin)};
  });
}

// What waits for a replica's users waits for their twins as well.
void Rounds::unfold_queues(const Timeline& line) {
  std::vector<std::vector<int>> others(static_cast<std::size_t>(replicas_.components()));
  for (int c = 0; c < replicas_.components(); ++c) {
    if (replicas_.like(c) != c) others[replicas_.like(c)].push_back(c);
  }
  const auto others_of = [&](int user) -> const std::vector<int>& {
    return others[replicas_.component_of_user(user)];
  };
  std::vector<Event> more;
  events_.for_each([&](const Event& event) {
    const int user = static_cast<int>(event.what) - line.tasks;
    if (user >= 0) {
      for (int c : others_of(user)) {
        const int twin = line.tasks + replicas_.twin_user(user, c);
        more.push_back({event.time, static_cast<std::uint32_t>(twin)});
      }
      return;
    }
    const int number = static_cast<int>(event.what), round = number / tasks_;
    const int task = number % tasks_;
    for (int c : others[replicas_.component_of_task(task)]) {
      const int twin = index(round, replicas_.twin(task, c));
      more.push_back({event.time, static_cast<std::uint32_t>(twin)});
    }
  });
  for (const Event& event : more) events_.push(event.time, event.what);
  const std::size_t woken = woken_.size();
  for (std::size_t i = 0; i < woken; ++i) {
    for (int c : others_of(woken_[i])) {
      woken_.push_back(replicas_.twin_user(woken_[i], c));
      is_woken_[woken_.back()] = 1;
    }
  }
  std::sort(woken_.begin(), woken_.end());
  for (int user = 0; user < static_cast<int>(queues_.size()); ++user) {
    const int component = replicas_.component_of_user(user);
    if (component == Replicas::kNoUser || replicas_.like(component) != component) continue;
    for (int c : others[component]) {
      auto& queue = queues_[replicas_.twin_user(user, c)];
      queue = queues_[user];
      queue.for_each([&](Ready& its) {
        its.task = static_cast<std::uint32_t>(replicas_.twin(static_cast<int>(its.task), c));
      });
    }
  }
}

// As free as the users whose twins they are. False: one of them is sure to exceed the limit.
bool Rounds::unfold_users(std::int64_t limit) {
  for (int user = 0; user < static_cast<int>(free_.size()); ++user) {
    const int component = replicas_.component_of_user(user);
    if (component == Replicas::kNoUser || replicas_.like(component) == component) continue;
    const int twin = replicas_.twin_user(user, replicas_.like(component));
    free_[user] = free_[twin];
    if (free_[user] == 0) continue;  // nothing was there
    last_[user] = index(last_[twin] / tasks_, replicas_.twin(last_[twin] % tasks_, component));
    remaining_[user] -= graph_.load()[twin] - remaining_[twin];
    if (free_[user] > limit - remaining_[user]) return false;
  }
  return true;
}

// What is read of every round is told of every round to those who end the iteration. Until now,
// nobody was.
void Rounds::tell_of_each_round(Timeline& line) {
  for (int f = 0; f < static_cast<int>(graph_.flows().size()); ++f) {
    if (!graph_.flow_ids()[f].of_each_round) continue;
    for_each_wait(line, f, [&](int from, int to, int first) {
      if (first_round_[from] > 0 || first_round_[to] == 0) return;
      for (int round = first; round + 1 < rounds_; ++round) {
        const std::int64_t end = line.end_time[line.entry(round, from)];
        if (end > 0) deliver(line, std::max(round, first_round_[to]), to, end, index(round, from));
      }
    });
  }
}

}  // namespace flexlegion
