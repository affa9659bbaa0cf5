// What reduce's kernels for CPUs and GPUs share.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

#include "ops/kernel.h"

namespace flexlegion {

// Mean, sum or maximum over the `reduced` dimensions of the input.
struct Reduction {
  enum class Kind { mean, sum, maximum };
  Kind kind;
  // Of a maximum: whether all elements that have it share its gradient; else the first has it all.
  bool shares = false;
  bool reduced[kMaxRegionRank] = {};
  bool keeps_dims;

  explicit Reduction(const Attributes& attributes)
      : keeps_dims(attributes.integer("keepdims") != 0) {
    const std::string& name = attributes.text("kind");
    if (name != "mean" && name != "sum" && name != "max" && name != "amax") {
      throw std::invalid_argument("no reduction '" + name + "'");
    }
    kind = name == "mean" ? Kind::mean : name == "sum" ? Kind::sum : Kind::maximum;
    shares = name == "amax";
    std::istringstream axes(attributes.text("axes"));
    for (std::string axis; std::getline(axes, axis, ',');) {
      reduced[static_cast<std::size_t>(std::stoi(axis)) % kMaxRegionRank] = true;
    }
  }

  // What a sum is multiplied by.
  double factor(const TensorView& input) const {
    if (kind != Kind::mean) return 1;
    double count = 1;
    for (int d = 0; d < input.rank(); ++d) {
      if (reduced[d]) count *= static_cast<double>(input.shape[d]);
    }
    return 1 / count;
  }

  // The output, or its gradient, with extents of 1 where the input is reduced.
  TensorView beside(const TensorView& input, const TensorView& output) const {
    if (keeps_dims) return output;
    TensorView result = output;
    result.tile.rank = input.rank();
    for (int d = 0, mine = 0; d < input.rank(); ++d) {
      const bool kept = !reduced[d];
      result.tile.lo[d] = kept ? output.tile.lo[mine] : 0;
      result.tile.hi[d] = kept ? output.tile.hi[mine] : 1;
      result.shape[d] = kept ? output.shape[mine] : 1;
      result.stride[d] = kept ? output.stride[mine] : 0;
      mine += kept;
    }
    return result;
  }
};

}  // namespace flexlegion
