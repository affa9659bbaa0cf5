// CUDA's runtime interface, as far as our kernels call it.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>

#include "driver.h"

using namespace soft_gpu;

namespace {

Stream& stream_of(cudaStream_t stream) {
  return stream == nullptr ? default_stream(current_device()) : *reinterpret_cast<Stream*>(stream);
}
Event& event_of(cudaEvent_t event) { return *reinterpret_cast<Event*>(event); }

using Work = std::vector<Item>;
template <typename Handle>
Work& work_of(Handle handle) {
  return *reinterpret_cast<Work*>(handle);
}

}  // namespace

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the software GPU";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "software GPU");
  properties->major = 9;
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrGlobalMemoryBusWidth ? 64 : 1'000'000;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) {
  *value = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(create_stream(current_device()));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  destroy_stream(&stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream_of(stream).mark()->wait();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  stream_of(stream).wait_for(event_of(event));
  return cudaSuccess;
}

// A graph is what was captured, in its order; an executable one is the same.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream_of(stream).begin_capture();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(new Work(stream_of(stream).end_capture()));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* work, cudaGraph_t graph, unsigned long long) {
  *work = reinterpret_cast<cudaGraphExec_t>(new Work(work_of(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t work, cudaStream_t stream) {
  for (const Item& item : work_of(work)) stream_of(stream).issue(item.by, item.work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &work_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t work) {
  delete &work_of(work);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event_of(event).record({stream_of(stream).mark()});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event_of(event).wait();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (event_of(from).marks().empty() || event_of(to).marks().empty()) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!event_of(from).reached() || !event_of(to).reached()) return cudaErrorNotReady;
  *milliseconds = event_of(to).milliseconds_since(event_of(from));
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  *address = allocate(bytes);
  return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  release(address);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  stream_of(stream).issue(By::device, [=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  stream_of(stream).issue(By::device, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
}

namespace flexlegion::gpu {

// Compiled without nvcc, kernels are host functions of their stream (native/gpu/launch.h).
void issue_to_host(cudaStream_t stream, std::function<void()> work) {
  stream_of(stream).issue(By::device, std::move(work));
}

}  // namespace flexlegion::gpu
