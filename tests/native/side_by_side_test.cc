#include "support/side_by_side.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace fl = flexlegion;

TEST_CASE("each job is done once") {
  for (const int jobs : {0, 1, 7, 1000}) {
    std::vector<std::atomic<int>> done(static_cast<std::size_t>(jobs));
    fl::side_by_side(jobs, [&] { return [&](int job) { ++done[static_cast<std::size_t>(job)]; }; });
    for (const auto& times : done) CHECK(times == 1);
  }
}

TEST_CASE("what a job throws is thrown once all threads have ended") {
  std::atomic<int> running{0};
  const auto run = [&] {
    fl::side_by_side(1000, [&] {
      return [&](int job) {
        if (job == 10) throw std::invalid_argument("job 10");
        ++running;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        --running;
      };
    });
  };
  CHECK_THROWS_WITH_AS(run(), "job 10", std::invalid_argument);
  CHECK(running == 0);
}

TEST_CASE("what a thread cannot begin with is thrown") {
  const auto begin = [] {
    throw std::bad_alloc();
    return [](int) {};
  };
  CHECK_THROWS_AS(fl::side_by_side(3, begin), std::bad_alloc);
}
