// Loads of links, found from grids of tiles, against those of messages sent one by one.
#include "search/exchanges.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "../fuzz/random_graph.h"
#include "plan/graph.h"
#include "sim_harness.h"

using namespace flexlegion;
using namespace flexlegion::sim_test;

namespace {

// Nodes of devices that have a memory each. Inside a node, pairs have a link of their own; between
// nodes, a way passes the sender's link, for every other device a bus, both nodes' adapters, and
// the same on the other side. `crossed`: one pair of devices has a cable of its own.
MachineModel cluster(int nodes, int each, bool crossed) {
  MachineModel machine = all_to_all(nodes * each, 300);
  const auto link = [&machine](std::int64_t bandwidth, std::int64_t latency) {
    machine.links.push_back({bandwidth, latency});
    return static_cast<int>(machine.links.size()) - 1;
  };
  struct Side {
    int own, bus, adapter;
  };
  std::vector<Side> out, in;
  for (int d = 0; d < nodes * each; ++d) {
    for (std::vector<Side>* side : {&out, &in}) {
      const bool first = d % each == 0;
      const Side& before = first ? Side{} : side->back();
      side->push_back({link(15'000'000'000, 500 + 100 * (d % 3)),
                       first ? link(32'000'000'000, 250) : before.bus,
                       first ? link(12'500'000'000, 1'000) : before.adapter});
    }
  }
  std::vector<std::vector<int>> routes;
  for (int a = 0; a < nodes * each; ++a) {
    for (int b = 0; b < nodes * each; ++b) {
      std::vector<int>& its = routes.emplace_back();
      const Route pair = machine.route(a, b);
      if (a / each == b / each || (crossed && a == 0 && b == nodes * each - 1)) {
        its.assign(pair.begin(), pair.end());
        continue;
      }
      its.push_back(out[a].own);
      if (a % 2 == 1) its.push_back(out[a].bus);
      its.push_back(out[a].adapter);
      its.push_back(in[b].adapter);
      if (b % 2 == 1) its.push_back(in[b].bus);
      its.push_back(in[b].own);
    }
  }
  machine.routes = Routes::of_table(nodes * each, routes);
  return machine;
}

// Tasks' tiles of a tensor by an access map, each of `copies` tasks in a row; seldom some that form
// no grid.
std::vector<Rect> tiles(fuzz::Source& random, int copies, int most) {
  const std::vector<std::int64_t> shape = {12, 9, 10};
  Operand operand;
  std::vector<int> degrees;
  int tasks = copies;
  for (int d = 0; d < 3; ++d) {
    DimMap map{random.chance(0.8) ? d : -1};
    if (random.chance(0.3)) map.lo_offset = -random.upto(2);
    if (random.chance(0.3)) map.hi_offset = random.upto(2);
    operand.map.push_back(map);
    degrees.push_back(random.between(1, std::max(1, std::min(4, most / tasks))));
    tasks *= degrees.back();
  }
  Tensor tensor;
  tensor.shape = shape;
  std::vector<Rect> rects;
  for (int k = 0; k < tasks / copies; ++k) {
    const Rect rect = accessed(operand, tensor, tile_of(Rect::of_shape(shape), degrees, k));
    for (int copy = 0; copy < copies; ++copy) rects.push_back(rect);
  }
  if (copies == 1 && random.chance(0.1)) rects.back().lo[0] = 0;
  return rects;
}

}  // namespace

TEST_CASE("grids of tiles load links like messages that are sent one by one") {
  int by_grid = 0, some = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    fuzz::Source random(seed);
    const int nodes = random.between(1, 4), each = random.between(1, 4);
    const bool crossed = random.chance(0.1);
    const MachineModel machine = cluster(nodes, each, crossed);
    std::vector<int> node_of;
    for (int d = 0; d < nodes * each; ++d) node_of.push_back(d / each);
    const Ways ways(machine, node_of);
    CAPTURE(nodes);
    CAPTURE(each);
    CAPTURE(crossed);
    if (nodes > 1) CHECK(ways.by_node() == (!crossed || nodes * each == 2));
    const int partial_values = nodes * each > 1 && random.chance(0.3) ? 2 : 1;
    const TileGrid written(tiles(random, partial_values, nodes * each));
    const TileGrid read(tiles(random, 1, nodes * each));
    const std::int64_t least = random.chance(0.5) ? 0 : 300;
    std::vector<std::int64_t> partial[2];
    std::int64_t times[2];
    for (const bool grid : {false, true}) {
      Traffic traffic(ways, least);
      partial[grid].assign(written.tiles.parts.of_part.size(), 0);
      exchange(written, read, partial_values, 4, traffic, partial[grid], grid);
      times[grid] = traffic.time();
      CHECK(traffic.time() == 0);  // begins anew
    }
    CHECK(times[0] == times[1]);
    CHECK(partial[0] == partial[1]);
    by_grid += ways.by_node() && written.full && read.full ? 1 : 0;
    some += times[0] > 0 ? 1 : 0;
  }
  CHECK(by_grid > 1'000);
  CHECK(some > 1'000);
}
