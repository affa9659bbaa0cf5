// Jobs that do not depend on each other, on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace flexlegion {

// Calls `begin()` in each thread, and what that gives with one job after the other (0 to jobs - 1).
// A thread takes some neighbours at a time, which may have much in common. With a core or a job
// alone, or where the system gives no more threads, all happens in this one. If a job throws, no
// more are begun, and one of the exceptions is thrown here.
template <typename Begin>
void side_by_side(int jobs, const Begin& begin) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int run = std::max(1, jobs / (8 * cores));
  std::atomic<int> next{0};
  std::exception_ptr thrown;
  std::mutex lock;
  const auto work = [&] {
    try {
      auto&& body = begin();
      for (int first; (first = next.fetch_add(run)) < jobs;) {
        for (int job = first; job < std::min(first + run, jobs); ++job) body(job);
      }
    } catch (...) {
      next = jobs;
      const std::lock_guard<std::mutex> guard(lock);
      thrown = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(cores));
  try {
    for (int t = 1; t < std::min(cores, jobs); ++t) threads.emplace_back(work);
  } catch (const std::system_error&) {  // those that have begun are enough
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace flexlegion
