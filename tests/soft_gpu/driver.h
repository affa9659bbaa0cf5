// A GPU in software: as much of CUDA as Legion, Legate and our kernels use, done by threads of the
// host. So all of the runtime's way through GPUs (placement, staging, streams, events, timings)
// runs where there is no GPU. It is strict where a GPU is: work is asynchronous, the host cannot
// reach device memory, and memory that nobody wrote holds no numbers.
//
// SOFT_GPUS says how many there are (2), SOFT_GPU_MIB what each has (2048); SOFT_GPU_OPEN leaves
// their memory open to the host, SOFT_GPU_VERBOSE tells what of CUDA is asked for in vain.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace soft_gpu {

// A place in a stream: reached once all that was issued before it is done.
class Mark {
 public:
  void reach();
  void wait();
  bool reached();
  // When it was; only of one that was reached.
  std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point time_;
};

// Marks in some streams; none: it was not recorded, and is reached.
class Event {
 public:
  void record(std::vector<std::shared_ptr<Mark>> marks) { marks_ = std::move(marks); }
  const std::vector<std::shared_ptr<Mark>>& marks() const { return marks_; }
  bool reached() const;
  void wait() const;
  // Of events that were recorded in a stream, and are reached.
  float milliseconds_since(const Event& earlier) const;

 private:
  std::vector<std::shared_ptr<Mark>> marks_;
};

// What device code does may touch device memory, what the host does may not.
enum class By { device, host };

struct Item {
  By by;
  std::function<void()> work;
};

class Stream {
 public:
  Stream() = default;
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void issue(By by, std::function<void()> work);
  std::shared_ptr<Mark> mark();
  void wait_for(const Event& event);

  // Until end_capture(), what is issued is not done, but kept, to be issued as often as one likes.
  void begin_capture();
  std::vector<Item> end_capture();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool ends_ = false, captures_ = false;
  std::vector<Item> captured_;
  std::thread thread_;  // from the first item on
};

// Device memory. Only work of By::device, and touching(), can reach it.
void* allocate(std::size_t bytes);
void release(void* memory);
void touching(const std::function<void()>& body);

struct Range {
  char* base = nullptr;
  std::size_t bytes = 0;
  bool device = false;
};

// Memory of the host that devices reach.
void note_host(void* memory, std::size_t bytes);
void forget_host(void* memory);
// Of any kind; empty if neither.
Range range_of(const void* address);

int device_count();
std::size_t device_bytes();

// Of the thread.
int current_device();
void set_current_device(int device);

// Of a device: its default stream, and those that were created.
Stream& default_stream(int device);
Stream* create_stream(int device);
void destroy_stream(Stream* stream);
// A mark in each of its streams.
std::vector<std::shared_ptr<Mark>> marks_of_device(int device);

// Null if Realm's module has none of that name. `arguments` are those of cuLaunchKernel.
using Launchable = std::function<void()> (*)(void** arguments);
Launchable realm_kernel(const char* name);

}  // namespace soft_gpu
