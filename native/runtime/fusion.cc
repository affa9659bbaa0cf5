#include "runtime/fusion.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

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

// What each launch waits for, by positions in the order of issue.
class Dependencies {
 public:
  Dependencies(const std::deque<RuntimeLaunch>& launches, const std::vector<int>& order)
      : words_((order.size() + kBits - 1) / kBits), awaited_(order.size(), false) {
    std::map<std::pair<int, FieldID>, std::vector<Use>> uses;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const RuntimeLaunch& launch = launches[static_cast<std::size_t>(order[i])];
      add(launch, uses);
      for (const LaunchRequirement& r : launch.requirements) {
        uses[{r.region, r.field}].push_back({i, &launch, &r});
      }
    }
  }

  // Whether both wait, at last, for the same results of other devices: then neither can start
  // before the other but for what its own device computes.
  bool wait_alike(std::size_t one, std::size_t other) const { return far_[one] == far_[other]; }

  // Whether another device needs that launch's results as soon as they are there.
  bool awaited(std::size_t position) const { return awaited_[position]; }

 private:
  static constexpr std::size_t kBits = 64;
  struct Use {
    std::size_t position;
    const RuntimeLaunch* launch;
    const LaunchRequirement* requirement;
  };

  void add(const RuntimeLaunch& launch,
           const std::map<std::pair<int, FieldID>, std::vector<Use>>& uses) {
    std::vector<std::uint64_t> far(words_, 0);
    // (task, another device) -> the last launch there that the task waits for: no earlier one
    // needs to hurry for it.
    std::map<std::pair<std::size_t, int>, std::size_t> last;
    for (const LaunchRequirement& r : launch.requirements) {
      const auto found = uses.find({r.region, r.field});
      if (found == uses.end()) continue;
      for (const Use& use : found->second) {
        bool waits = false;
        for_each_conflict(r, *use.requirement, [&](std::size_t k, std::size_t j) {
          waits = true;
          const int its = launch.devices[k], other = use.launch->devices[j];
          if (its == other) return;
          far[use.position / kBits] |= std::uint64_t{1} << (use.position % kBits);
          if (!hurries(launch, its, other)) return;
          std::size_t& latest = last[{k, other}];
          latest = std::max(latest, use.position);
        });
        if (!waits) continue;
        for (std::size_t w = 0; w < words_; ++w) far[w] |= far_[use.position][w];
      }
    }
    for (const auto& [task, position] : last) awaited_[position] = true;
    far_.push_back(std::move(far));
  }

  // Between devices of one memory, nothing is gained by an early update.
  static bool hurries(const RuntimeLaunch& waiting, int its_device, int other) {
    const auto& devices = MachineState::get().devices();
    return !waiting.closing || devices[static_cast<std::size_t>(its_device)].memory !=
                                   devices[static_cast<std::size_t>(other)].memory;
  }

  const std::size_t words_;
  // A launch -> the set of those on other devices that it waits for, and so on back.
  std::vector<std::vector<std::uint64_t>> far_;
  std::vector<bool> awaited_;
};

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

bool fusible(const RuntimeLaunch& launch) {
  return launch.side == Side::device && !MachineState::get().answers(launch.task);
}

}  // namespace

std::vector<std::vector<int>> fusible_runs(const std::deque<RuntimeLaunch>& launches,
                                           const std::vector<int>& order, std::size_t longest) {
  const Dependencies dependencies(launches, order);
  std::vector<std::vector<int>> runs;
  Union needs;        // of the last run
  bool open = false;  // whether another may join it
  for (std::size_t i = 0; i < order.size(); ++i) {
    const RuntimeLaunch& launch = launches[static_cast<std::size_t>(order[i])];
    bool joins = open && runs.back().size() < longest;
    if (joins) {
      const RuntimeLaunch& before = launches[static_cast<std::size_t>(order[i - 1])];
      joins = fusible(launch) && fusible(before) && launch.devices == before.devices &&
              !dependencies.awaited(i - 1) && dependencies.wait_alike(i - 1, i) &&
              needs.add(launch);
    }
    if (!joins) {
      runs.emplace_back();
      needs = Union();
      open = needs.add(launch);
    }
    runs.back().push_back(order[i]);
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
