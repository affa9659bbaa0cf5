// Keeps from UCX a setting of Realm's that this machine has no use for.
//
// Realm always sets the size of InfiniBand's segments, and UCX warns, several times a rank, that
// without such a network it knows no such setting. UCX has no option against this one warning.
#include <cstring>
#include <filesystem>

#include "ucp.h"

namespace {

using Modify = signed char(void*, const char*, const char*);  // ucs_status_t is packed

bool has_infiniband() {
  std::error_code error;
  return std::filesystem::directory_iterator("/sys/class/infiniband", error) !=
         std::filesystem::directory_iterator();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) signed char ucp_config_modify(void* config,
                                                                                const char* name,
                                                                                const char* value) {
  static Modify* const modify = flexlegion::net::ucp_function<Modify>("ucp_config_modify");
  if (std::strcmp(name, "IB_SEG_SIZE") == 0 && !has_infiniband()) {
    return 0;  // UCS_OK
  }
  return modify(config, name, value);
}
