// Plays a task graph launch by launch (sketch.h).
//
// Whoever waits for several is told by each of them, and the last one to tell puts it into the
// queue. Costs: one step for each task of a launch, edge between launches and hop of a bundle, and
// a logarithm for each launch and bundle.
#include "sim/sketch.h"

#include <algorithm>
#include <stdexcept>

namespace flexlegion {

std::int64_t Sketch::play(std::int64_t limit, const std::vector<std::int64_t>* tails) {
  lay_out();
  for (int j = 0; j < rounds_; ++j) {
    for (int l = 0; l < in_round_.launches; ++l) {
      if (j >= first_round_[l] && launch(j, l).waits == 0) push_launch(j, l);
    }
  }
  while (!heap_.empty()) {
    const std::int64_t now = heap_.first_time();
    const int event = static_cast<int>(heap_.pop());
    const int round = event / events_in_round(), number = event % events_in_round();
    bool within = true;
    if (number >= in_round_.launches) {
      within = play_bundle(round, number - in_round_.launches, limit);
    } else if (const std::int64_t later = put_off(number, now); later > now) {
      push(round, number, later);
      continue;
    } else {
      within = play_launch(round, number, limit, tails);
    }
    ++played_;
    if (!within || time_ > limit) return kNever;
  }
  std::int64_t all = 0;
  for (int l = 0; l < in_round_.launches; ++l) {
    if (!graph_.blocks()[l].device.empty()) all += rounds_ - first_round_[l];
  }
  for (int b = 0; b < in_round_.bundles; ++b) {
    all += rounds_ - first_round_[in_round_.launches + b];
  }
  if (played_ != all) throw std::logic_error("launches wait for each other");
  time_ += skipped_time();
  return time_ > limit ? kNever : time_;
}

std::int64_t Sketch::skipped_time() const {
  if (skipped_ == 0) return 0;
  const auto [first, last] = period_;
  return (round_end_[last] - round_end_[first]) * skipped_ / (last - first);
}

void Sketch::push(int round, int number, std::int64_t time) {
  const auto turn = static_cast<std::uint32_t>(order_.turn(visit_[number], round));
  heap_.push(time, turn, static_cast<std::uint32_t>(event_of(round, number)));
}

// All that a launch waits for has been played.
void Sketch::push_launch(int round, int l) {
  const std::size_t tasks = graph_.blocks()[l].device.size();
  if (tasks == 0) return;
  const std::int64_t* ready = ready_of(round, l);
  push(round, l, *std::min_element(ready, ready + tasks));
}

// Somebody for whom a launch waited has ended, or arrived.
void Sketch::tell(int round, int l, std::int64_t time, int from) {
  Launch& its = launch(round, l);
  if (time >= its.ready) {
    its.ready = time;
    its.cause = from;
  }
  if (--its.waits == 0) push_launch(round, l);
}

void Sketch::tell_bundle(int round, int b, std::int64_t time, int from) {
  Bundle& its = bundle(round, b);
  if (time >= its.ready) {
    its.ready = time;
    its.cause = from;
  }
  if (--its.waits == 0) push(round, in_round_.launches + b, its.ready);
}

// Tells those who wait in later rounds: all tasks of a launch.
void Sketch::release(int round, int number, std::int64_t time) {
  if (rounds_ == 1) return;
  for (int p = first_after_[number]; p < first_after_[number + 1]; ++p) {
    const After& after = pairs_[p].second;
    const int there = round + after.rounds;
    if (there >= rounds_) continue;
    if (after.waiting >= in_round_.launches) {
      tell_bundle(there, after.waiting - in_round_.launches, time, event_of(round, number));
      continue;
    }
    std::int64_t* ready = ready_of(there, after.waiting);
    const std::size_t tasks = graph_.blocks()[after.waiting].device.size();
    for (std::size_t k = 0; k < tasks; ++k) ready[k] = std::max(ready[k], time);
    tell(there, after.waiting, time, event_of(round, number));
  }
}

// When the first of a launch's devices is free, if there are rounds to choose from.
std::int64_t Sketch::put_off(int l, std::int64_t now) const {
  if (rounds_ == 1) return now;
  std::int64_t first = kNever;
  for (int device : graph_.blocks()[l].device) first = std::min(first, free_[device]);
  return first;
}

bool Sketch::play_launch(int round, int l, std::int64_t limit,
                         const std::vector<std::int64_t>* tails) {
  const Block& block = graph_.blocks()[l];
  Launch& its = launch(round, l);
  const int self = event_of(round, l);
  const std::int64_t latest = tails == nullptr ? kNever : limit - (*tails)[l];
  const std::int64_t* ready = ready_of(round, l);
  std::int64_t* end = end_of(round, l);
  int blocked_by = kNobody;
  for (std::size_t k = 0; k < block.device.size(); ++k) {
    const int device = block.device[k];
    const bool waits = free_[device] > ready[k];
    const std::int64_t start = waits ? free_[device] : ready[k];
    end[k] = start + block.exe_time[k] + dispatch_[device];
    remaining_[device] -= block.exe_time[k];
    if (start > latest || end[k] > limit - remaining_[device]) return false;
    if (end[k] > its.end) {
      its.end = end[k];
      blocked_by = waits ? last_[device] : kNobody;
    }
    free_[device] = end[k];
    last_[device] = self;
  }
  if (blocked_by != kNobody && blocked_by != self) its.cause = blocked_by;
  ended(its.end, self);
  const LaunchGraph& launch_graph = graph_.launch_graph();
  for (const auto [f, slot] : launch_graph.out_flows[l]) deliver(round, l, f, slot);
  if (const int next = launch_graph.follower_of[l]; next >= 0) {
    std::int64_t* after = ready_of(round, next);
    for (std::size_t k = 0; k < block.device.size(); ++k) after[k] = std::max(after[k], end[k]);
    tell(round, next, its.end, self);
  }
  release(round, l, its.end);
  return true;
}

// Tells those in the same memories, and bundles.
void Sketch::deliver(int round, int l, int f, int slot) {
  const FlowSketch& its = graph_.flows()[f]->sketch;
  const auto& parties = graph_.flow_ids()[f].parties;
  const std::int64_t* end = end_of(round, l);
  const std::int64_t last = launch(round, l).end;
  const std::size_t tasks = graph_.blocks()[l].device.size();
  for (int e = its.first_edges[slot]; e < its.first_edges[slot + 1]; ++e) {
    const FlowSketch::Edges& edges = its.edges[e];
    const int reader = parties[edges.reader];
    if (round < first_told(f, l, reader)) continue;
    const int there = std::max(round, first_round_[reader]);
    std::int64_t* ready = ready_of(there, reader);
    std::int64_t latest = edges.alike ? last : 0;
    for (std::size_t k = 0; edges.alike && k < tasks; ++k) ready[k] = std::max(ready[k], end[k]);
    for (int p = edges.first; p < edges.end; ++p) {
      const auto [writes, reads] = its.pairs[p];
      ready[reads] = std::max(ready[reads], end[writes]);
      latest = std::max(latest, end[writes]);
    }
    tell(there, reader, latest, event_of(round, l));
  }
  for (int b = its.first_bundle[slot]; b < its.first_bundle[slot + 1]; ++b) {
    const int number = first_bundle_[f] + b;
    if (round < first_round_[in_round_.launches + number]) continue;
    const FlowSketch::Bundle& bundle = its.bundles[b];
    std::int64_t begin = bundle.first_part == bundle.end_part ? last : 0;
    for (int p = bundle.first_part; p < bundle.end_part; ++p) {
      begin = std::max(begin, end[its.parts[p]]);
    }
    tell_bundle(round, number, begin, event_of(round, l));
  }
}

bool Sketch::play_bundle(int round, int b, std::int64_t limit) {
  const int f = flow_of_[b], self = event_of(round, in_round_.launches + b);
  const Flow& flow = *graph_.flows()[f];
  const FlowSketch::Bundle& its = flow.sketch.bundles[b - first_bundle_[f]];
  Bundle& state = bundle(round, b);
  const int devices = graph_.problem().machine.devices();
  std::int64_t last = 0;
  for (int h = its.first_hop; h < its.end_hop; ++h) {
    const Hop& hop = flow.hops[h];
    const int link = devices + hop.link;
    const bool waits = free_[link] > state.ready;
    const std::int64_t end = (waits ? free_[link] : state.ready) + hop.time;
    remaining_[link] -= hop.time;
    if (end > limit - remaining_[link]) return false;
    if (end > last) {
      last = end;
      // A route may pass a link twice. Nobody is the cause of himself, or a path never ended.
      if (waits && last_[link] != self) state.cause = last_[link];
    }
    free_[link] = end;
    last_[link] = self;
  }
  const std::int64_t arrival = last + its.latency;
  ended(arrival, self);
  const auto& parties = graph_.flow_ids()[f].parties;
  for (int r = its.first_reader; r < its.end_reader; ++r) {
    const FlowSketch::Reader& reader = flow.sketch.readers[r];
    const int launch = parties[reader.party], there = std::max(round, first_round_[launch]);
    std::int64_t* ready = ready_of(there, launch);
    if (reader.first_part == reader.end_part) {
      const std::size_t tasks = graph_.blocks()[launch].device.size();
      for (std::size_t k = 0; k < tasks; ++k) ready[k] = std::max(ready[k], arrival);
    }
    for (int p = reader.first_part; p < reader.end_part; ++p) {
      std::int64_t& its_ready = ready[flow.sketch.parts[p]];
      its_ready = std::max(its_ready, arrival);
    }
    tell(there, launch, arrival, self);
  }
  // The senders' memories are free when data have left.
  release(round, in_round_.launches + b, last);
  return true;
}

void Sketch::ended(std::int64_t time, int event) {
  const int number = event % events_in_round();
  if (first_round_[number] == 0) {
    std::int64_t& end = round_end_[event / events_in_round()];
    end = std::max(end, time);
  }
  if (time < time_) return;
  time_ = time;
  last_event_ = event;
}

// Back from what ended last, from cause to cause. Each was played before whom it is the cause of.
std::vector<int> Sketch::critical_path() const {
  std::vector<int> path;
  for (int event = last_event_; event >= 0;) {
    const int round = event / events_in_round(), number = event % events_in_round();
    if (number < in_round_.launches) {
      path.push_back(number);
      event = launches_[round * in_round_.launches + number].cause;
    } else {
      const int b = number - in_round_.launches;
      path.push_back(~flow_of_[b]);
      event = bundles_[round * in_round_.bundles + b].cause;
    }
  }
  return path;
}

}  // namespace flexlegion
