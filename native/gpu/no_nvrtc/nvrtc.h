// Instead of CUDA's header of that name, for fused_attention.cu alone. cuDNN's front end includes
// it for an engine of its own that compiles kernels at run time, which we never ask for: so neither
// that header nor its library has to be there.
#pragma once

#include <cstddef>

enum nvrtcResult {
  NVRTC_SUCCESS = 0,
  NVRTC_COMPILATION_FAILED = 6,
  NVRTC_ERROR_INTERNAL_ERROR = 11
};
using nvrtcProgram = struct _nvrtcProgram*;

inline nvrtcResult nvrtcVersion(int*, int*) { return NVRTC_ERROR_INTERNAL_ERROR; }
inline const char* nvrtcGetErrorString(nvrtcResult) { return "NVRTC is not used"; }
inline nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int,
                                      const char* const*, const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
inline nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_INTERNAL_ERROR; }
inline nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
inline nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
inline nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
inline nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
inline nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
inline nvrtcResult nvrtcGetPTXSize(nvrtcProgram, std::size_t*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
inline nvrtcResult nvrtcGetPTX(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
