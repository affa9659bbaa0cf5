// The exhaustive search's part of the C ABI of libflexlegion_core.
//
// A search is a handle that can be run for some seconds at a time. It takes few devices: the bounds
// keep a table of pairs of tasks for each pair of configurations.
#include "search/exhaustive.h"

#include <optional>
#include <stdexcept>

#include "sim/handles.h"
#include "support/error.h"

namespace fl = flexlegion;

struct fl_exhaustive {
  fl_exhaustive(const fl::Problem& problem, const fl::PricedStrategy& incumbent)
      : problem(problem), search(problem, incumbent) {}
  const fl::Problem& problem;
  fl::Exhaustive search;
  std::optional<fl::StrategyArrays> best;
};

fl_exhaustive* fl_exhaustive_create(const fl_problem* problem, const fl_strategy* incumbent) {
  return fl::guarded(static_cast<fl_exhaustive*>(nullptr), [&] {
    if (problem->problem.machine.devices() > fl::Bounds::kParts) {
      throw std::invalid_argument("an exhaustive search takes at most " +
                                  std::to_string(fl::Bounds::kParts) + " devices");
    }
    return new fl_exhaustive(problem->problem, fl::strategy_of(problem->problem, *incumbent));
  });
}

void fl_exhaustive_destroy(fl_exhaustive* search) { delete search; }

int fl_exhaustive_run(fl_exhaustive* search, double seconds, fl_exhaustive_state* out) {
  return fl::guarded(-1, [&] {
    const bool complete = search->search.run(seconds);
    const fl::ExhaustiveCounts& counts = search->search.counts();
    const std::int64_t best = search->search.best_time();
    search->best = fl::arrays_of(search->problem, search->search.best());
    *out = {best == fl::kNever ? -1 : best, search->search.root_bound(), counts.nodes,
            counts.simulated, search->best->view()};
    return complete ? 1 : 0;
  });
}
