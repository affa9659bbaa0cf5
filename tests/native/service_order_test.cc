// Which micro-batch goes first, by where operators run.
#include "plan/service_order.h"

#include <doctest/doctest.h>

#include <vector>

using namespace flexlegion;

namespace {

// A chain of operators, each of which runs on these devices.
ServiceOrder of_chain(const std::vector<std::vector<int>>& devices, int micro_batches = 4) {
  Graph graph;
  graph.micro_batches = micro_batches;
  TensorId before = graph.tensors.add(Tensor());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const TensorId after = graph.tensors.add(Tensor());
    Operator op;
    op.operands.resize(2);
    op.operands[0].tensor = before;
    op.operands[0].role = Role::input;
    op.operands[1].tensor = after;
    op.operands[1].role = Role::output;
    graph.operators.push_back(op);
    before = after;
  }
  return ServiceOrder(graph,
                      [&](OpId op) -> const std::vector<int>& { return devices[op.index()]; });
}

}  // namespace

TEST_CASE("the oldest micro-batch goes first, unless the network goes round its devices") {
  for (const auto& devices : std::vector<std::vector<std::vector<int>>>{
           {{0}},
           {{0}, {0}, {1}, {1}, {2}},               // a pipeline
           {{0, 1}, {0, 1}},                        // data parallelism
           {{0}, {1}, {1}, {0}, {2}},               // not always the same
           {{0, 1}, {1, 2}, {0, 1}},                // never on other devices altogether
           {{0}, {1}, {2}, {0}, {1}, {2}, {1}}}) {  // not to the end
    const ServiceOrder order = of_chain(devices);
    CHECK(order.runs() == 1);
    for (int round = 0; round < 8; ++round) {
      CHECK(order.turn(order.visit(OpId(0), true), round) == round);
      CHECK(order.turn(order.visit(OpId(0), false), round) == round);
    }
  }
}

TEST_CASE("groups of micro-batches go round, one run of layers after the other") {
  const ServiceOrder order = of_chain({{0}, {0}, {1}, {0}, {1}, {1}});
  REQUIRE(order.stages() == 2);
  REQUIRE(order.runs() == 2);
  const OpId first(0), again(3);
  // Run 0 forward, run 1 forward, run 1 backward, run 0 backward: rounds 0 and 1, then 2 and 3.
  const auto turn = [&](OpId op, bool forward, int round) {
    return order.turn(order.visit(op, forward), round);
  };
  CHECK(turn(first, true, 0) < turn(first, true, 1));
  CHECK(turn(first, true, 1) < turn(again, true, 0));
  CHECK(turn(again, true, 1) < turn(again, false, 0));
  CHECK(turn(again, false, 1) < turn(first, false, 0));
  CHECK(turn(again, true, 1) < turn(first, true, 2));
  CHECK(turn(first, true, 2) == turn(again, false, 0));
  CHECK(turn(again, true, 3) == turn(first, false, 1));
  CHECK(turn(first, false, 1) < turn(first, true, 4));
}

TEST_CASE("stages of several devices, and a last circle that is not whole") {
  const ServiceOrder order = of_chain({{0, 1}, {0}, {2, 3}, {4, 5}, {0, 1}, {3, 2}});
  CHECK(order.stages() == 3);
  CHECK(order.runs() == 2);
  CHECK(of_chain({{0}, {1}, {0}, {1}}, 1).runs() == 1);  // a batch in one piece
}
