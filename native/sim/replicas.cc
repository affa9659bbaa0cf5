// Components, their ranks, and their hashes (replicas.h).
#include "sim/replicas.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace flexlegion {

namespace {

// A finaliser of 64 bits: each bit of the result depends on each of the argument.
std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

}  // namespace

void Replicas::begin(const std::vector<int>& user_of, int users) {
  user_of_ = user_of;
  up_.resize(static_cast<std::size_t>(users));
  std::iota(up_.begin(), up_.end(), 0);
  like_.clear();
  rows_ = 0;
}

int Replicas::root(int user) {
  while (up_[user] != user) user = up_[user] = up_[up_[user]];
  return user;
}

void Replicas::join(int task, int other) {
  const int a = user_of_[task], b = user_of_[other];
  if (a == kNoUser || b == kNoUser || a == b) return;
  up_[root(a)] = root(b);
}

// Numbers the components in the order of their users, and then users and tasks inside of them, by
// counting: both keep their order.
bool Replicas::separate() {
  const auto users = up_.size();
  std::vector<char> used(users, 0);
  for (int user : user_of_) {
    if (user != kNoUser) used[user] = 1;
  }
  component_of_.assign(users, kNoUser);
  std::vector<int> of_root(users, kNoUser);
  int count = 0;
  for (std::size_t u = 0; u < users; ++u) {
    if (!used[u]) continue;
    int& its = of_root[root(static_cast<int>(u))];
    if (its == kNoUser) its = count++;
    component_of_[u] = its;
  }
  if (count < 2) return false;
  const auto sorted = [count](const std::vector<int>& component, std::vector<int>& first,
                              std::vector<int>& items, std::vector<int>& rank) {
    first.assign(static_cast<std::size_t>(count) + 1, 0);
    for (int c : component) {
      if (c != kNoUser) ++first[c + 1];
    }
    std::partial_sum(first.begin(), first.end(), first.begin());
    items.resize(static_cast<std::size_t>(first.back()));
    rank.assign(component.size(), 0);
    std::vector<int> next(first.begin(), first.end() - 1);
    for (std::size_t i = 0; i < component.size(); ++i) {
      const int c = component[i];
      if (c == kNoUser) continue;
      rank[i] = next[c] - first[c];
      items[next[c]++] = static_cast<int>(i);
    }
  };
  sorted(component_of_, first_user_, users_, user_rank_);
  std::vector<int> component(user_of_.size());
  for (std::size_t t = 0; t < component.size(); ++t) {
    component[t] = component_of_task(static_cast<int>(t));
  }
  sorted(component, first_task_, tasks_, rank_);
  hash_.assign(static_cast<std::size_t>(count), Hash{});
  like_.assign(static_cast<std::size_t>(count), 0);
  return true;
}

// Sums, so that the order of descriptions does not matter. Two of them, from different seeds.
void Replicas::add(int component, std::initializer_list<std::int64_t> facts, std::int64_t more) {
  Hash& its = hash_[component];
  for (std::size_t lane = 0; lane < its.size(); ++lane) {
    std::uint64_t x = mixed(static_cast<std::uint64_t>(more) + 0x9e3779b97f4a7c15 * (lane + 1));
    for (std::int64_t fact : facts) {
      x = mixed(x * 0x9e3779b97f4a7c15 + static_cast<std::uint64_t>(fact));
    }
    its[lane] += x;
  }
}

void Replicas::describe(int task, std::initializer_list<std::int64_t> facts) {
  const int component = component_of_task(task);
  if (component == kNoUser) return;
  const auto rank = static_cast<std::int64_t>(rank_[task]);
  add(component, facts, (rank << 32 | user_rank_[user_of_[task]]) << 1);
}

void Replicas::waits(int task, int to, std::initializer_list<std::int64_t> how) {
  const int component = component_of_task(task);
  if (component == kNoUser || user_of_[to] == kNoUser) return;
  add(component, how, static_cast<std::int64_t>(rank_[task]) << 32 | rank_[to]);
}

void Replicas::describe_user(int user, std::initializer_list<std::int64_t> facts) {
  if (component_of_[user] != kNoUser) add(component_of_[user], facts, ~user_rank_[user]);
}

void Replicas::compare() {
  std::map<std::pair<int, Hash>, int> first;  // (tasks, hash) -> component
  for (int c = 0; c < components(); ++c) {
    const int tasks = first_task_[c + 1] - first_task_[c];
    like_[c] = first.try_emplace({tasks, hash_[c]}, c).first->second;
  }
  rows_ = 0;
  row_of_.assign(user_of_.size(), -1);
  for (int c = 0; c < components(); ++c) {
    if (like_[c] != c) continue;
    for (const int* task = begin_of(c); task != end_of(c); ++task) row_of_[*task] = rows_++;
  }
  for (int c = 0; c < components(); ++c) {
    for (const int* task = begin_of(c); task != end_of(c); ++task) {
      row_of_[*task] = row_of_[twin(*task, like_[c])];
    }
  }
}

}  // namespace flexlegion
