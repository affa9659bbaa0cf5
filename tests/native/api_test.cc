// What callers hand over is checked before it is used.
#include <doctest/doctest.h>
#include <flexlegion_core.h>

#include <array>
#include <string>

namespace {

std::string last_error() {
  fl_error error;
  fl_last_error(&error);
  return error.message;
}

}  // namespace

TEST_CASE("an operator of more dimensions than a space can have") {
  const std::array<std::int64_t, 2> shape = {4, 4};
  const fl_tensor tensor = {"x", FL_FLOAT32, FL_ACTIVATION, 1, 2, shape.data()};
  const std::array<fl_dim_map, 2> map = {{{0, 1, 1, 0, 0, -1, 0}, {1, 1, 1, 0, 0, -1, 0}}};
  // Bit 1 of `once` names dimension 1, and there is no bit for dimension 40.
  const fl_operand output = {0, FL_ROLE_OUTPUT, 0, FL_COMBINE_SUM, 0, 2, map.data()};
  const std::array<std::int32_t, 40> kinds = {};
  fl_operator op = {"op", "relu", 0, 40, 0, 1, kinds.data(), nullptr, &output, {}};
  const std::int32_t node = 0, predicted = 0;
  const fl_graph graph = {1, 0, 0, 1, 1, 1, 1, 1, &node, &tensor, &op, &predicted};
  const fl_strategy nothing = {0, nullptr};
  fl_plan_arrays out;
  CHECK(fl_plan_create(&graph, &nothing, 0, 0, &out) == nullptr);
  CHECK(last_error().find("number of dimensions") != std::string::npos);
}
