// What one rank has for the others, and they for it.
#pragma once

#include <vector>

#include "runtime/executor.h"
#include "runtime/launch.h"

namespace flexlegion {

// A launch of one task a rank. All calls are every rank's, in the same order.
class AllGather : public Executor {
 public:
  AllGather();
  ~AllGather() override;

  // What each rank gives, in the order of ranks. Waits for all of them.
  std::vector<std::vector<char>> all(const std::vector<char>& mine);

 private:
  Bytes chunk_;
};

// The same, once.
std::vector<std::vector<char>> all_gather(const std::vector<char>& mine);

}  // namespace flexlegion
