// The threads of a device of several cores. A leaf task runs on one thread of its device, which
// leads the others: oneDNN's primitives share their work out among them, and whatever else is large
// is cut into parts by share_out().
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "ops/tensor_view.h"

namespace flexlegion {

// How many threads may compute what the calling thread is about to: those of its device. Within
// share_out() it is 1.
int team_size();

// Of how many elements work is at least that is shared out: threads take some microseconds to
// begin.
std::int64_t worth_sharing();

// While it lives, the calling thread leads a team of so many.
class Team {
 public:
  explicit Team(int threads, std::int64_t worth_sharing = 0);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

 private:
  const int threads_before_;
  const std::int64_t worth_before_;
};

// Calls body(k) for each k below `parts`, on a thread of the team each; there are at most as many
// parts as threads. Throws the first exception that one of them throws.
void share_out(int parts, const std::function<void(int)>& body);

// Calls body(lo, hi) for parts of [0, count), a thread each; of too few `elements`, once for all.
template <typename Body>
void share_range(std::int64_t count, std::int64_t elements, const Body& body) {
  const int parts = team_size();
  if (parts == 1 || elements < worth_sharing() || count < parts) {
    return body(std::int64_t{0}, count);
  }
  share_out(parts, [&](int k) { body(k * count / parts, (k + 1) * count / parts); });
}

// Calls body(views) for parts of views of equal extents, a thread each.
template <std::size_t N, typename Body>
void share_views(const std::array<const TensorView*, N>& views, const Body& body) {
  const TensorView& first = *views[0];
  if (team_size() == 1 || first.rank() == 0) return body(views);
  int d = 0;
  while (d < first.rank() - 1 && first.extent(d) < team_size()) ++d;
  share_range(first.extent(d), first.tile.volume(), [&](std::int64_t lo, std::int64_t hi) {
    std::array<TensorView, N> parts;
    std::array<const TensorView*, N> its;
    for (std::size_t v = 0; v < N; ++v) {
      const std::int64_t from = views[v]->tile.lo[d];
      parts[v] = narrowed(*views[v], d, from + lo, from + hi);
      its[v] = &parts[v];
    }
    body(its);
  });
}

}  // namespace flexlegion
