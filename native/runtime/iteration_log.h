// What this rank's tasks tell of each iteration: that its batch was read, and the sums of its
// losses.
//
// Futures would say the same, but a rank that reads another's futures sends for each of them; a
// training iteration had some 15 messages a rank for its loss alone, and no others of Legion's. So
// tasks leave their answers here, and ranks exchange them when somebody wants to know
// (Program::metrics).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "ops/kernel.h"

namespace flexlegion {

// What a task of a loss answered.
struct Answer {
  std::int32_t loss, task;  // of the graph's losses, and of its tasks
  Metrics metrics;
};

class IterationLog {
 public:
  // A new iteration, of which so many tasks will tell here; the ticket to ask for it, not 0.
  std::int64_t open(int tasks);
  // A task is done that has nothing to answer; one that has.
  void done(std::int64_t ticket);
  void answer(std::int64_t ticket, const Answer& answer);
  // Waits for the tasks. Throws std::invalid_argument for an unknown ticket.
  void wait(std::int64_t ticket);
  // The same; forgets the iteration, and returns the answers, in no order.
  std::vector<Answer> close(std::int64_t ticket);
  // A task failed, and will not tell: nobody waits any more.
  void give_up();

 private:
  struct Iteration {
    int pending = 0;
    std::vector<Answer> answers;
  };

  Iteration& wait(std::unique_lock<std::mutex>& lock, std::int64_t ticket);

  std::mutex mutex_;
  std::condition_variable told_;
  std::map<std::int64_t, Iteration> iterations_;
  std::int64_t next_ = 1;
  bool given_up_ = false;
};

}  // namespace flexlegion
