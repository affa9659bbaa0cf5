// CUDA's driver interface, as far as Realm and Legate call it: libcuda.so.1.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "driver.h"

namespace {

using namespace soft_gpu;

// A context is its device's only one; as a handle, its number + 1.
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
}
int device_of(CUcontext context) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
}

std::vector<CUcontext>& contexts() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

Stream& stream_of(CUstream stream) {
  const bool by_default = stream == nullptr || stream == CU_STREAM_LEGACY;
  return by_default ? default_stream(current_device()) : *reinterpret_cast<Stream*>(stream);
}
Event& event_of(CUevent event) { return *reinterpret_cast<Event*>(event); }

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult later(CUstream stream, std::function<void()> work) {
  stream_of(stream).issue(By::device, std::move(work));
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult fill_later(CUstream stream, CUdeviceptr to, std::size_t pitch, Value value,
                    std::size_t width, std::size_t height) {
  return later(stream, [=] {
    for (std::size_t row = 0; row < height; ++row) {
      auto* const values = reinterpret_cast<Value*>(to + row * pitch);
      for (std::size_t i = 0; i < width; ++i) values[i] = value;
    }
  });
}

// One side of a copy of rows.
struct Side {
  char* base;
  std::size_t pitch, height;
  char* row(std::size_t z, std::size_t y) const { return base + (z * height + y) * pitch; }
};

char* base_of(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? static_cast<char*>(const_cast<void*>(host))
                                    : static_cast<char*>(pointer(device));
}

CUresult copy_rows(CUstream stream, Side to, Side from, std::size_t bytes, std::size_t height,
                   std::size_t depth) {
  return later(stream, [=] {
    for (std::size_t z = 0; z < depth; ++z) {
      for (std::size_t y = 0; y < height; ++y) std::memcpy(to.row(z, y), from.row(z, y), bytes);
    }
  });
}

CUresult copy_now(void* to, const void* from, std::size_t bytes) {
  touching([=] { std::memmove(to, from, bytes); });
  return CUDA_SUCCESS;
}
CUresult copy_later(CUstream stream, void* to, const void* from, std::size_t bytes) {
  return later(stream, [=] { std::memmove(to, from, bytes); });
}

// For what nobody here calls.
CUresult not_there() { return CUDA_ERROR_NOT_SUPPORTED; }

// A function of this library; null if it has none of that name.
void* own(const std::string& name) {
  static void* const library = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&not_there), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return dlsym(library, name.c_str());
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "an error of the software GPU";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) { return cuGetErrorName(error, text); }

// --- devices and contexts ---

