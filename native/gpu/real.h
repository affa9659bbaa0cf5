// Real numbers in memory, as floats or in two bytes (ops/narrow.h), as bodies read and write them:
// x[i] is one of them, and what is computed is a float.
#pragma once

#include <cstdint>

#include "ops/narrow.h"

namespace flexlegion::gpu {

// One of them: a number that can be read, written, and added to.
class Real {
 public:
  FL_DEVICE Real(void* data, DataType type, std::int64_t at) : data_(data), at_(at), type_(type) {}
  Real(const Real&) = default;

  FL_DEVICE operator float() const {
    if (!is_narrow(type_)) return static_cast<const float*>(data_)[at_];
    return widened(type_, static_cast<const Narrow*>(data_)[at_]);
  }
  FL_DEVICE const Real& operator=(float value) const {
    if (is_narrow(type_)) {
      static_cast<Narrow*>(data_)[at_] = rounded(type_, value);
    } else {
      static_cast<float*>(data_)[at_] = value;
    }
    return *this;
  }
  FL_DEVICE const Real& operator=(const Real& other) const {
    return *this = static_cast<float>(other);
  }
  FL_DEVICE const Real& operator+=(float value) const {
    return *this = static_cast<float>(*this) + value;
  }

 private:
  void* data_;
  std::int64_t at_;
  DataType type_;
};

// Where some begin; without memory, nowhere.
class Reals {
 public:
  Reals() = default;
  FL_DEVICE Reals(void* data, DataType type) : data_(data), type_(type) {}

  FL_DEVICE bool present() const { return data_ != nullptr; }
  FL_DEVICE void* data() const { return data_; }
  FL_DEVICE DataType type() const { return type_; }
  FL_DEVICE Real operator[](std::int64_t i) const { return {data_, type_, i}; }
  FL_DEVICE Reals operator+(std::int64_t elements) const {
    return {static_cast<char*>(data_) + elements * element_bytes(type_), type_};
  }

 private:
  void* data_ = nullptr;
  DataType type_ = DataType::float32;
};

}  // namespace flexlegion::gpu
