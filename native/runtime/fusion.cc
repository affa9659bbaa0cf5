#include "runtime/fusion.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "plan/fusion.h"
#include "runtime/leaf_task.h"
#include "runtime/machine.h"

namespace flexlegion {

using namespace Legion;

namespace {

bool only_reads(const LaunchRequirement& r) { return r.privilege == LEGION_READ_ONLY; }

bool contains(const Rect& outer, const Rect& inner) {
  return inner.empty() || outer.bounding(inner) == outer;
}

// Tasks k of the one and j of the other that must not run at the same time.
template <typename Visit>
void for_each_conflict(const LaunchRequirement& one, const LaunchRequirement& other, Visit visit) {
  if (one.region != other.region || one.field != other.field) return;
  if (only_reads(one) && only_reads(other)) return;
  for (std::size_t k = 0; k < one.rects.size(); ++k) {
    if (one.rects[k].empty()) continue;
    for (std::size_t j = 0; j < other.rects.size(); ++j) {
      if (!other.rects[j].empty() && one.rects[k].overlaps(other.rects[j])) visit(k, j);
    }
  }
}

bool fusible(const RuntimeLaunch& launch) { return launch.side == Side::device && !launch.answers; }

// Tells the rule what each launch waits for, by positions in the order of issue.
void describe(const std::deque<RuntimeLaunch>& launches, const std::vector<int>& order,
              FusionRule& rule) {
  struct Use {
    int position;
    const RuntimeLaunch* launch;
    const LaunchRequirement* requirement;
  };
  const auto& devices = MachineState::get().devices();
  std::map<std::pair<int, FieldID>, std::vector<Use>> uses;
  rule.begin(static_cast<int>(order.size()));
  for (int i = 0; i < static_cast<int>(order.size()); ++i) {
    const RuntimeLaunch& launch =
        launches[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
    rule.add(launch.devices, fusible(launch), launch.closing);
    for (const LaunchRequirement& r : launch.requirements) {
      for (const Use& use : uses[{r.region, r.field}]) {
        for_each_conflict(r, *use.requirement, [&](std::size_t k, std::size_t j) {
          const auto its = static_cast<std::size_t>(launch.devices[k]);
          const auto other = static_cast<std::size_t>(use.launch->devices[j]);
          rule.wait(static_cast<int>(k), use.position, static_cast<int>(j),
                    devices[its].memory == devices[other].memory);
        });
      }
    }
    for (const LaunchRequirement& r : launch.requirements) {
      uses[{r.region, r.field}].push_back({i, &launch, &r});
    }
  }
  rule.end();
}

// What several launches require together, and where the requirements of each are in it.
class Union {
 public:
  // Adds a launch's; false (and all stays as it was) if its tasks would not get by with what task k
  // of the others was given, or has written.
  bool add(const RuntimeLaunch& launch) {
    const std::vector<LaunchRequirement> kept = requirements_;
    std::vector<int>& places = places_.emplace_back();
    for (const LaunchRequirement& r : launch.requirements) {
      const int place = find_or_add(r);
      if (place < 0) {
        requirements_ = kept;
        places_.pop_back();
        return false;
      }
      places.push_back(place);
    }
    return true;
  }

  const std::vector<LaunchRequirement>& requirements() const { return requirements_; }
  const std::vector<std::vector<int>>& places() const { return places_; }

 private:
  int find_or_add(const LaunchRequirement& r) {
    int with = -1;  // what it has to be one with
    for (int i = 0; i < static_cast<int>(requirements_.size()); ++i) {
      LaunchRequirement& there = requirements_[static_cast<std::size_t>(i)];
      bool conflicts = false, crosses = false;
      for_each_conflict(there, r, [&](std::size_t k, std::size_t j) {
        conflicts = true;
        crosses = crosses || k != j;
      });
      const bool same = there.region == r.region && there.field == r.field;
      if (crosses || (conflicts && with >= 0)) return -1;
      if (conflicts ||
          (same && with < 0 && only_reads(there) && only_reads(r) && there.rects == r.rects)) {
        with = i;
      }
    }
    if (with < 0) {
      requirements_.push_back(r);
      return static_cast<int>(requirements_.size()) - 1;
    }
    LaunchRequirement& there = requirements_[static_cast<std::size_t>(with)];
    if (there.rects != r.rects) {
      // An instance is as large as its writers need (RegionStore), so these have to come first.
      if (only_reads(there) || !only_reads(r)) return -1;
      for (std::size_t k = 0; k < r.rects.size(); ++k) {
        if (!contains(there.rects[k], r.rects[k])) return -1;
      }
    }
    if (only_reads(there) && !only_reads(r)) there.privilege = LEGION_READ_WRITE;
    return with;
  }

  std::vector<LaunchRequirement> requirements_;
  std::vector<std::vector<int>> places_;
};

}  // namespace

std::vector<std::vector<int>> fusible_runs(const std::deque<RuntimeLaunch>& launches,
                                           const std::vector<int>& order, int longest) {
  FusionRule rule;
  describe(launches, order, rule);
  std::vector<std::vector<int>> runs;
  Union needs;        // of the last run
  bool open = false;  // whether another may join it
  int first = 0;
  for (int i = 0; i < static_cast<int>(order.size()); ++i) {
    const int number = order[static_cast<std::size_t>(i)];
    const RuntimeLaunch& launch = launches[static_cast<std::size_t>(number)];
    if (!open || !rule.joins(i, first, longest) || !needs.add(launch)) {
      runs.emplace_back();
      needs = Union();
      open = needs.add(launch);
      first = i;
    }
    runs.back().push_back(number);
  }
  return runs;
}

RuntimeLaunch fused(const std::deque<RuntimeLaunch>& launches, const std::vector<int>& members) {
  Union needs;
  for (int member : members) needs.add(launches[static_cast<std::size_t>(member)]);
  RuntimeLaunch launch;
  launch.task = MachineState::get().task_id(kFusedTask);
  launch.devices = launches[static_cast<std::size_t>(members.front())].devices;
  launch.requirements = needs.requirements();
  for (std::size_t i = 0; i < members.size(); ++i) {
    launch.parts.push_back({members[i], needs.places()[i]});
  }
  return launch;
}

}  // namespace flexlegion
