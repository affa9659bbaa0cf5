// The log's one invariant: `pending` is the number of this rank's tasks that have not told yet of
// that iteration. Whoever waits is woken when it becomes 0.
//
// Tasks run on any thread, and the caller waits on its own, so everything is under one lock; it is
// held for a few instructions. A map and not a vector, because iterations are forgotten in any
// order, while others keep their places.
#include "runtime/iteration_log.h"

#include <stdexcept>
#include <utility>

namespace flexlegion {

std::int64_t IterationLog::open(int tasks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  iterations_[next_].pending = tasks;
  return next_++;
}

void IterationLog::done(std::int64_t ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--iterations_.at(ticket).pending == 0) told_.notify_all();
}

void IterationLog::answer(std::int64_t ticket, const Answer& answer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Iteration& iteration = iterations_.at(ticket);
  iteration.answers.push_back(answer);
  if (--iteration.pending == 0) told_.notify_all();
}

IterationLog::Iteration& IterationLog::wait(std::unique_lock<std::mutex>& lock,
                                            std::int64_t ticket) {
  const auto found = iterations_.find(ticket);
  if (found == iterations_.end()) throw std::invalid_argument("no metrics for that ticket");
  Iteration& iteration = found->second;  // stays where it is while others come and go
  told_.wait(lock, [&] { return iteration.pending == 0 || given_up_; });
  return iteration;
}

void IterationLog::wait(std::int64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait(lock, ticket);
}

std::vector<Answer> IterationLog::close(std::int64_t ticket) {
  std::unique_lock<std::mutex> lock(mutex_);
  Iteration& iteration = wait(lock, ticket);
  std::vector<Answer> answers = std::move(iteration.answers);
  if (iteration.pending == 0) iterations_.erase(ticket);  // else its tasks may still tell
  return answers;
}

// After a failure the missing tasks will never tell, so nobody may wait for them.
void IterationLog::give_up() {
  const std::lock_guard<std::mutex> lock(mutex_);
  given_up_ = true;
  told_.notify_all();
}

}  // namespace flexlegion
