// The search's part of the C ABI of libflexlegion_core: one chain, run for some proposals or
// seconds at a time.
//
// Python decides on temperatures, restarts and how chains share what they found. So a chain is a
// handle: it is created from a start, run with options that may differ from call to call, and told
// to adopt another chain's strategy. After each call its state, counts and best strategy among
// them, stands in fl_chain_state.
#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "search/chain.h"
#include "search/exhaustive.h"
#include "sim/handles.h"
#include "support/error.h"

namespace fl = flexlegion;

struct fl_chain {
  fl_chain(const fl::Problem& problem, const fl::IdVector<fl::OpId, int>& groups,
           std::uint64_t seed, const fl::PricedStrategy& start, fl::Detail detail)
      : problem(problem), chain(problem, groups, seed, start, detail) {
    note();
  }

  // Fills in the state after a call. It points into `best`, which stays until the next call.
  void note() {
    best = fl::arrays_of(problem, chain.best());
    const fl::ChainCounts& c = chain.counts();
    state = {chain.best_time() == fl::kNever ? -1 : chain.best_time(),
             chain.current_time(),
             c.proposals,
             c.accepted,
             c.unchanged,
             c.overloaded,
             c.overlong,
             c.stopped,
             c.out_of_memory,
             c.too_fine,
             c.simulated,
             c.improved,
             chain.simulator().tasks_played,
             best->view()};
  }

  const fl::Problem& problem;
  fl::Chain chain;
  std::optional<fl::Exhaustive> exhaustive;  // once it is asked for
  std::optional<fl::StrategyArrays> best;
  fl_chain_state state;
};

// `groups`: operators of one group may be changed together. The chain's problem is that of the
// start's order of issue, which no proposal changes (fl_problem::of).
fl_chain* fl_chain_create(fl_problem* problem, int n_groups, const int32_t* groups, uint64_t seed,
                          const fl_strategy* start, int detail, const fl_chain_state** state) {
  return fl::guarded(static_cast<fl_chain*>(nullptr), [&] {
    const fl::Problem& its = problem->of(*start);
    const auto configs = fl::strategy_of(its, *start);
    if (n_groups != static_cast<int>(its.graph.operators.size())) {
      throw std::invalid_argument("a search needs one group an operator");
    }
    auto* const chain =
        new fl_chain(its, {groups, groups + n_groups}, seed, configs, fl::checked_detail(detail));
    *state = &chain->state;
    return chain;
  });
}

void fl_chain_destroy(fl_chain* chain) { delete chain; }

// Runs until the proposals or the seconds are used up, whichever comes first.
int fl_chain_run(fl_chain* chain, int64_t proposals, double seconds,
                 const fl_chain_options* options) {
  return fl::guarded(-1, [&] {
    fl::ChainOptions its;
    // Written so that NaN is refused, too.
    if (!(options->temperature > 0) || options->temperature > 1e6) {
      throw std::invalid_argument("the temperature has to be positive");
    }
    its.temperature = options->temperature;
    its.moves.tied = options->tied != 0;
    its.moves.critical = options->critical != 0;
    its.moves.neighbours = options->neighbours != 0;
    its.moves.uniform = options->uniform != 0;
    its.scale = options->scale;
    its.early_rejection = options->early_rejection != 0;
    its.algorithm = options->algorithm == FL_FULL ? fl::Algorithm::full : fl::Algorithm::delta;
    chain->chain.run(proposals, seconds, its);
    chain->note();
    return 0;
  });
}

// Descents with other options than the call before begin anew; equal ones go on (Chain::descend).
int fl_chain_descend(fl_chain* chain, double seconds, int tied, int part, int parts) {
  return fl::guarded(-1, [&] {
    if (part < 0 || part >= parts) throw std::invalid_argument("a descent has no such part");
    const bool there = chain->chain.descend(seconds, {tied != 0, part, parts});
    chain->note();
    return there ? 1 : 0;
  });
}

// Fails if the strategy has another order of issue than the chain's (configs_of).
int fl_chain_adopt(fl_chain* chain, const fl_strategy* strategy) {
  return fl::guarded(-1, [&] {
    chain->chain.adopt(fl::strategy_of(chain->problem, *strategy));
    chain->note();
    return 0;
  });
}

// Branch and bound beside the chain. What is left of the tree is kept from call to call. Before a
// run, the tree gets the chain's best strategy if that is faster, as it cuts more of the tree;
// after the run, the other way round. What the bounds know nothing of is refused.
int fl_chain_exhaust(fl_chain* chain, double seconds, fl_branches* out) {
  return fl::guarded(-1, [&] {
    // The bounds keep a table of pairs of tasks for each pair of configurations.
    if (chain->problem.machine.devices() > fl::Bounds::kParts) {
      throw std::invalid_argument("an exhaustive search takes at most " +
                                  std::to_string(fl::Bounds::kParts) + " devices");
    }
    if (chain->chain.simulator().graph().detail() != fl::Detail::transfers) {
      throw std::invalid_argument("an exhaustive search looks at each transfer");
    }
    const auto& again = chain->problem.facts.again;
    if (std::find(again.begin(), again.end(), true) != again.end()) {
      throw std::invalid_argument("an exhaustive search has nothing run again");
    }
    const auto& sharding = chain->problem.facts.sharding;
    if (std::any_of(sharding.begin(), sharding.end(),
                    [](fl::Sharding its) { return its != fl::Sharding::states; })) {
      throw std::invalid_argument("an exhaustive search shards no gradients and no weights");
    }
    auto& search = chain->exhaustive;
    if (!search) search.emplace(chain->problem, chain->chain.best());
    if (chain->chain.best_time() < search->best_time()) {
      search->adopt(chain->chain.best(), chain->chain.best_time());
    }
    const bool complete = search->run(seconds);
    if (search->best_time() < chain->chain.best_time()) chain->chain.adopt(search->best());
    chain->note();
    *out = {search->root_bound(), search->counts().nodes, search->counts().simulated};
    return complete ? 1 : 0;
  });
}
