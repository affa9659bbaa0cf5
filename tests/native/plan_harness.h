// What the plan's tests share: rectangles, access maps and small graphs in few words, and finding
// launches and requirements in a plan.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/verify.h"

namespace flexlegion::plan_test {

using Intervals = std::initializer_list<std::pair<std::int64_t, std::int64_t>>;

inline Rect box(Intervals intervals) {
  Rect r;
  for (const auto& [lo, hi] : intervals) {
    r.lo[r.rank] = lo;
    r.hi[r.rank++] = hi;
  }
  return r;
}

inline const DimMap kWhole{};
inline DimMap along(int d) { return {d, 1, 1, 0, 0}; }
inline DimMap window(int d, int kernel, int stride, int padding) {
  return {d, stride, 1, -padding, kernel - stride - padding};
}
inline DimMap divided(int d, int by) { return {d, 1, by, 0, 0}; }

struct Net {
  Graph graph;

  TensorId tensor(const std::string& name, std::vector<std::int64_t> shape,
                  TensorKind kind = TensorKind::activation, bool gradient = false,
                  DataType type = DataType::float32) {
    return graph.tensors.add({name, std::move(shape), type, kind, gradient});
  }
  TensorId weight(const std::string& name, std::vector<std::int64_t> shape) {
    return tensor(name, std::move(shape), TensorKind::weight, true);
  }
  OpId op(const std::string& name, std::vector<Operand> operands, bool is_loss = false) {
    Operator o;
    o.name = name;
    o.is_loss = is_loss;
    o.operands = std::move(operands);
    return graph.operators.add(std::move(o));
  }
  // Element-wise, of two dimensions.
  OpId relu(TensorId in, TensorId out) {
    return op("relu", {{in, Role::input, false, {along(0), along(1)}},
                       {out, Role::output, true, {along(0), along(1)}}});
  }
  // Both operands are whole but for the samples.
  OpId loss(TensorId prediction, TensorId labels, TensorId out) {
    const auto map = [&](TensorId t) {
      std::vector<DimMap> m(graph.tensors[t].shape.size());
      m[0] = along(0);
      return m;
    };
    return op("loss",
              {{prediction, Role::input, true, map(prediction)},
               {labels, Role::input, true, map(labels)},
               {out, Role::output, false, {along(0)}}},
              true);
  }
  OpId dense(TensorId x, TensorId w, TensorId b, TensorId y) {
    return op("dense", {{x, Role::input, true, {along(0), kWhole}},
                        {w, Role::weight, true, {along(1), kWhole}},
                        {b, Role::weight, false, {along(1)}},
                        {y, Role::output, false, {along(0), along(1)}}});
  }
};

// x (4, 6) -> dense of 8 units -> loss with labels (4).
struct DenseNet : Net {
  TensorId x, w, b, y, labels, losses;

  explicit DenseNet(bool gradient_of_x = false) {
    x = tensor("x", {4, 6}, TensorKind::input, gradient_of_x);
    w = weight("w", {8, 6});
    b = weight("b", {8});
    y = tensor("y", {4, 8});
    labels = tensor("labels", {4}, TensorKind::input, false, DataType::int32);
    losses = tensor("losses", {4});
    dense(x, w, b, y);
    loss(y, labels, losses);
  }
};

// The same, with the 6 channels of x as a reduction.
struct ReducedDense : DenseNet {
  ReducedDense() {
    Operator& op = graph.operators.front();
    op.dims = {DimKind::sample, DimKind::parameter, DimKind::reduction};
    op.reductions = {6};
    op.operands[0].map = {along(0), along(2)};
    op.operands[1].map = {along(1), along(2)};
    op.operands[2].once = 1u << 2;
    graph.operators.back().dims = {DimKind::sample};
    check_graph(graph);
  }
};

// A plan that keeps to its invariants.
inline Plan plan_of(const Graph& graph, const Strategy& strategy,
                    const std::vector<TensorId>& outputs, Optimizer optimizer) {
  Plan plan = make_plan(graph, strategy, outputs, optimizer);
  verify(graph, plan);
  return plan;
}

// `op` is the number of the operator, or -1.
inline const Launch* launch_of(const Plan& plan, int op, Pass pass) {
  const Launch* found = nullptr;
  for (const Launch& launch : plan.launches) {
    if (launch.op.value != op || launch.pass != pass) continue;
    REQUIRE(found == nullptr);
    found = &launch;
  }
  return found;
}

inline const Launch* load_of(const Plan& plan, TensorId tensor) {
  for (const Launch& launch : plan.launches) {
    if (launch.pass == Pass::load && launch.requirements.at(0).tensor == tensor) return &launch;
  }
  return nullptr;
}

inline const Requirement* find(const Launch* launch, TensorId tensor,
                               Field field = Field::gradient) {
  REQUIRE(launch != nullptr);
  for (const Requirement& r : launch->requirements) {
    if (r.tensor == tensor && r.field == field) return &r;
  }
  return nullptr;
}

inline void check(const Requirement* r, Privilege privilege, const std::vector<Rect>& rects) {
  REQUIRE(r != nullptr);
  CHECK(r->privilege == privilege);
  REQUIRE(r->rects.size() == rects.size());
  for (std::size_t k = 0; k < rects.size(); ++k) {
    CAPTURE(k);
    CHECK(r->rects[k] == rects[k]);
  }
}

using Devices = std::vector<int>;
using Adds = std::vector<bool>;

}  // namespace flexlegion::plan_test
