// Checks everything that the simulator takes for granted of a machine (sim/routes.h). Routes are
// looked up for every transfer, and without a check, so a mistake has to be found here:
//
// - torus_of(): each way leads to where it says, and passes no link that does not exist.
// - relations_of(): each relation that occurs, also of a node to itself, needs a table of routes.
// - check_route(): each hop is over a link, no link comes twice, and no route is too long.
//
// No check walks over pairs of devices or memories. Relations are found by one walk over the nodes
// for each size of groups. A route is checked once for all nodes of its relation: the link of a hop
// changes with the node's number in one direction, so the first and the last node bound it.
//
// How long the caller's arrays are cannot be checked; they are as long as their counts say.
#include "sim/machine_api.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include "sim/handles.h"
#include "support/error.h"

namespace flexlegion {

namespace {

void check_positive(std::int64_t value, const char* what) {
  if (value < 1) throw std::invalid_argument("the machine needs at least one " + std::string(what));
}

std::vector<int> list_of(const std::int32_t* values, std::int64_t count) {
  return std::vector<int>(values, values + count);
}

static_assert(FL_MAX_ROUTE == Route::kMost);
static_assert(same(FL_HOP_OF_SOURCE, RouteHop::Of::source) &&
              same(FL_HOP_OF_DESTINATION, RouteHop::Of::destination) &&
              same(FL_HOP_OF_TORUS, RouteHop::Of::torus));

// The torus, or one of no dimensions. Its points are the nodes, numbered row-major: a step along
// the last dimension changes a node's number by one.
Torus torus_of(const fl_routes& routes, int links) {
  Torus torus;
  if (routes.dimensions < 0 || routes.dimensions > Route::kMost) {
    throw std::invalid_argument("a torus of " + std::to_string(routes.dimensions) + " dimensions");
  }
  std::int64_t nodes = 1;
  for (int d = 0; d < routes.dimensions; ++d) {
    check_positive(routes.shape[d], "node in each dimension of its torus");
    nodes *= routes.shape[d];
    // The products disagree already, and the whole one might overflow.
    if (nodes > routes.n_nodes) break;
  }
  if (routes.dimensions > 0 && nodes != routes.n_nodes) {
    throw std::invalid_argument("the torus's points are not the machine's nodes");
  }
  torus.shape = list_of(routes.shape, routes.dimensions);
  torus.strides.assign(torus.shape.size(), 1);
  for (int d = routes.dimensions - 2; d >= 0; --d) {
    torus.strides[d] = torus.strides[d + 1] * torus.shape[d + 1];
  }
  const std::int32_t* turns = routes.turns;
  for (int extent : torus.shape) {
    const std::int64_t pairs = std::int64_t{extent} * extent;
    torus.turns.push_back(list_of(turns, pairs));
    turns += pairs;
    for (int a = 0; a < extent; ++a) {
      for (int b = 0; b < extent; ++b) {
        // The steps have to lead from a to b, and to be fewer than once round.
        const std::int64_t steps = torus.turns.back()[a * extent + b];
        if (steps <= -extent || steps >= extent || (a + extent + steps - b) % extent != 0) {
          throw std::invalid_argument("a way along the torus that does not lead there");
        }
      }
    }
  }
  torus.links = list_of(routes.torus_links, std::int64_t{routes.dimensions} * routes.n_nodes * 2 *
                                                (routes.dimensions > 0 ? 1 : 0));
  for (int link : torus.links) {
    if (link < -1 || link >= links) throw std::invalid_argument("a torus without such a link");
  }
  // No way may pass where there is no link. If a node at coordinate x lacks the link of one
  // direction, no way along that dimension may leave x in that direction, whatever coordinates a
  // and b it joins: its other coordinates can be those of this node. A way of `steps` from a leaves
  // x if it comes to x, after `passed` steps, before its last one.
  for (int node = 0; node < (routes.dimensions > 0 ? routes.n_nodes : 0); ++node) {
    for (std::size_t d = 0; d < torus.shape.size(); ++d) {
      const int extent = torus.shape[d], x = node / torus.strides[d] % extent;
      for (const int down : {0, 1}) {
        if (torus.links[(node * torus.shape.size() + d) * 2 + down] >= 0) continue;
        for (int a = 0; a < extent; ++a) {
          for (int b = 0; b < extent; ++b) {
            const int steps = torus.turns[d][a * extent + b];
            const int passed = down == 1 ? (a - x + extent) % extent : (x - a + extent) % extent;
            if (down == 1 ? passed < -steps : passed < steps) {
              throw std::invalid_argument("a way along the torus where there is no link");
            }
          }
        }
      }
    }
  }
  return torus;
}

// Which relations of two nodes there are, by their numbers in `tables`. Two nodes meet in the
// smallest group that has both, as nodes of two different parts of it.
//
// For each size of groups, one walk over the nodes keeps two sets: the kinds in the parts of the
// present group that are behind, and those in the present part. The first node of a kind in a part
// meets each kind behind it. Nodes behind have lower numbers, so these are the relations in which
// the source comes first; their opposites occur as well.
std::vector<bool> relations_of(const Routes& routes) {
  const int nodes = static_cast<int>(routes.kind_of.size());
  const int kinds = static_cast<int>(routes.places.size());
  const int levels = static_cast<int>(routes.spans.size()) + 1;
  std::vector<bool> found(routes.tables.size(), false);
  const auto mark = [&](int from, int to, int near) {
    found[static_cast<std::size_t>((from * kinds + to) * routes.nearnesses() + near)] = true;
  };
  for (int kind : routes.kind_of) mark(kind, kind, 0);
  for (int level = 0; level < levels; ++level) {
    const int part = level == 0 ? 1 : routes.spans[level - 1];
    const int group = level + 1 == levels ? nodes : routes.spans[level];
    std::vector<char> before(kinds, 0), here(kinds, 0);  // kinds of parts before, and of this one
    for (int node = 0; node < nodes; ++node) {
      if (node % part == 0 || node % group == 0) {
        for (int kind = 0; kind < kinds; ++kind) {
          before[kind] = node % group == 0 ? 0 : before[kind] | here[kind];
          here[kind] = 0;
        }
      }
      const int mine = routes.kind_of[node];
      if (here[mine]) continue;
      here[mine] = 1;
      for (int kind = 0; kind < kinds; ++kind) {
        if (!before[kind]) continue;
        mark(kind, mine, 1 + level);
        mark(mine, kind, 1 + level + levels);
      }
    }
  }
  return found;
}

// The nodes of each kind: the first and the last.
std::vector<std::pair<int, int>> extent_of_kinds(const Routes& routes) {
  std::vector<std::pair<int, int>> ends(routes.places.size(), {-1, -1});
  for (std::size_t n = 0; n < routes.kind_of.size(); ++n) {
    auto& [first, last] = ends[static_cast<std::size_t>(routes.kind_of[n])];
    if (first < 0) first = static_cast<int>(n);
    last = static_cast<int>(n);
  }
  return ends;
}

// The hop of all nodes of a kind, of which the first and the last are given: its link's number
// rises with that of the node, or falls, so all are in range if these two are.
void check_hop(const RouteHop& hop, std::pair<int, int> nodes, int links) {
  if (hop.of == RouteHop::Of::torus) return;
  if (nodes.first < 0) throw std::invalid_argument("routes of a kind that no node is of");
  if (hop.span < 1) throw std::invalid_argument("a hop over no link");
  for (const int node : {nodes.first, nodes.second}) {
    const std::int64_t link = hop.first + std::int64_t{hop.stride} * (node / hop.span);
    if (link < 0 || link >= links) throw std::invalid_argument("a hop over no link");
  }
}

// One route of a table, for all pairs of nodes in its relation. Within a node it cannot go along
// the torus, which joins nodes. Only the route from a memory to itself may be empty.
void check_route(const Routes& its, int route, bool may_be_empty, bool same_node,
                 std::pair<int, int> sources, std::pair<int, int> destinations, int links) {
  int length = 0, ways = 0;
  for (int h = its.first_hop[route]; h < its.first_hop[route + 1]; ++h) {
    const RouteHop& hop = its.hops[h];
    check_hop(hop, hop.of == RouteHop::Of::source ? sources : destinations, links);
    ++(hop.of == RouteHop::Of::torus ? ways : length);
    // A hop takes its whole link. A transfer that passed one link twice would slow down itself.
    for (int other = its.first_hop[route]; other < h; ++other) {
      const RouteHop& before = its.hops[other];
      if (before.of == hop.of && before.first == hop.first && before.stride == hop.stride &&
          before.span == hop.span) {
        throw std::invalid_argument("a route passes a link twice");
      }
    }
  }
  if (ways > 0 && (same_node || its.torus.shape.empty()))
    throw std::invalid_argument("a route along no torus");
  length += ways * its.torus.longest();
  if (length > Route::kMost) throw std::invalid_argument("a route of too many links");
  if (length == 0 && !may_be_empty) throw std::invalid_argument("a route of no links");
}

// Counts are checked before the arrays that have them, kinds and places before what they index, and
// hops before the routes that are made of them.
Routes routes_of(const fl_machine& machine) {
  const fl_routes& given = machine.routes;
  Routes its;
  check_positive(given.n_nodes, "node");
  check_positive(given.kinds, "kind of nodes");
  if (given.n_nodes > machine.memories || given.kinds > given.n_nodes || given.n_spans < 0 ||
      given.n_spans > given.n_nodes || given.n_routes < 0 || given.n_hops < 0) {
    throw std::invalid_argument("the machine has more nodes, kinds or groups than memories");
  }
  its.kind_of = list_of(given.kind_of, given.n_nodes);
  its.places = list_of(given.places, given.kinds);
  for (int kind : its.kind_of) check_index(kind, given.kinds, "kind of nodes");
  for (int places : its.places) {
    check_positive(places, "memory of a node");
    check_index(places - 1, machine.memories, "number of memories of a node");
  }
  its.node_of = list_of(given.node_of, machine.memories);
  its.place_of = list_of(given.place_of, machine.memories);
  std::set<std::pair<int, int>> taken;
  for (int m = 0; m < machine.memories; ++m) {
    check_index(its.node_of[m], given.n_nodes, "node");
    check_index(its.place_of[m], its.places[its.kind_of[its.node_of[m]]], "place in a node");
    // Two memories at one place would have no route between them.
    if (!taken.emplace(its.node_of[m], its.place_of[m]).second) {
      throw std::invalid_argument("two memories at one place of a node");
    }
  }
  // Groups are made of whole smaller ones: the walks of relations_of() rely on it.
  its.spans = list_of(given.spans, given.n_spans);
  for (std::size_t s = 0; s < its.spans.size(); ++s) {
    const int before = s == 0 ? 1 : its.spans[s - 1];
    if (its.spans[s] < before || its.spans[s] % before != 0) {
      throw std::invalid_argument("groups of nodes that are not made of smaller ones");
    }
  }
  its.torus = torus_of(given, machine.n_links);
  std::int64_t next = 0;
  for (int r = 0; r < given.n_routes; ++r) {
    its.first_hop.push_back(static_cast<int>(next));
    next += given.lengths[r];
    if (given.lengths[r] < 0 || given.lengths[r] > Route::kMost || next > given.n_hops) {
      throw std::invalid_argument("a route of " + std::to_string(given.lengths[r]) + " links");
    }
  }
  its.first_hop.push_back(static_cast<int>(next));
  for (int h = 0; h < given.n_hops; ++h) {
    const fl_hop& hop = given.hops[h];
    check_index(hop.of, FL_HOP_OF_TORUS + 1, "kind of hop");
    its.hops.push_back({static_cast<RouteHop::Of>(hop.of), hop.first, hop.stride, hop.span});
  }
  const std::int64_t relations = std::int64_t{given.kinds} * given.kinds * its.nearnesses();
  its.tables = list_of(given.tables, relations);
  const std::vector<bool> occurs = relations_of(its);
  const auto ends = extent_of_kinds(its);
  for (int r = 0; r < static_cast<int>(its.tables.size()); ++r) {
    const int table = its.tables[r], near = r % its.nearnesses();
    const int from = r / its.nearnesses() / given.kinds, to = r / its.nearnesses() % given.kinds;
    const std::int64_t size = std::int64_t{its.places[from]} * its.places[to];
    if (table < -1 || (table >= 0 && table + size > given.n_routes)) {
      throw std::invalid_argument("a table of routes that there are not");
    }
    if (table < 0 && occurs[static_cast<std::size_t>(r)]) {
      throw std::invalid_argument("no routes between two of the machine's nodes");
    }
    for (int i = 0; i < (table < 0 ? 0 : static_cast<int>(size)); ++i) {
      // Within a memory nothing travels, so its route may be empty.
      const bool same_memory = near == 0 && i / its.places[to] == i % its.places[to];
      check_route(its, table + i, same_memory, near == 0, ends[from], ends[to], machine.n_links);
    }
  }
  return its;
}

// Whether all that enters a memory comes over one link. Bounds of flows use it: what shares a link
// comes one after the other. All nodes of a kind are alike, so it is found for each place of a
// kind: all routes there have to end with the same hop, which belongs to the node where they end,
// or to all nodes. Where that is not sure, the answer is no: bounds get lower, and never wrong.
std::vector<bool> single_entries(const Routes& routes) {
  const int kinds = static_cast<int>(routes.places.size());
  std::vector<std::vector<bool>> single;
  for (int to = 0; to < kinds; ++to) {
    std::vector<bool>& its = single.emplace_back();
    const int width = routes.places[to];
    for (int place = 0; place < width; ++place) {
      const RouteHop* last = nullptr;
      bool one = true;
      for (int from = 0; from < kinds; ++from) {
        for (int near = 0; near < routes.nearnesses(); ++near) {
          const int table = routes.tables[(from * kinds + to) * routes.nearnesses() + near];
          for (int p = 0; p < (table < 0 ? 0 : routes.places[from]); ++p) {
            const int end = routes.first_hop[table + p * width + place + 1];
            if (end == routes.first_hop[table + p * width + place]) continue;
            const RouteHop& hop = routes.hops[end - 1];
            // That of the node where the route ends, or one that all nodes share. Within a node,
            // where a route begins is where it ends.
            one = one && (near == 0 || hop.of == RouteHop::Of::destination || hop.stride == 0);
            one = one && hop.of != RouteHop::Of::torus;
            one =
                one && (last == nullptr || (last->first == hop.first &&
                                            last->stride == hop.stride && last->span == hop.span));
            last = &hop;
          }
        }
      }
      its.push_back(one);
    }
  }
  std::vector<bool> result;
  for (std::size_t m = 0; m < routes.node_of.size(); ++m) {
    result.push_back(single[routes.kind_of[routes.node_of[m]]][routes.place_of[m]]);
  }
  return result;
}

}  // namespace

MachineModel machine_of(const fl_machine& machine) {
  MachineModel model;
  check_positive(machine.n_devices, "device");
  check_positive(machine.memories, "memory");
  check_positive(machine.kinds, "kind of devices");
  if (machine.memories > machine.n_devices || machine.kinds > machine.n_devices) {
    throw std::invalid_argument("the machine has more memories or kinds of devices than devices");
  }
  model.memories = machine.memories;
  model.kinds = machine.kinds;
  for (int d = 0; d < machine.n_devices; ++d) {
    check_index(machine.memory_of[d], machine.memories, "memory");
    check_index(machine.kind_of[d], machine.kinds, "kind of devices");
    model.memory_of.push_back(machine.memory_of[d]);
    model.kind_of.push_back(machine.kind_of[d]);
  }
  model.capacity.assign(machine.capacity, machine.capacity + machine.memories);
  if (*std::min_element(model.capacity.begin(), model.capacity.end()) < 0) {
    throw std::invalid_argument("a memory cannot hold less than no bytes");
  }
  for (int l = 0; l < machine.n_links; ++l) {
    if (machine.bandwidth[l] < 1 || machine.bandwidth[l] > kMaxRate || machine.latency[l] < 0 ||
        machine.latency[l] > kMaxTime) {
      throw std::invalid_argument("link " + std::to_string(l) +
                                  " needs a positive bandwidth and no negative latency");
    }
    model.links.push_back({machine.bandwidth[l], machine.latency[l]});
  }
  model.routes = routes_of(machine);
  model.single_entry = single_entries(model.routes);
  return model;
}

}  // namespace flexlegion
