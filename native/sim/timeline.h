// The timeline of a simulated iteration: when each task of a task graph runs, and what it waited
// for.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/task_graph.h"

namespace flexlegion {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// A task by its launch, or ~flow, and its place there, which stays when others change; in later
// rounds, counted on by the tasks of a round.
struct Cause {
  std::int32_t owner = 0, place = -1;  // place -1: nobody
};

// Where the times of several rounds are. What ends the iteration has times once, behind those of
// all rounds.
struct Rows {
  std::vector<int> of;  // a task: its row in each round; or, counted on, its row behind them
  int each = 0;         // rows of a round
};

// The first rounds, of whose tasks a share alone was played, as others are replicas of these
// (sim/replicas.h).
struct Fold {
  int rounds = 0;       // so many; 0: all tasks were played
  int each = 0;         // rows of such a round
  std::vector<int> of;  // a task: its row, or that of the one whose replica it is
};

// Times by task: launches in order, then the hops of flows in order.
struct Timeline {
  std::vector<std::int64_t> ready_time, start_time, end_time;  // ns
  std::vector<Cause> cause;                                    // whose end decided when it started
  std::vector<int> first_task, first_hop;                      // by launch, by flow; and one more
  // Of tasks of launches, where the runtime takes time (sim/utility.h): how much of one's time,
  // and what the utility processor then had to do.
  std::vector<std::int64_t> runtime_time, owed;
  std::vector<char> runs_on;  // by launch: it takes no launch time
  int tasks = 0;
  // Of an iteration of several micro-batches: the tasks of the first, then those of the second, and
  // so on. What ends the iteration is the last one's; there are none such, and no times, in others.
  int rounds = 1;
  Rows rows;  // of several rounds
  Fold fold;
  // The latest end, or all the work of a utility processor, if that is more; kNever where the
  // simulation stopped early.
  std::int64_t iteration_time = 0;
  std::int64_t played = 0;  // tasks, by the algorithm that made it

  // Numbers the tasks of a round, which are in no fold. Throws std::invalid_argument if those of
  // all rounds are too many.
  void number(const TaskGraph& graph);
  // For the times of so many tasks.
  void make_room(std::size_t entries);
  std::size_t entries() const {
    return rounds == 1 ? at(tasks, 1, 0) : behind_rounds() + at(1, in_round() - rows.each, 0);
  }
  // Where the times of a task of a round are. Only of tasks that are in the round.
  std::size_t entry(int round, int task) const {
    if (rounds == 1) return static_cast<std::size_t>(task);
    const int row = rows.of[static_cast<std::size_t>(task)];
    if (row >= rows.each) return behind_rounds() + static_cast<std::size_t>(row - rows.each);
    if (round < fold.rounds) {
      return at(round, fold.each, fold.of[static_cast<std::size_t>(task)]);
    }
    return at(fold.rounds, fold.each, 0) + at(round - fold.rounds, rows.each, row);
  }
  // Whether it is: what ends the iteration is in the last round alone.
  bool is_there(int round, int task) const {
    return rounds == 1 || round + 1 == rounds ||
           rows.of[static_cast<std::size_t>(task)] < rows.each;
  }
  std::size_t entry_of(int number) const { return entry(number / in_round(), number % in_round()); }
  int in_round() const { return tasks / rounds; }  // tasks of a round
  int last_task() const;                           // the number of one that ends last
  Cause place_of(int task) const;
  int number_of(Cause cause) const;  // -1: nobody

 private:
  static std::size_t at(int round, int each, int row) {
    return static_cast<std::size_t>(round) * static_cast<std::size_t>(each) +
           static_cast<std::size_t>(row);
  }
  std::size_t behind_rounds() const {
    return at(fold.rounds, fold.each, 0) + at(rounds - fold.rounds, rows.each, 0);
  }
};

}  // namespace flexlegion
