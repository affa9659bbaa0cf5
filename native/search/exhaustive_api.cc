// The exhaustive search's part of the C ABI of libflexlegion_core.
#include "search/exhaustive.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "sim/handles.h"
#include "support/error.h"

namespace fl = flexlegion;

struct fl_exhaustive {
  fl_exhaustive(const fl::Problem& problem, const std::vector<fl::Config>& incumbent)
      : problem(problem), search(problem, incumbent) {}
  const fl::Problem& problem;
  fl::Exhaustive search;
};

fl_exhaustive* fl_exhaustive_create(const fl_problem* problem, int n_degrees,
                                    const int32_t* degrees, int n_devices, const int32_t* devices) {
  return fl::guarded(static_cast<fl_exhaustive*>(nullptr), [&] {
    if (problem->problem.machine.devices() > fl::Bounds::kParts) {
      throw std::invalid_argument("an exhaustive search takes at most " +
                                  std::to_string(fl::Bounds::kParts) + " devices");
    }
    const auto start = fl::strategy_of(problem->problem, n_degrees, degrees, n_devices, devices);
    return new fl_exhaustive(problem->problem, start);
  });
}

void fl_exhaustive_destroy(fl_exhaustive* search) { delete search; }

int fl_exhaustive_run(fl_exhaustive* search, double seconds) {
  return fl::guarded(-1, [&] { return search->search.run(seconds) ? 1 : 0; });
}

int fl_exhaustive_state_of(const fl_exhaustive* search, fl_exhaustive_state* out) {
  return fl::guarded(-1, [&] {
    const fl::ExhaustiveCounts& counts = search->search.counts();
    const std::int64_t best = search->search.best_time();
    *out = {best == fl::kNever ? -1 : best, search->search.root_bound(), counts.nodes,
            counts.simulated};
    return 0;
  });
}

int fl_exhaustive_best_devices(const fl_exhaustive* search) {
  return fl::devices_named(search->search.best());
}

int fl_exhaustive_best(const fl_exhaustive* search, int n_degrees, int32_t* degrees, int n_devices,
                       int32_t* devices) {
  return fl::guarded(-1, [&] {
    fl::write_strategy(search->problem, search->search.best(), n_degrees, degrees, n_devices,
                       devices);
    return 0;
  });
}
