// What kernel tests need of a real device: memory that both sides reach, and a task around a
// kernel's call. Compiled for the host, it is plain memory and a plain call.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace flexlegion::testing {

#ifdef FLEXLEGION_CUDA_TESTS

void* allocate_managed(std::size_t bytes);
void free_managed(void* memory);

// Returns when the device has done what `body` asked of it.
void on_device(const std::function<void()>& body);

template <typename T>
struct Managed {
  using value_type = T;
  Managed() = default;
  template <typename U>
  Managed(const Managed<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(allocate_managed(n * sizeof(T))); }
  void deallocate(T* memory, std::size_t) { free_managed(memory); }
  bool operator==(const Managed&) const { return true; }
  bool operator!=(const Managed&) const { return false; }
};

template <typename T>
using Array = std::vector<T, Managed<T>>;

#else

inline void on_device(const std::function<void()>& body) { body(); }

template <typename T>
using Array = std::vector<T>;

#endif

}  // namespace flexlegion::testing
