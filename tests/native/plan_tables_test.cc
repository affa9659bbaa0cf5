// What follows from a map that says that an input's values name rows: tables, and their updates.
#include <doctest/doctest.h>

#include <stdexcept>

#include "plan/rules.h"
#include "plan_harness.h"

using namespace flexlegion;
using namespace flexlegion::plan_test;

namespace {

DimMap rows_named_by(int operand, int dim) { return {dim, 1, 1, 0, 0, operand}; }

// tokens (4, 3) -> rows of table (10, 6), y (4, 3, 6) -> loss. Split by columns and rows.
struct LookUp : Net {
  TensorId tokens, table, y, labels, losses;

  LookUp() {
    tokens = tensor("tokens", {4, 3}, TensorKind::input, false, DataType::int32);
    table = weight("table", {10, 6});
    y = tensor("y", {4, 3, 6});
    labels = tensor("labels", {4}, TensorKind::input, false, DataType::int32);
    losses = tensor("losses", {4});
    op("embedding", {{tokens, Role::input, true, {along(0), along(1)}},
                     {table, Role::weight, false, {rows_named_by(0, 3), along(2)}},
                     {y, Role::output, false, {along(0), along(1), along(2)}}});
    Operator& embedding = graph.operators.front();
    embedding.dims = {DimKind::none, DimKind::none, DimKind::parameter, DimKind::reduction};
    embedding.reductions = {10};
    loss(y, labels, losses);
    graph.operators.back().dims = {DimKind::sample};
  }
};

}  // namespace

// On two devices each, columns and rows in halves: four tasks have a quarter of the table each. To
// update it, each reads all tokens, and of y's gradient its columns.
TEST_CASE("the update of a table reads what its map says") {
  const LookUp net;
  CHECK(tables_of(net.graph) == IdVector<TensorId, bool>{false, true, false, false, false});
  const Plan plan = plan_of(net.graph, {{{1, 1, 2, 2}, {0, 1, 2, 3}}, {{1}, {0}}}, {net.y}, {0});
  CHECK(launch_of(plan, 0, Pass::backward) == nullptr);
  CHECK(plan.gradients[net.table].slots == 0);
  const Launch* update = launch_of(plan, 0, Pass::update);
  CHECK(update->devices == Devices{0, 1, 2, 3});
  const Rect tokens = box({{0, 4}, {0, 3}});
  check(find(update, net.tokens, Field::value), Privilege::read, {tokens, tokens, tokens, tokens});
  const Rect left = box({{0, 1}, {0, 4}, {0, 3}, {0, 3}}),
             right = box({{0, 1}, {0, 4}, {0, 3}, {3, 6}});
  check(find(update, net.y, Field::gradient), Privilege::read, {left, left, right, right});
  check(find(update, net.table, Field::value), Privilege::read_write,
        {box({{0, 5}, {0, 3}}), box({{5, 10}, {0, 3}}), box({{0, 5}, {3, 6}}),
         box({{5, 10}, {3, 6}})});
}

// 12 tokens name 10 rows at most; 3 of them, in a table of 100 rows, at most 3, of which a shard
// has its share. Every micro-batch has its own tokens, unless they are constant.
TEST_CASE("how many elements of a table an update changes") {
  LookUp net;
  const auto changed = [&net](const Rect& shard, bool lazy) {
    Optimizer optimizer{2};
    optimizer.lazy = lazy;
    return updated_elements(net.graph, facts_of(net.graph, {}, optimizer), net.table, shard);
  };
  CHECK(changed(box({{0, 10}, {0, 6}}), false) == 60);
  CHECK(changed(box({{0, 10}, {0, 6}}), true) == 60);
  net.graph.tensors[net.table].shape = {100, 6};
  const Rect whole = box({{0, 100}, {0, 6}}), quarter = box({{0, 25}, {0, 6}});
  CHECK(changed(whole, false) == 600);
  CHECK(changed(whole, true) == 12 * 6);
  CHECK(changed(box({{0, 100}, {0, 3}}), true) == 12 * 3);
  CHECK(changed(quarter, true) == 3 * 6);
  CHECK(changed(box({{0, 30}, {0, 6}}), true) == 4 * 6);  // of 3.6 rows
  net.graph.micro_batches = 3;
  CHECK(changed(whole, true) == 36 * 6);
  CHECK(changed(quarter, true) == 9 * 6);
  net.graph.tensors[net.tokens].kind = TensorKind::weight;
  CHECK(changed(whole, true) == 12 * 6);
}

TEST_CASE("what is used otherwise as well is no table") {
  LookUp net;
  const TensorId product = net.tensor("product", {4, 10}),
                 x = net.tensor("x", {4, 6}, TensorKind::input);
  net.op("dense", {{x, Role::input, true, {along(0), kWhole}},
                   {net.table, Role::weight, true, {along(1), kWhole}},
                   {product, Role::output, false, {along(0), along(1)}}});
  net.graph.operators.back().dims = {DimKind::sample, DimKind::parameter};
  CHECK(!tables_of(net.graph)[net.table]);
  net.graph.operators.front().dims[0] = DimKind::sample;  // as its look-ups may be split, then
  CHECK_NOTHROW(check_graph(net.graph));
  const GraphFacts facts = facts_of(net.graph, {net.y, product});
  CHECK(facts.backward.front());
  CHECK(facts.lookups.empty());
}

TEST_CASE("look-ups that no update knows are refused") {
  const auto refused = [](auto change, const char* why) {
    LookUp net;
    change(net, net.graph.operators.front());
    CHECK_THROWS_WITH_AS(check_graph(net.graph), doctest::Contains(why), std::invalid_argument);
  };
  const char* const other = "looks rows up in another way";
  refused([](LookUp&, Operator& op) { op.operands[1].map[0].named_by = 1; }, other);
  refused([](LookUp&, Operator& op) { op.operands[1].map[0].named_by = 9; }, other);
  refused([](LookUp&, Operator& op) { op.operands[1].map[0].lo_offset = 1; }, other);
  refused([](LookUp&, Operator& op) { op.operands[1].map[0].out_dim = 1; }, other);
  refused(
      [](LookUp&, Operator& op) {
        op.operands[1].map = {along(2), rows_named_by(0, 3)};
      },
      other);
  refused([](LookUp&, Operator& op) { op.operands[1].map[1] = kWhole; }, other);
  refused([](LookUp&, Operator& op) { op.reductions = {9}; }, other);
  refused([](LookUp& net, Operator&) { net.graph.tensors[net.tokens].type = DataType::float32; },
          other);
  refused([](LookUp&, Operator& op) { op.operands[2].map[0].named_by = 0; },
          "an output of which tokens name rows");
  refused([](LookUp&, Operator& op) { op.dims[1] = DimKind::attribute; },
          "not split by the rows and columns of its table alone");
}
