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

TEST_CASE("the oldest micro-batch goes first where nothing is ahead of anything") {
  for (const auto& devices : std::vector<std::vector<std::vector<int>>>{
           {{0}},
           {{0, 1}, {0, 1}},             // data parallelism
           {{0, 1}, {1, 2}, {0, 1}}}) {  // never on other devices altogether
    const ServiceOrder order = of_chain(devices);
    CHECK(order.runs() == 1);
    CHECK(order.stages() == 1);
    const int forward = order.visit(OpId(0), true), backward = order.visit(OpId(0), false);
    for (int round = 0; round < 8; ++round) {
      CHECK(order.turn(forward, round) < order.turn(backward, round));
      CHECK(order.turn(backward, round) < order.turn(forward, round + 1));
    }
  }
}

TEST_CASE("one forward, one backward: a stage's forward task goes before who goes backward then") {
  const std::vector<std::vector<int>> devices = {{0}, {0}, {1}, {1}, {2}};
  const ServiceOrder order = of_chain(devices);
  REQUIRE(order.stages() == 3);
  for (int i = 0; i < static_cast<int>(devices.size()); ++i) {
    const OpId op(i);
    const int ahead = 2 - devices[static_cast<std::size_t>(i)][0];
    const int forward = order.visit(op, true), backward = order.visit(op, false);
    for (int round = ahead; round < 8; ++round) {
      CHECK(order.turn(forward, round) < order.turn(backward, round - ahead));
      if (round > ahead)
        CHECK(order.turn(forward, round) > order.turn(backward, round - ahead - 1));
    }
  }
}

TEST_CASE("operators that were moved elsewhere are at the stage of their devices") {
  // One is back on the first stage's device, one ahead on the last stage's; one reads from nobody.
  const ServiceOrder order = of_chain({{0}, {1}, {2}, {1}, {2}, {0}, {2}, {3}});
  CHECK(order.runs() == 1);
  CHECK(order.stages() == 4);
  const std::vector<int> stages = {0, 1, 2, 1, 2, 0, 2, 3};
  for (int i = 0; i < 8; ++i) {
    CHECK(order.turn(order.visit(OpId(i), true), 5) ==
          order.turn(order.visit(OpId(0), true), 5 + stages[static_cast<std::size_t>(i)]));
  }
  CHECK(of_chain({{0}, {1}, {2}, {0}, {1}, {2}, {1}}).runs() == 1);  // round, but not to the end
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
