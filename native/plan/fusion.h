// Which launches are fused: where consecutive launches have their tasks on the same devices, one
// Legion task a device can run task k of each, one after another. The runtime does it
// (runtime/fusion.h), and the simulator, which charges a launch's time once a run, foresees it.
//
// No task waits for that: launches become one only if they wait for the same results of other
// devices, and none joins after one whose results another device awaits. Nor does memory grow by
// it: a launch joins only if its tasks get by with what those before them were given.
//
// Both tell the same rule of the same things. The runtime has the launches' requirements and finds
// in them who waits for whom (fused_runs); the simulator, whose launches change with every
// proposal, knows it from its flows (sim/fused_launches.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace flexlegion {

// Whether a launch has an answer for the host. It cannot be fused then: launches that compute a
// loss, and the one that tells whether scaled gradients are finite.
bool answers(const Graph& graph, const Optimizer& optimizer, const LaunchKey& key);

// Is told of one launch after another, in the order of issue, by position from 0.
class FusionRule {
 public:
  // With `rounds`, of several micro-batches: what ends the iteration is issued once, after the
  // last.
  void begin(int launches, bool rounds = false);

  // The next launch. Its tasks' `devices` have to live as long as the rule is asked.
  void add(const std::vector<int>& devices, bool fusible, bool closing);
  // Task k of the launch that was added last waits for task j of the one at `before`; whether their
  // devices share a memory.
  void wait(int k, int before, int j, bool one_memory);
  // The launch that was added last and the one at `before` cannot be of one run.
  void set_apart(int before);
  // There are no more.
  void end() { settle(); }

  // Whether the launch can join the one before it, in a run of at most `longest` launches that
  // begins at `first`.
  bool joins(int launch, int first, int longest = kLongestRun) const;

 private:
  using Word = std::uint64_t;
  static constexpr std::size_t kBits = 64;
  struct Told {
    const std::vector<int>* devices;
    bool fusible, closing;
    bool awaited;  // another device needs its results as soon as they are there
    int apart;     // the last launch that cannot be of one run with it
  };

  Word* far(int launch) { return far_.data() + static_cast<std::size_t>(launch) * words_; }
  const Word* far(int launch) const {
    return far_.data() + static_cast<std::size_t>(launch) * words_;
  }
  void settle();

  std::vector<Told> told_;
  bool rounds_ = false;
  // A launch: the set of those on other devices that it waits for, and so on back.
  std::vector<Word> far_;
  std::size_t words_ = 0;
  // A task of the last launch, and another device: the last launch there that it waits for; no
  // earlier one needs to hurry for it.
  struct Awaited {
    int device, launch;
  };
  std::vector<std::vector<Awaited>> awaited_;
  int waited_for_ = -1;  // whose set has just been added
};

// A place that a launch touches.
struct FieldUse {
  Place place;
  Privilege privilege = Privilege::read;
  const std::vector<Rect>* rects = nullptr;  // one a task
};

std::vector<FieldUse> field_uses(const Launch& launch);

// What fusing asks of a launch that is issued.
struct Issued {
  const std::vector<int>* devices = nullptr;
  bool fusible = true;
  bool closing = false;
  int follows = -1;  // the position of the launch whose tasks its own follow (PassRow::follows)
  int apart = -1;  // the last launch that cannot be of one run with it, as a register changed hands
  std::vector<FieldUse> uses;
};

// Cuts what is issued into runs of positions, each of at most `longest`; a launch that cannot be
// fused is a run of its own. `memory_of`: a device's memory.
std::vector<std::vector<int>> fused_runs(const std::vector<Issued>& order,
                                         const std::vector<int>& memory_of, int longest,
                                         bool rounds);

// The number of each launch's run, or -1 if it is not of `runs` or a load, which is staged ahead.
// The losses' launches answer to the host and are not fused.
IdVector<LaunchId, int> run_numbers(const Graph& graph, const Plan& plan, unsigned runs,
                                    const std::vector<int>& memory_of, int longest = kLongestRun);

// What the launches of a run require together: uses that touch the same elements are one.
class MergedUses {
 public:
  // Which of the uses it is one with. Throws std::logic_error if it cannot be of one run with what
  // was added before.
  std::size_t add(const FieldUse& use);
  const std::vector<FieldUse>& uses() const { return uses_; }

 private:
  std::vector<FieldUse> uses_;
};

}  // namespace flexlegion
