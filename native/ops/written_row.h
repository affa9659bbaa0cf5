// Rows of results that functions of floats write.
#pragma once

#include "ops/narrow.h"
#include "ops/tensor_view.h"

namespace flexlegion {

// A row of numbers of some type, for a function that computes floats: written in place, or where
// they are rounded from (scratch `slot`).
class WrittenRow {
 public:
  WrittenRow(void* data, DataType type, std::int64_t elements, int slot)
      : data_(data),
        type_(type),
        elements_(elements),
        floats_(is_narrow(type) ? scratch(slot, elements) : static_cast<float*>(data)) {}
  float* floats() const { return floats_; }
  void commit() const {
    if (is_narrow(type_)) round_off(type_, floats_, static_cast<Narrow*>(data_), elements_);
  }

 private:
  void* data_;
  DataType type_;
  std::int64_t elements_;
  float* floats_;
};

}  // namespace flexlegion
