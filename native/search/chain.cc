// One chain of the search: propose, simulate, accept or reject (chain.h has the acceptance rule).
//
// 1. Draw a change of one operator's configuration, or of several (proposals.h).
// 2. Draw the chance u, and from it the limit: the proposal is accepted exactly if its time is
//    within current - ln(u) / beta.
// 3. Ask the simulator with that limit. It answers "no" as early as it can: from the work of a
//    device or link, from the longest path, or from the simulation itself once it has passed the
//    limit.
// 4. Keep the new strategy, or restore the old one.
//
// Most proposals are rejected, and rejecting early is what makes them cheap. The order matters for
// the random numbers: u is drawn for every proposal, so the chain is the same with and without
// early rejection.
//
// A strategy that does not fit into memory has no time worth comparing. From such a start, the
// chain first goes downhill in missing bytes, and simulates from when it fits.
//
// descend() ends a search: from the best strategy it tries all configurations of each operator and
// takes each improvement, until none is left.
#include "search/chain.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace flexlegion {

namespace {

// Task graphs of this size simulate in milliseconds. From larger ones, a proposal may not go to one
// that is larger by more than half.
constexpr std::int64_t kManyTasks = 20'000;

class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds), start_(Clock::now()) {}
  bool over() const {
    return seconds_ > 0 && std::chrono::duration<double>(Clock::now() - start_).count() > seconds_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  double seconds_;
  Clock::time_point start_;
};

}  // namespace

Chain::Chain(const Problem& problem, const IdVector<OpId, int>& groups, std::uint64_t seed,
             const PricedStrategy& start, Detail detail)
    : problem_(problem), proposals_(problem, groups), random_(seed), simulator_(problem, detail) {
  adopt(start);
  if (best_.empty()) best_ = start;  // even if it does not fit
}

void Chain::adopt(const PricedStrategy& strategy) {
  simulator_.set(strategy);
  note_current();
  // Among strategies of equal time, the one that was given: it may be another chain's best.
  if (fits_ && current_time_ == best_time_) best_ = strategy;
}

void Chain::note_current() {
  simulator_.most_tasks = most_tasks();
  current_time_ = simulator_.iteration_time();
  fits_ = simulator_.graph().missing_memory() == 0;
  critical_known_ = false;
  ++changes_;
  if (fits_ && current_time_ < best_time_) {
    best_time_ = current_time_;
    best_ = simulator_.graph().strategy();
    ++counts_.improved;
  }
}

// The operators on the critical path: that of the task that ends last, of the task for which that
// one waited, and so on back to the start.
void Chain::find_critical() {
  critical_.clear();
  critical_known_ = true;
  if (simulator_.sketches()) {
    simulator_.sketch().play();
    for (int owner : simulator_.sketch().critical_path()) note_critical(owner);
    return;
  }
  const Timeline& line = simulator_.timeline();
  // Each task of the timeline knows its cause, the task whose end it waited for last.
  int task = line.last_task();
  while (task >= 0) {
    const Cause self = line.place_of(task);
    note_critical(self.owner);
    task = line.number_of(line.cause[line.entry_of(task)]);
  }
}

// A launch, or a flow as ~flow, is on the critical path.
void Chain::note_critical(int owner) {
  const TaskGraph& graph = simulator_.graph();
  if (owner >= 0) {
    const LaunchKey& key = graph.launches()[owner];
    if (!key.op.none()) critical_.push_back(key.op);
    return;
  }
  // A transfer: the operator that sends is on the path, and so, if it carries no value, are those
  // that it feeds.
  const FlowId& flow = graph.flow_ids()[~owner];
  const LaunchKey& key = graph.launches()[flow.parties.front()];
  if (flow.kind != FlowKind::value) {
    for (int fed : flow.fed) critical_.push_back(graph.launches()[fed].op);
  }
  if (!key.op.none()) critical_.push_back(key.op);
}

