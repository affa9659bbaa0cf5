// Replicas: parts of a task graph that are alike, and have nothing to do with each other before the
// iteration ends.
//
// Of an iteration of several micro-batches, the rounds are nearly all of the work. Where several
// groups of devices train the same layers with other samples, as in data parallelism, a group waits
// for no other one before the last round: then gradients are summed over all groups. So their
// timelines are equal until then, to the nanosecond, and one of them is enough to play (rounds.h).
//
// 1. Who shares a device or link, or waits for the other, belongs together: users, which is what
//    devices and links are called here, are joined (union-find). What is left are components.
// 2. Each task is numbered by its rank in its component, and so is each user. Two components are
//    replicas if, rank by rank, their tasks are of the same launches and flows, take the same time,
//    run on the same users, and wait for the same ranks. As 128-bit sums of hashes over all that
//    are compared, this takes one walk over the waits.
//
// Ties are broken by the numbers of tasks, and in the order of users. Ranks keep both orders, so
// replicas break ties alike.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace flexlegion {

class Replicas {
 public:
  using Hash = std::array<std::uint64_t, 2>;

  // The tasks of a round, each on its user; kNoUser: it is not in every round, and belongs nowhere.
  static constexpr int kNoUser = -1;
  void begin(const std::vector<int>& user_of, int users);
  void join(int task, int other);  // they belong together
  // Whether several components are left. If so, tasks are ranked, and can be described.
  bool separate();
  // What decides on a task's times: its own facts, or that `to` waits for it in some way.
  void describe(int task, std::initializer_list<std::int64_t> facts);
  void waits(int task, int to, std::initializer_list<std::int64_t> how);
  void describe_user(int user, std::initializer_list<std::int64_t> facts);
  // Finds those that are alike, when all is described.
  void compare();

  // Of each component, the first one that is like it. Those like none stand for themselves.
  int components() const { return static_cast<int>(like_.size()); }
  int like(int component) const { return like_[component]; }
  // Tasks of the components that stand for others. They are numbered as rows.
  int rows() const { return rows_; }
  // Of each task: the row of the one that stands for it, or -1.
  const std::vector<int>& rows_of_tasks() const { return row_of_; }
  bool stands(int task) const {
    const int its = component_of_task(task);
    return its >= 0 && like_[its] == its;
  }

  int component_of_task(int task) const {
    return user_of_[task] == kNoUser ? kNoUser : component_of_[user_of_[task]];
  }
  // The task, or user, that is in that component what another one is in its own.
  int twin(int task, int component) const { return tasks_[first_task_[component] + rank_[task]]; }
  int twin_user(int user, int component) const {
    return users_[first_user_[component] + user_rank_[user]];
  }
  int component_of_user(int user) const { return component_of_[user]; }  // kNoUser: nobody uses it
  // The tasks of a component, in their order.
  const int* begin_of(int component) const { return tasks_.data() + first_task_[component]; }
  const int* end_of(int component) const { return tasks_.data() + first_task_[component + 1]; }

 private:
  int root(int user);
  void add(int component, std::initializer_list<std::int64_t> facts, std::int64_t more);

  std::vector<int> user_of_;             // a task
  std::vector<int> up_;                  // a user: union-find
  std::vector<int> component_of_;        // a user
  std::vector<int> tasks_, first_task_;  // by component
  std::vector<int> users_, first_user_;  // likewise
  std::vector<int> rank_, user_rank_;    // a task, a user
  std::vector<int> like_, row_of_;
  std::vector<Hash> hash_;  // a component
  int rows_ = 0;
};

}  // namespace flexlegion
