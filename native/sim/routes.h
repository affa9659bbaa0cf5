// Which links a transfer passes from one memory to another.
//
// Nodes are alike, so the routes between two of them are those of any two: of each relation of two
// nodes (their kinds, the smallest group that has both, which comes first), a table of hops. A hop
// is a link of the node where the route begins or of that where it ends, by an arithmetic
// progression over nodes or groups. In a torus, one hop stands for the way along its dimensions.
// flexlegion/machine/node_routes.py says why that is all there is to know, and makes the tables.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace flexlegion {

// Links, in the order in which they are passed.
class Route {
 public:
  static constexpr int kMost = 64;

  void push_back(int link) { links_[static_cast<std::size_t>(size_++)] = link; }
  std::size_t size() const { return static_cast<std::size_t>(size_); }
  bool empty() const { return size_ == 0; }
  int operator[](std::size_t i) const { return links_[i]; }
  int back() const { return links_[static_cast<std::size_t>(size_ - 1)]; }
  const int* begin() const { return links_.data(); }
  const int* end() const { return links_.data() + size_; }

 private:
  int size_ = 0;
  std::array<int, kMost> links_;
};

struct RouteHop {
  enum class Of : std::int32_t { source, destination, torus };
  Of of = Of::source;
  std::int32_t first = 0, stride = 0, span = 1;

  // Of a node whose link is meant.
  int link(int node) const { return first + stride * (node / span); }
};

struct Torus {
  std::vector<int> shape;
  std::vector<int> strides;  // of nodes, by dimension
  // A dimension: [from * extent + to], steps upwards, or, if negative, downwards.
  std::vector<std::vector<int>> turns;
  std::vector<int> links;  // [(node * dimensions + dimension) * 2]: upwards, downwards; -1: none

  void pass(int from, int to, Route& route) const;
  // How many links a way has at most.
  int longest() const;
};

struct Routes {
  std::vector<int> node_of, place_of;  // a memory
  std::vector<int> kind_of;            // a node
  std::vector<int> places;             // a kind of nodes: how many memories each has
  std::vector<int> spans;              // sizes of groups of nodes, ascending
  // [relation]: where its routes begin in `first_hop`, by places; -1: there are no such nodes.
  std::vector<int> tables;
  std::vector<int> first_hop;  // of a route, in `hops`; and the end of the last one
  std::vector<RouteHop> hops;
  Torus torus;

  // Of two nodes, in `tables`.
  int relation(int source, int destination) const;
  // How many relations two kinds of nodes can have.
  int nearnesses() const { return 3 + 2 * static_cast<int>(spans.size()); }
  Route operator()(int from, int to) const;
  // Those of a machine whose routes are all told: [from * memories + to].
  static Routes of_table(int memories, const std::vector<std::vector<int>>& routes);
};

// Routes that were looked up already. Those of a machine of so many memories are kept: looking them
// up took a tenth of a proposal's time on 64 devices. Of a larger one, each is looked up anew.
class KnownRoutes {
 public:
  static constexpr int kMostMemories = 256;

  KnownRoutes(const Routes& routes, int memories) : routes_(routes), memories_(memories) {
    const auto m = static_cast<std::size_t>(memories);
    if (memories <= kMostMemories) known_.resize(m * m);
  }

  struct Links {
    const int* first;
    const int* last;
    const int* begin() const { return first; }
    const int* end() const { return last; }
    bool empty() const { return first == last; }
    std::size_t size() const { return static_cast<std::size_t>(last - first); }
  };
  // Until the next one is asked for.
  Links operator()(int from, int to) {
    if (known_.empty()) return keep(routes_(from, to), 0);
    Span& its = known_[static_cast<std::size_t>(from) * static_cast<std::size_t>(memories_) +
                       static_cast<std::size_t>(to)];
    if (its.first >= 0) return {links_.data() + its.first, links_.data() + its.end};
    const std::size_t size = links_.size();
    const Links links = keep(routes_(from, to), size);
    its = {static_cast<int>(size), static_cast<int>(links_.size())};
    return links;
  }

 private:
  struct Span {
    int first = -1, end = -1;
  };
  // Behind the first `size` links.
  Links keep(const Route& route, std::size_t size) {
    links_.resize(size);
    links_.insert(links_.end(), route.begin(), route.end());
    return {links_.data() + size, links_.data() + links_.size()};
  }

  const Routes& routes_;
  const int memories_;
  std::vector<Span> known_;  // [from * memories + to]
  std::vector<int> links_;
};

}  // namespace flexlegion
