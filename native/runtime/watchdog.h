// Ranks watch each other, so that none waits for one that is lost.
//
// Rank 0 is the hub: each other rank holds a TCP connection to it, over which both send a beat a
// second, from a thread of its own, whatever Python and Legion do. A rank is lost if its connection
// closes before it said that it finished, or if nothing comes from it for as long as the limit.
// Whoever notices says so in one sentence, tells the others, and ends its process without waiting
// for Legion, with status kLostStatus. A rank that fails by itself says so before it ends, and
// takes the others with it.
#pragma once

namespace flexlegion {

constexpr int kLostStatus = 3;  // exit status of the ranks that are left

// To be called once on every rank, inside the top-level task, after MachineState::start(). Returns
// when this rank is watched; nothing is done on one rank, or if FLEXLEGION_HEARTBEAT is 0 on rank
// 0.
void watch_ranks();

// Ends this process with that status, which is not 0, at once, and the other ranks with it: after
// they had a moment to fail by themselves, as they do of a mistake that all share, with one
// sentence that names this one.
[[noreturn]] void end_all_ranks(int status);

}  // namespace flexlegion
