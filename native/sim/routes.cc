#include "sim/routes.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>

namespace flexlegion {

void Torus::pass(int from, int to, Route& route) const {
  const int dimensions = static_cast<int>(shape.size());
  int at = from;
  for (int d = 0; d < dimensions; ++d) {
    const int extent = shape[d], stride = strides[d];
    int x = at / stride % extent;
    const int steps = turns[d][x * extent + to / stride % extent];
    const int step = steps < 0 ? extent - 1 : 1;
    for (int i = 0; i < std::abs(steps); ++i) {
      route.push_back(links[(at * dimensions + d) * 2 + (steps < 0 ? 1 : 0)]);
      const int beyond = (x + step) % extent;
      at += (beyond - x) * stride;
      x = beyond;
    }
  }
}

int Torus::longest() const {
  int length = 0;
  for (const std::vector<int>& its : turns) {
    const auto [least, most] = std::minmax_element(its.begin(), its.end());
    length += std::max(-*least, *most);
  }
  return length;
}

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
