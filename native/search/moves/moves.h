// The moves of the search: each a file of this folder, and the share of proposals that make it
// named in it. A new move is a file here, a line below, and a line in the list of proposals.cc.
#pragma once

#include "search/candidates.h"

namespace flexlegion {

// A move sets a configuration for one operator of a strategy; false: there is none to make.
using Move = bool (*)(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                      OpId op, PricedConfig& config);

// Of the moves that are tried in turn, each is made with its chance; the last always.
extern const double kOtherBuffers, kCopyNeighbour, kSameDegrees;
bool other_buffers(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                   OpId op, PricedConfig& config);
bool copy_neighbour(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                    OpId op, PricedConfig& config);
bool same_degrees(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                  OpId op, PricedConfig& config);
bool any_config(const Candidates& candidates, Random& random, const PricedStrategy& strategy,
                OpId op, PricedConfig& config);

// What is made on top of another move, with its chance: operators around those that it changed
// follow them. With `tied`, whole groups do.
extern const double kSpread;
void spread(const Candidates& candidates, Random& random, bool tied, PartialStrategy& configs);

// What copy_neighbour and spread have in common: `op` is split as its neighbour is, which has
// configuration `theirs`. False: it cannot be. Who combines partial values is left open.
bool follow(const Candidates& candidates, Random& random, OpId op, const Neighbour& neighbour,
            const PricedConfig& theirs, PricedConfig& config);

}  // namespace flexlegion
