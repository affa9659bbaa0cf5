// The threads of a device: how many the calling thread leads, and how work is shared out among
// them.
//
// The number is a variable of the leading thread. While a part runs, it is 1, so that a function
// called there does not share out again: all threads are busy already.
#include "ops/team.h"

#include <omp.h>

#include <atomic>
#include <exception>

namespace flexlegion {

namespace {

thread_local int threads_led = 1;
thread_local std::int64_t worth = 0;

}  // namespace

int team_size() { return threads_led; }
std::int64_t worth_sharing() { return worth; }

Team::Team(int threads, std::int64_t worth_sharing)
    : threads_before_(threads_led), worth_before_(worth) {
  threads_led = threads;
  worth = worth_sharing;
}

Team::~Team() {
  threads_led = threads_before_;
  worth = worth_before_;
}

// The threads are OpenMP's, as oneDNN's are: it keeps one team for each thread that leads one.
void share_out(int parts, const std::function<void(int)>& body) {
  std::exception_ptr failure;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
#pragma omp parallel num_threads(parts)
  {
    const Team alone(1);
    // OpenMP may give fewer threads than were asked for.
    for (int k = omp_get_thread_num(); k < parts; k += omp_get_num_threads()) {
      try {
        body(k);
      } catch (...) {
        if (!failed.test_and_set()) failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace flexlegion
