// Functions of UCX that stand behind ours of the same name.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace flexlegion::net {

// UCX's own function; ends the process where it has none, as nothing could go on.
template <typename Function>
Function* ucp_function(const char* name) {
  constexpr const char* kUcp = "libucp.so.0";
  // Not the next in the order of loading: UCX may have been loaded for Realm alone.
  void* const ucp = dlopen(kUcp, RTLD_NOLOAD | RTLD_LAZY);
  void* const found = dlsym(ucp != nullptr ? ucp : RTLD_NEXT, name);
  if (found == nullptr) {
    std::fprintf(stderr, "flexlegion: %s is in use, but has no %s\n", kUcp, name);
    std::_Exit(1);
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace flexlegion::net
