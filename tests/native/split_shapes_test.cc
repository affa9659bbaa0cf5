// Shapes that are found for kinds of parts are those of the tasks.
#include "sim/split_shapes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "flexlegion_core.h"
#include "plan_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;

namespace {

// The extents of each task of a split, one task after the other.
std::vector<std::int64_t> of_tasks(const Graph& graph, OpId op, const std::vector<int>& degrees) {
  const auto& operands = graph.operators[op].operands;
  std::vector<std::vector<Rect>> rects;
  for (const Operand& its : operands) rects.push_back(accessed_rects(graph, op, its, degrees));
  std::vector<std::int64_t> extents;
  for (std::size_t k = 0; k < rects.front().size(); ++k) {
    for (const auto& of_operand : rects) {
      for (int d = 0; d < FL_MAX_RANK; ++d) {
        const Rect& rect = of_operand[k];
        extents.push_back(d < rect.rank ? rect.extent(d) : 0);
      }
    }
  }
  return extents;
}

void check(const Graph& graph, OpId op, const std::vector<std::vector<int>>& degrees) {
  const SplitShapes shapes(graph, op, degrees);
  const std::size_t width = graph.operators[op].operands.size() * FL_MAX_RANK;
  std::vector<std::int64_t> found, wanted;
  std::int32_t next = 0;  // shapes are numbered as tasks first have them
  for (const std::int32_t shape : shapes.shape_of()) {
    CHECK(shape <= next);
    next = std::max(next, shape + 1);
    const auto row = shapes.extents().begin() + static_cast<std::ptrdiff_t>(shape * width);
    found.insert(found.end(), row, row + static_cast<std::ptrdiff_t>(width));
  }
  for (const auto& its : degrees) {
    const auto rows = of_tasks(graph, op, its);
    wanted.insert(wanted.end(), rows.begin(), rows.end());
  }
  CHECK(next == shapes.count());
  CHECK(found == wanted);
}

}  // namespace

// x (7, 11, 5) -> y (7, 10, 6): a window of three of 11 positions, clipped at both ends, and a sum
// over 5; the bias is added by the first part of the sum.
TEST_CASE("shapes: windows, uneven parts, reductions, and what the first part alone touches") {
  Net net;
  const TensorId x = net.tensor("x", {7, 11, 5}, TensorKind::input, true);
  const TensorId w = net.weight("w", {6, 5}), bias = net.weight("bias", {6});
  const TensorId y = net.tensor("y", {7, 10, 6});
  Operand added{bias, Role::weight, false, {along(2)}};
  added.once = 1u << 3;
  const OpId op =
      net.op("windowed", {{x, Role::input, true, {along(0), window(1, 3, 1, 1), along(3)}},
                          {w, Role::weight, true, {along(2), along(3)}},
                          added,
                          {y, Role::output, false, {along(0), along(1), along(2)}}});
  net.graph.operators[op].reductions = {5};
  net.graph.operators[op].dims = {DimKind::sample, DimKind::attribute, DimKind::parameter,
                                  DimKind::reduction};
  std::vector<std::vector<int>> every;
  for (int a : {1, 2, 3, 7}) {
    for (int b : {1, 2, 3, 4, 10}) {
      for (int c : {1, 2, 4, 6}) {
        for (int d : {1, 2, 3, 5}) every.push_back({a, b, c, d});
      }
    }
  }
  check(net.graph, op, every);
}

// Every part of an attention's positions reads all positions before it.
TEST_CASE("shapes: of a prefix, every part has its own") {
  Net net;
  const TensorId x = net.tensor("x", {9, 4}, TensorKind::input, true);
  const TensorId y = net.tensor("y", {9, 4});
  DimMap prefix = along(0);
  prefix.prefix = true;
  const OpId op = net.op("causal", {{x, Role::input, false, {prefix, along(1)}},
                                    {y, Role::output, false, {along(0), along(1)}}});
  net.graph.operators[op].dims = {DimKind::attribute, DimKind::sample};
  check(net.graph, op, {{1, 1}, {9, 1}, {4, 2}, {3, 4}, {9, 4}});
}
