// The execution simulator (FlexFlow, section 5): holds a strategy and its timeline, and tries
// changes of it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/simulation.h"
#include "sim/sketch.h"
#include "sim/task_graph.h"

namespace flexlegion {

enum class Algorithm { full, delta, unfolded };

// How far a proposal came.
enum class Verdict {
  simulated,      // its timeline is known
  overloaded,     // tasks or transfers alone take a device or link longer than the limit
  overlong,       // a chain of dependencies takes longer than the limit
  stopped,        // the simulation passed the limit
  out_of_memory,  // a memory does not hold it
  too_fine        // it has more tasks than `most_tasks`
};

// What memory a simulated iteration takes at least, for each task and hop of a round (measured on
// 64 and 128 GPUs, with times and flows); and more of these than any machine has memory for.
constexpr std::int64_t kTaskBytes = 75, kUnlimited = std::int64_t{1} << 40;

// With bundles of transfers it sketches: then it knows times, and no timeline.
class Simulator {
 public:
  explicit Simulator(const Problem& problem, Detail detail = Detail::transfers)
      : graph_(problem, detail), simulation_(graph_), sketch_(graph_) {}

  // Takes a whole strategy: the task graph is built, and simulated in full. False, and nothing is
  // held: a round has more tasks than `most`.
  bool set(const PricedStrategy& strategy, std::int64_t most = kUnlimited);

  // The same, but as a proposal is judged: it is simulated if memory holds it, and as long as it
  // may take no longer than the limit. Otherwise nothing is held afterwards.
  Verdict judge(const PricedStrategy& strategy, std::int64_t limit = kNever);

  // Tries other configurations of some operators. Afterwards either `accept` or `reject`.
  Verdict propose(const PartialStrategy& configs, Algorithm algorithm, std::int64_t limit = kNever);
  void accept();
  void reject();
  // Holds a proposal that does not fit into memory, in full simulation.
  void keep_unsimulated();

  // Of what is held, or since a proposal was simulated, of that.
  const TaskGraph& graph() const { return graph_; }
  const Timeline& timeline() const { return proposed_ ? next_ : line_; }
  std::int64_t iteration_time() const { return timeline().iteration_time; }
  std::int64_t longest_path() { return graph_.paths().longest_path(); }

  bool proposed() const { return proposed_; }
  bool sketches() const { return graph_.detail() == Detail::bundles; }
  Sketch& sketch() { return sketch_; }

  // What to leave out, so that the worth of it can be measured.
  bool early_rejection = true;

  // Proposals of more tasks, transfers included, are turned down unseen: a few of them would take
  // the time of thousands of others.
  std::int64_t most_tasks = kNever;
  // Of strategies to be judged, likewise, if each transfer is looked at.
  std::int64_t most_transfers = kNever;

  std::int64_t tasks_played = 0;  // over all proposals

 private:
  bool play(Timeline& line, std::int64_t limit, const std::vector<std::int64_t>* tails);
  Verdict bounded(std::int64_t limit, const std::vector<std::int64_t>*& tails);

  TaskGraph graph_;
  Simulation simulation_;
  Sketch sketch_;
  Timeline line_, next_;
  TaskGraph::Change change_;
  bool proposed_ = false;  // next_ holds the proposal's timeline
  bool changed_ = false;   // the graph holds the proposal
};

}  // namespace flexlegion