CUresult cuDeviceGetCount(int* count) {
  *count = device_count();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(length), "software GPU");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid, device + 1, sizeof(*uuid));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
  *bytes = device_bytes();
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = device_bytes();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      *value = 1;
      break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      *value = 1'000'000;  // kHz
      break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      *value = 64;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = device;
      break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      *value = -1;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  *can = 1;
  return CUDA_SUCCESS;
}
CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxSetFlags(CUdevice, unsigned) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) {
  contexts().push_back(context);
  set_current_device(device_of(context));
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (contexts().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = contexts().back();
  contexts().pop_back();
  if (!contexts().empty()) set_current_device(device_of(contexts().back()));
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts().empty() ? nullptr : contexts().back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return contexts().empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuCtxGetFlags(unsigned* flags) {
  *flags = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  for (const auto& mark : marks_of_device(current_device())) mark->wait();
  return CUDA_SUCCESS;
}
CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
  event_of(event).record(marks_of_device(device_of(context)));
  return CUDA_SUCCESS;
}

// --- streams and events ---

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(create_stream(current_device()));
  return CUDA_SUCCESS;
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
CUresult cuStreamDestroy(CUstream stream) {
  destroy_stream(&stream_of(stream));
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  stream_of(stream).mark()->wait();
  return CUDA_SUCCESS;
}
CUresult cuStreamQuery(CUstream stream) {
  return stream_of(stream).mark()->reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  stream_of(stream).wait_for(event_of(event));
  return CUDA_SUCCESS;
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned) {
  stream_of(stream).issue(By::host, [=] { callback(stream, CUDA_SUCCESS, data); });
  return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  stream_of(stream).issue(By::host, [=] { function(data); });
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(new Event);
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  delete &event_of(event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  event_of(event).record({stream_of(stream).mark()});
  return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) {
  return event_of(event).reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuEventSynchronize(CUevent event) {
  event_of(event).wait();
  return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
  if (event_of(from).marks().empty() || event_of(to).marks().empty()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!event_of(from).reached() || !event_of(to).reached()) return CUDA_ERROR_NOT_READY;
  *milliseconds = event_of(to).milliseconds_since(event_of(from));
  return CUDA_SUCCESS;
}

// --- memory ---

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  *address = reinterpret_cast<CUdeviceptr>(allocate(bytes));
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
  release(pointer(address));
  return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream) {
  return cuMemAlloc(address, bytes);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  stream_of(stream).issue(By::host, [=] { release(pointer(address)); });
  return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  *address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*address == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  note_host(*address, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned) {
  return cuMemHostAlloc(reinterpret_cast<void**>(address), bytes, 0);
}
CUresult cuMemFreeHost(void* address) {
  forget_host(address);
  std::free(address);
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister(void* address, std::size_t bytes, unsigned) {
  note_host(address, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void* address) {
  forget_host(address);
  return CUDA_SUCCESS;
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned) {
  *device = reinterpret_cast<CUdeviceptr>(host);
  return range_of(host).base == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  const Range range = range_of(pointer(address));
  if (range.base == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(range.base);
  if (bytes != nullptr) *bytes = range.bytes;
  return CUDA_SUCCESS;
}
// Other processes' memory is out of reach; Realm asks for the handle anyway.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr) {
  std::memset(handle, 0, sizeof(*handle));
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const Range range = range_of(pointer(address));
  if (range.base == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(value) = reinterpret_cast<CUdeviceptr>(range.base);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(value) = range.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<CUmemorytype*>(value) = range.device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr address) {
  for (unsigned i = 0; i < count; ++i) {
    const CUresult result = cuPointerGetAttribute(values[i], attributes[i], address);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy_now(pointer(to), from, bytes);
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  return copy_now(to, pointer(from), bytes);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_later(stream, pointer(to), pointer(from), bytes);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_later(stream, pointer(to), pointer(from), bytes);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  return copy_later(stream, pointer(to), from, bytes);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_later(stream, to, pointer(from), bytes);
}
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* copy, CUstream stream) {
  const CUDA_MEMCPY2D c = *copy;
  const Side to{
      base_of(c.dstMemoryType, c.dstHost, c.dstDevice) + c.dstY * c.dstPitch + c.dstXInBytes,
      c.dstPitch, 0};
  const Side from{
      base_of(c.srcMemoryType, c.srcHost, c.srcDevice) + c.srcY * c.srcPitch + c.srcXInBytes,
      c.srcPitch, 0};
  return copy_rows(stream, to, from, c.WidthInBytes, c.Height, 1);
}
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* copy, CUstream stream) {
  const CUDA_MEMCPY3D c = *copy;
  if (c.dstMemoryType == CU_MEMORYTYPE_ARRAY || c.srcMemoryType == CU_MEMORYTYPE_ARRAY) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const Side to{base_of(c.dstMemoryType, c.dstHost, c.dstDevice), c.dstPitch, c.dstHeight};
  const Side from{base_of(c.srcMemoryType, c.srcHost, c.srcDevice), c.srcPitch, c.srcHeight};
  const Side to_corner{to.row(c.dstZ, c.dstY) + c.dstXInBytes, to.pitch, to.height};
  const Side from_corner{from.row(c.srcZ, c.srcY) + c.srcXInBytes, from.pitch, from.height};
  return copy_rows(stream, to_corner, from_corner, c.WidthInBytes, c.Height, c.Depth);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t n, CUstream stream) {
  return fill_later(stream, to, 0, value, n, 1);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t n, CUstream stream) {
  return fill_later(stream, to, 0, value, n, 1);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t n, CUstream stream) {
  return fill_later(stream, to, 0, value, n, 1);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value,
                           std::size_t width, std::size_t height, CUstream stream) {
  return fill_later(stream, to, pitch, value, width, height);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, std::size_t pitch, unsigned short value,
                            std::size_t width, std::size_t height, CUstream stream) {
  return fill_later(stream, to, pitch, value, width, height);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, std::size_t pitch, unsigned value, std::size_t width,
                            std::size_t height, CUstream stream) {
  return fill_later(stream, to, pitch, value, width, height);
}

// --- kernels: only Realm's ---

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  *module = reinterpret_cast<CUmodule>(const_cast<void*>(image));
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  // Of functions that are not there, only the launch fails: Realm asks for more than it launches.
  *function = reinterpret_cast<CUfunction>(new std::string(name));
  return CUDA_SUCCESS;
}
// Legate loads its own kernels at its start, and launches none of them here.
CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                           CUlibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<CUlibrary>(const_cast<void*>(image));
  return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char* name) {
  return cuModuleGetFunction(reinterpret_cast<CUfunction*>(kernel), nullptr, name);
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int* blocks, int* threads, CUfunction, CUoccupancyB2DSize,
                                          std::size_t, int) {
  *blocks = 1;
  *threads = 1024;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, std::size_t) {
  *blocks = 1;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, unsigned, CUstream stream, void** arguments, void**) {
  const std::string& name = *reinterpret_cast<const std::string*>(function);
  const Launchable kernel = realm_kernel(name.c_str());
  if (kernel == nullptr) {
    std::fprintf(stderr, "the software GPU has no kernel '%s'\n", name.c_str());
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return later(stream, kernel(arguments));
}

CUresult cuGetProcAddress(const char* symbol, void** function, int, cuuint64_t,
                          CUdriverProcAddressQueryResult* found) {
  if (found != nullptr) *found = CU_GET_PROC_ADDRESS_SUCCESS;
  *function = own(symbol + std::string("_v2"));
  if (*function == nullptr) *function = own(symbol);
  if (*function != nullptr) return CUDA_SUCCESS;
  if (std::getenv("SOFT_GPU_VERBOSE") != nullptr) {
    std::fprintf(stderr, "the software GPU has no %s\n", symbol);
  }
  *function = reinterpret_cast<void*>(&not_there);
  return CUDA_SUCCESS;
}

// Legate looks it up under its old name.
CUresult old_get_proc_address(const char* symbol, void** function, int version,
                              cuuint64_t flags) __asm__("cuGetProcAddress");
CUresult old_get_proc_address(const char* symbol, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress(symbol, function, version, flags, nullptr);
}
}
