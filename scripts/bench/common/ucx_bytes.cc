// Counts what Realm hands to UCX, which pip's UCX, built without statistics, does not count itself.
//
// Realm sends by two functions alone: it writes into another rank's memory, and sends messages.
// This library defines both, by UCX's own names, adds up their sizes, and calls UCX's. So it has to
// be loaded before Realm is, and with RTLD_GLOBAL.
#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>

namespace {

std::atomic<std::uint64_t> written{0}, sent{0};

template <typename Function>
Function* behind(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libucp.so.0", RTLD_NOLOAD | RTLD_LAZY), name));
}

// Of a buffer, which is one of bytes unless its type says that it is a list of several.
std::uint64_t size_of(const void* buffer, std::size_t count, const ucp_request_param_t* param) {
  if ((param->op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE) == 0) {
    return count;
  }
  if ((param->datatype & UCP_DATATYPE_CLASS_MASK) != UCP_DATATYPE_IOV) {
    return count * (param->datatype >> UCP_DATATYPE_SHIFT);
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    total += static_cast<const ucp_dt_iov_t*>(buffer)[i].length;
  }
  return total;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void* buffer, std::size_t count,
                                      std::uint64_t address, ucp_rkey_h rkey,
                                      const ucp_request_param_t* param) {
  static auto* const put = behind<decltype(ucp_put_nbx)>("ucp_put_nbx");
  written += size_of(buffer, count, param);
  return put(ep, buffer, count, address, rkey, param);
}

EXPORTED ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void* header,
                                          std::size_t header_length, const void* buffer,
                                          std::size_t count, const ucp_request_param_t* param) {
  static auto* const send = behind<decltype(ucp_am_send_nbx)>("ucp_am_send_nbx");
  sent += size_of(buffer, count, param);
  return send(ep, id, header, header_length, buffer, count, param);
}

// Bytes written into other ranks' memories, and of messages without their headers.
EXPORTED std::uint64_t bytes_written() { return written; }
EXPORTED std::uint64_t bytes_sent() { return sent; }
