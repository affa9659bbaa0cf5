// Depth-first branch and bound (exhaustive.h).
//
// A node fixes the configurations of the first operators. expand() bounds every configuration of
// the next one and keeps those whose bound is below the best time known, lowest bound first: a good
// strategy is found early, and makes the rest of the tree smaller. A leaf is simulated. When the
// best child of a level is not below the best time any more, none of its siblings is, and the level
// is done.
//
// The state of a level is its list of children and the next one's place, so that a run can stop
// when its time is up and go on later.
#include "search/exhaustive.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "search/candidates.h"

namespace flexlegion {

// Over all configurations that chains can propose, but those that sum weights' gradients inside
// nodes first, of which the bounds know nothing.
Bounds Exhaustive::bounds_of(const Problem& problem) {
  IdVector<OpId, int> groups(problem.graph.operators.size());
  std::iota(groups.begin(), groups.end(), 0);
  const Candidates candidates(problem, groups);
  std::vector<std::vector<PricedConfig>> configs;
  for (OpId op : candidates.operators()) {
    auto& its = configs.emplace_back(candidates.all(op));
    its.erase(std::remove_if(its.begin(), its.end(),
                             [](const PricedConfig& config) { return config.hierarchical; }),
              its.end());
  }
  return {problem, candidates.operators(), std::move(configs)};
}

Exhaustive::Exhaustive(const Problem& problem, const PricedStrategy& incumbent)
    : problem_(problem), bounds_(bounds_of(problem)), simulator_(problem), best_(incumbent) {
  simulator_.set(incumbent);
  best_time_ = simulator_.graph().missing_memory() == 0 ? simulator_.iteration_time() : kNever;
  levels_.resize(bounds_.operators().size());
  expand(0);
}

void Exhaustive::expand(int depth) {
  Level& level = levels_[depth];
  level.next = 0;
  level.children.clear();
  const int n = static_cast<int>(bounds_.configs(depth).size());
  for (int c = 0; c < n; ++c) {
    ++counts_.nodes;
    const std::int64_t bound = bounds_.assign(depth, c, best_time_);
    if (bound < best_time_) level.children.emplace_back(bound, c);
  }
  std::sort(level.children.begin(), level.children.end());
}

void Exhaustive::simulate() {
  ++counts_.simulated;
  PartialStrategy configs;
  const auto& held = simulator_.graph().strategy();
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    const OpId op = bounds_.operators()[i];
    // `next` was moved on when the child was entered.
    const PricedConfig& config =
        bounds_.configs(static_cast<int>(i))[levels_[i].children[levels_[i].next - 1].second];
    if (!(held[op] == config)) configs.emplace_back(op, config);
  }
  if (configs.empty()) return;
  if (simulator_.propose(configs, Algorithm::full, best_time_ - 1) == Verdict::simulated &&
      simulator_.iteration_time() < best_time_) {
    simulator_.accept();
    best_time_ = simulator_.iteration_time();
    best_ = simulator_.graph().strategy();
  } else {
    simulator_.reject();
  }
}

void Exhaustive::adopt(const PricedStrategy& strategy, std::int64_t time) {
  best_ = strategy;
  best_time_ = time;
}

bool Exhaustive::run(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const int last = static_cast<int>(levels_.size()) - 1;
  for (std::int64_t step = 0; depth_ >= 0; ++step) {
    // Looking at the clock at each step would take longer than many a step.
    if (step % 256 == 0 && seconds > 0 &&
        std::chrono::duration<double>(Clock::now() - start).count() > seconds) {
      return false;
    }
    Level& level = levels_[depth_];
    if (level.next == level.children.size() || level.children[level.next].first >= best_time_) {
      --depth_;
      continue;
    }
    const int config = level.children[level.next++].second;
    if (depth_ == last) {
      simulate();
      continue;
    }
    bounds_.place(depth_, config);
    expand(++depth_);
  }
  return true;
}

}  // namespace flexlegion
