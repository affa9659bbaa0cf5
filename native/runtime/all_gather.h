// What one rank has for the others, and they for it.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/executor.h"
#include "runtime/launch.h"

namespace flexlegion {

// A launch of one task a rank, which writes a row of a region that all ranks then read. All calls
// are every rank's, in the same order.
class AllGather : public Executor {
 public:
  AllGather();
  ~AllGather() override;

  // What each rank gives, in the order of ranks. Waits for all of them.
  std::vector<std::vector<char>> all(const std::vector<char>& mine);

 private:
  int rows_ = 0;                   // the region, a row a rank
  std::vector<std::int32_t> row_;  // what this rank's task writes next
};

// The same, by one of all programs.
std::vector<std::vector<char>> all_gather(const std::vector<char>& mine);

}  // namespace flexlegion
