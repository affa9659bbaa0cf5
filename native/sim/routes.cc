// The routes of routes.h, looked up. The nodes of two memories give a relation, the relation gives
// a table, and the places of the memories give one of its routes: a list of hops. A hop's link
// follows from the number of the node that it belongs to.
//
// Costs: one step for each size of groups, and one for each link of the route. Tables grow with the
// kinds of nodes and the places in a node, never with pairs of memories.
//
// Nothing is checked here, since every transfer of every simulation asks. Whoever makes the tables
// answers for three things: each relation that occurs has a table, each link exists, and no route
// passes more than Route::kMost links, which is all that a Route has room for (machine_api.cc).
#include "sim/routes.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>

namespace flexlegion {

// The way in dimension order: all steps along the first dimension, then all along the second, and
// so on. Along one dimension, the steps depend on the coordinates of the two ends there alone, so
// `turns` can list them. A step past either end leads to the other end.
void Torus::pass(int from, int to, Route& route) const {
  const int dimensions = static_cast<int>(shape.size());
  int at = from;
  for (int d = 0; d < dimensions; ++d) {
    const int extent = shape[d], stride = strides[d];
    int x = at / stride % extent;
    const int steps = turns[d][x * extent + to / stride % extent];
    // One step down is extent - 1 steps up, modulo the extent.
    const int step = steps < 0 ? extent - 1 : 1;
    for (int i = 0; i < std::abs(steps); ++i) {
      route.push_back(links[(at * dimensions + d) * 2 + (steps < 0 ? 1 : 0)]);
      const int beyond = (x + step) % extent;
      at += (beyond - x) * stride;
      x = beyond;
    }
  }
}

// The longest ways along all dimensions, added up. Some way is that long: the ends' coordinates can
// be chosen for each dimension by itself.
int Torus::longest() const {
  int length = 0;
  for (const std::vector<int>& its : turns) {
    const auto [least, most] = std::minmax_element(its.begin(), its.end());
    length += std::max(-*least, *most);
  }
  return length;
}

// The nodes of a group have numbers that follow each other, so two nodes are in one group of a size
// if dividing their numbers by that size gives the same. Sizes ascend, so the first one that does
// is that of the smallest common group. If none does, that group is all nodes: level is `groups`.
int Routes::relation(int source, int destination) const {
  int near = 0;
  if (source != destination) {
    const int groups = static_cast<int>(spans.size());
    int level = 0;
    while (level < groups && source / spans[level] != destination / spans[level]) ++level;
    near = 1 + level + (source > destination ? groups + 1 : 0);
  }
  const int kinds = static_cast<int>(places.size());
  return (kind_of[source] * kinds + kind_of[destination]) * nearnesses() + near;
}

// A table has a row for each place of the source, and in it a route to each place of the
// destination. It serves all pairs of nodes of its relation: only the links' numbers differ.
Route Routes::operator()(int from, int to) const {
  Route route;
  const int source = node_of[from], destination = node_of[to];
  const int width = places[kind_of[destination]];
  const int table = tables[relation(source, destination)];
  assert(table >= 0);
  const int r = table + place_of[from] * width + place_of[to];
  for (int h = first_hop[r]; h < first_hop[r + 1]; ++h) {
    const RouteHop& hop = hops[h];
    if (hop.of == RouteHop::Of::torus) {
      torus.pass(source, destination, route);
    } else {
      route.push_back(hop.link(hop.of == RouteHop::Of::source ? source : destination));
    }
  }
  return route;
}

// All memories count as places of a single node. So there is one relation, that of the node to
// itself, and its table is the given list; the relations to a second node do not occur (-1). With a
// stride of 0, a hop is over the same link whatever the node.
Routes Routes::of_table(int memories, const std::vector<std::vector<int>>& routes) {
  Routes its;
  its.kind_of = {0};
  its.places = {memories};
  its.tables = {0, -1, -1};
  for (int m = 0; m < memories; ++m) {
    its.node_of.push_back(0);
    its.place_of.push_back(m);
  }
  for (const std::vector<int>& route : routes) {
    its.first_hop.push_back(static_cast<int>(its.hops.size()));
    for (int link : route) its.hops.push_back({RouteHop::Of::source, link, 0, 1});
  }
  its.first_hop.push_back(static_cast<int>(its.hops.size()));
  return its;
}

}  // namespace flexlegion
