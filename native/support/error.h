// The boundary's error rule: C functions never throw; they return a status (or null) and keep a
// message for the caller.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace flexlegion {

// The calling thread's last message.
inline std::string& last_error() {
  thread_local std::string message;
  return message;
}

// A mistake of the user's that only native code can see, such as too little memory: its message is
// for them.
class UserMistake : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whether the calling thread's last error was one.
inline bool& last_error_is_users() {
  thread_local bool users = false;
  return users;
}

// Runs `body`; turns any exception into `failure` and a message.
template <typename Result, typename Body>
Result guarded(Result failure, Body&& body) noexcept {
  last_error_is_users() = false;
  try {
    return body();
  } catch (const UserMistake& e) {
    last_error() = e.what();
    last_error_is_users() = true;
  } catch (const std::exception& e) {
    last_error() = e.what();
  } catch (...) {
    last_error() = "unknown native exception";
  }
  return failure;
}

}  // namespace flexlegion
