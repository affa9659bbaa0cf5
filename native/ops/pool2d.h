// What a pooling's attributes say, and what its averages weigh: on any device.
#pragma once

#include <stdexcept>

#include "ops/window.h"

namespace flexlegion {

struct PoolLayer {
  WindowAxis h, w;
  bool maximum;
  bool count_padding;  // as elements of an average, which are zeros

  explicit PoolLayer(const Attributes& attributes)
      : h(attributes, "h"),
        w(attributes, "w"),
        maximum(attributes.text("kind") == "max"),
        count_padding(attributes.integer("count_include_pad") != 0) {
    if (!maximum && attributes.text("kind") != "average") {
      throw std::invalid_argument("kind is none of: max average");
    }
  }
};

// Of each element in the average of a window.
constexpr float average_weight(const WindowTile& h, const WindowTile& w, std::int64_t oh,
                               std::int64_t ow, bool count_padding) {
  const std::int64_t count =
      count_padding ? h.kernel * w.kernel : (h.end(oh) - h.begin(oh)) * (w.end(ow) - w.begin(ow));
  return 1.0f / static_cast<float>(count);
}

}  // namespace flexlegion
