// The boundary's error rule: C functions never throw; they return a status (or null) and keep a
// message for the caller.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flexlegion_core.h"

namespace flexlegion {

// A mistake of the user's that only native code can see, such as too little memory: its message is
// for them.
class UserMistake : public std::runtime_error {
 public:
  explicit UserMistake(const std::string& message, std::vector<fl_memory_need> its_needs = {})
      : std::runtime_error(message), needs(std::move(its_needs)) {}
  std::vector<fl_memory_need> needs;  // where a memory was too small, of each
};

struct LastError {
  std::string message;
  bool is_users = false;
  std::vector<fl_memory_need> needs;
};

// The calling thread's (plan/api.cc).
LastError& last_error();

// Runs `body`; turns any exception into `failure` and a message.
template <typename Result, typename Body>
Result guarded(Result failure, Body&& body) noexcept {
  try {
    return body();
  } catch (const UserMistake& e) {
    last_error() = {e.what(), true, e.needs};
  } catch (const std::bad_alloc&) {
    last_error() = {
        "this machine has too little memory for that; take a smaller network or batch, "
        "fewer devices or micro-batches, or a machine with more memory",
        true,
        {}};
  } catch (const std::exception& e) {
    last_error() = {e.what(), false, {}};
  } catch (...) {
    last_error() = {"unknown native exception", false, {}};
  }
  return failure;
}

}  // namespace flexlegion
