// Which launches are fused: where consecutive launches have their tasks on the same devices, one
// Legion task a device can run task k of each, one after another. The runtime does it
// (runtime/fusion.h), and the simulator, which charges a launch's time once a run, foresees it.
//
// No task waits for that: launches become one only if they wait for the same results of other
// devices, and none joins after one whose results another device awaits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flexlegion {

// Longer runs gain little, and what is issued meanwhile (the next batch) waits for their end.
constexpr int kLongestRun = 16;

// Is told of one launch after another, in the order of issue, by position from 0.
class FusionRule {
 public:
  void begin(int launches);

  // The next launch; `closing` is what ends an iteration. Its tasks' `devices` have to live as long
  // as the rule is asked.
  void add(const std::vector<int>& devices, bool fusible, bool closing);
  // Task k of the launch that was added last waits for task j of the one at `before`; whether their
  // devices share a memory.
  void wait(int k, int before, int j, bool one_memory);
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
    int crossing;  // the last launch of which a task waits for another one of the same device
  };

  Word* far(int launch) { return far_.data() + static_cast<std::size_t>(launch) * words_; }
  const Word* far(int launch) const {
    return far_.data() + static_cast<std::size_t>(launch) * words_;
  }
  void settle();

  std::vector<Told> told_;
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

}  // namespace flexlegion
