// The boundary's error rule: C functions never throw; they return a status (or null) and keep a
// message for the caller.
#pragma once

#include <exception>
#include <string>

namespace flexlegion {

// The calling thread's last message.
inline std::string& last_error() {
  thread_local std::string message;
  return message;
}

// Runs `body`; turns any exception into `failure` and a message.
template <typename Result, typename Body>
Result guarded(Result failure, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& e) {
    last_error() = e.what();
  } catch (...) {
    last_error() = "unknown native exception";
  }
  return failure;
}

}  // namespace flexlegion