void Chain::run(std::int64_t proposals, double seconds, const ChainOptions& options) {
  simulator_.early_rejection = options.early_rejection;
  any_size_ = options.moves.uniform;
  simulator_.most_tasks = most_tasks();
  const Deadline deadline(seconds);
  for (std::int64_t i = 0; i < proposals && !deadline.over(); ++i) propose(options);
}

std::int64_t Chain::most_tasks() const {
  if (any_size_) return kNever;
  return std::max<std::int64_t>(kManyTasks, 3 * simulator_.graph().tasks() / 2);
}

void Chain::propose(const ChainOptions& options) {
  ++counts_.proposals;
  if (options.moves.critical && !options.moves.uniform && !critical_known_) find_critical();
  const PartialStrategy configs =
      proposals_.draw(random_, simulator_.graph().strategy(), options.moves, critical_);
  const std::int64_t scale = options.scale > 0 ? options.scale : current_time_;
  const double beta = 1.0 / (options.temperature * static_cast<double>(scale));
  const double u = random_.unit();
  const auto& strategy = simulator_.graph().strategy();
  if (std::all_of(configs.begin(), configs.end(),
                  [&](const auto& c) { return strategy[c.first] == c.second; })) {
    ++counts_.unchanged;
    return;
  }
  if (!fits_) {  // first of all, fewer bytes too many
    const std::int64_t missing = simulator_.graph().missing_memory();
    const Verdict verdict = simulator_.propose(configs, options.algorithm, kNever);
    if (verdict == Verdict::simulated) {
      simulator_.accept();
    } else if (simulator_.graph().missing_memory() < missing) {
      simulator_.keep_unsimulated();
    } else {
      simulator_.reject();
      ++counts_.out_of_memory;
      return;
    }
    ++counts_.accepted;
    note_current();
    return;
  }
  // Bounded, so that the limit stays a 64-bit number when u is almost 0.
  const double slack = std::min(-std::log(u) / beta, 1e18);
  const std::int64_t limit = current_time_ + static_cast<std::int64_t>(slack);
  switch (simulator_.propose(configs, options.algorithm, limit)) {
    case Verdict::overloaded:
      ++counts_.overloaded;
      break;
    case Verdict::overlong:
      ++counts_.overlong;
      break;
    case Verdict::too_fine:
      ++counts_.too_fine;
      break;
    case Verdict::stopped:
      ++counts_.stopped;
      break;
    case Verdict::out_of_memory:
      ++counts_.out_of_memory;
      break;
    case Verdict::simulated:
      ++counts_.simulated;
      if (simulator_.iteration_time() > limit) break;
      simulator_.accept();
      ++counts_.accepted;
      note_current();
      return;
  }
  simulator_.reject();
}

bool Chain::descend(double seconds, const DescentOptions& options) {
  simulator_.early_rejection = true;
  const Deadline deadline(seconds);
  if (best_time_ == kNever) return false;
  if (current() != best_) adopt(best_);
  if (!descent_ || !(descent_->options() == options)) descent_.emplace(candidates(), options);
  for (OpId op; !(op = descent_->next(changes_)).none();) {
    const std::vector<PricedConfig> configs = candidates().all(op);
    while (descent_->position < configs.size()) {
      if (descend_to(op, configs[descent_->position++], options.tied)) descent_->improved(op);
      if (deadline.over()) return false;  // after some progress, however short the time
    }
    descent_->tried(op);
  }
  return true;
}

bool Chain::descend_to(OpId op, const PricedConfig& config, bool tied) {
  const PartialStrategy configs = candidates().changes(op, config, tied);
  ++counts_.proposals;
  // Only an improvement counts, so anything that reaches the current time may stop early.
  if (simulator_.propose(configs, Algorithm::delta, current_time_ - 1) != Verdict::simulated ||
      simulator_.iteration_time() >= current_time_) {
    simulator_.reject();
    return false;
  }
  simulator_.accept();
  ++counts_.accepted;
  note_current();
  return true;
}

}  // namespace flexlegion
