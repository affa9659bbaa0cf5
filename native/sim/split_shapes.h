// What tasks touch of each operand, for several ways to split an operator: as few different shapes
// as there are, since what tasks take follows from these.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plan/graph.h"

namespace flexlegion {

class SplitShapes {
 public:
  SplitShapes() = default;
  // `degrees`: of each split. The operator can be split so (check_config).
  SplitShapes(const Graph& graph, OpId op, const std::vector<std::vector<int>>& degrees);

  std::int64_t count() const { return static_cast<std::int64_t>(before_.size()); }
  // Of each shape: operands x most dimensions of a tensor, with zeros beyond an operand's rank.
  const std::vector<std::int64_t>& extents() const { return extents_; }
  // Of each task of each split.
  const std::vector<std::int32_t>& shape_of() const { return shape_of_; }

 private:
  std::int32_t number(const std::int64_t* extents);

  std::size_t width_ = 0;
  std::vector<std::int64_t> extents_;
  std::vector<std::int32_t> shape_of_;
  std::vector<std::int32_t> before_;  // a shape: the one before of its hash, or -1
  std::unordered_map<std::uint64_t, std::int32_t> latest_;  // of a hash: its last shape
};

}  // namespace flexlegion
