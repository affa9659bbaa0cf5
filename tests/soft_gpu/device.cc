#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "driver.h"

namespace soft_gpu {

void Mark::reach() {
  const std::lock_guard<std::mutex> lock(mutex_);
  reached_ = true;
  time_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

void Mark::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
}

bool Mark::reached() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reached_;
}

bool Event::reached() const {
  return std::all_of(marks_.begin(), marks_.end(),
                     [](const auto& mark) { return mark->reached(); });
}

void Event::wait() const {
  for (const auto& mark : marks_) mark->wait();
}

float Event::milliseconds_since(const Event& earlier) const {
  const auto passed = marks_.at(0)->time() - earlier.marks_.at(0)->time();
  return std::chrono::duration<float, std::milli>(passed).count();
}

Stream::~Stream() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Stream::issue(By by, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (captures_) {
    captured_.push_back({by, std::move(work)});
    return;
  }
  items_.push_back({by, std::move(work)});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void Stream::begin_capture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  captures_ = true;
}

std::vector<Item> Stream::end_capture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  captures_ = false;
  return std::exchange(captured_, {});
}

std::shared_ptr<Mark> Stream::mark() {
  auto mark = std::make_shared<Mark>();
  issue(By::host, [mark] { mark->reach(); });
  return mark;
}

void Stream::wait_for(const Event& event) {
  for (const auto& mark : event.marks()) {
    issue(By::host, [mark] { mark->wait(); });
  }
}

void Stream::run() {
  for (;;) {
    Item item;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return ends_ || !items_.empty(); });
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    if (item.by == By::device) {
      touching(item.work);
    } else {
      item.work();
    }
  }
}

namespace {

constexpr std::size_t kHugePage = 2 << 20;

std::size_t rounded(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Legion lives until the process ends, and so does this.
struct Memory {
  std::mutex mutex;
  std::map<const char*, Range, std::greater<>> ranges;  // by their first byte
  int users = 0;                                        // of device memory
};

Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

// Network libraries, which would ask a real GPU's driver to move it, need it open.
bool guarded() {
  static const bool is = std::getenv("SOFT_GPU_OPEN") == nullptr;
  return is;
}

void protect(Memory& all, int protection) {
  if (!guarded()) return;
  for (const auto& [base, range] : all.ranges) {
    if (range.device) mprotect(range.base, range.bytes, protection);
  }
}

}  // namespace

void* allocate(std::size_t bytes) {
  bytes = rounded(bytes);
  void* const mapped = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto at = reinterpret_cast<std::uintptr_t>(mapped);
  auto* const base = reinterpret_cast<char*>(rounded(at));
  // In huge pages, it is quickly opened and closed.
  madvise(base, bytes, MADV_HUGEPAGE);
  std::memset(base, 0xff, bytes);  // as floating-point numbers: none
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.ranges[base] = {base, bytes, true};
  if (all.users == 0) protect(all, PROT_NONE);
  return base;
}

void release(void* address) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.ranges.find(static_cast<char*>(address));
  if (found == all.ranges.end()) return;
  munmap(found->second.base, found->second.bytes);
  all.ranges.erase(found);
}

void touching(const std::function<void()>& body) {
  Memory& all = memory();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.users++ == 0) protect(all, PROT_READ | PROT_WRITE);
  }
  body();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (--all.users == 0) protect(all, PROT_NONE);
}

void note_host(void* address, std::size_t bytes) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.ranges[static_cast<char*>(address)] = {static_cast<char*>(address), bytes, false};
}

void forget_host(void* address) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.ranges.erase(static_cast<char*>(address));
}

Range range_of(const void* address) {
  Memory& all = memory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto* const at = static_cast<const char*>(address);
  const auto found = all.ranges.lower_bound(at);
  if (found == all.ranges.end() || at >= found->second.base + found->second.bytes) return {};
  return found->second;
}

namespace {

std::size_t number_from(const char* variable, std::size_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Streams {
  std::mutex mutex;
  std::map<int, Stream*> defaults;
  std::map<int, std::set<Stream*>> all;
};

Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}

thread_local int device = 0;

}  // namespace

int device_count() {
  static const auto count = static_cast<int>(number_from("SOFT_GPUS", 2));
  return count;
}

std::size_t device_bytes() {
  static const std::size_t bytes = number_from("SOFT_GPU_MIB", 2048) << 20;
  return bytes;
}

int current_device() { return device; }
void set_current_device(int number) { device = number; }

Stream& default_stream(int number) {
  Streams& all = streams();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Stream*& stream = all.defaults[number];
  if (stream == nullptr) {
    stream = new Stream;
    all.all[number].insert(stream);
  }
  return *stream;
}

Stream* create_stream(int number) {
  Streams& all = streams();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto* const stream = new Stream;
  all.all[number].insert(stream);
  return stream;
}

void destroy_stream(Stream* stream) {
  {
    Streams& all = streams();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (auto& [number, of_device] : all.all) of_device.erase(stream);
  }
  delete stream;
}

std::vector<std::shared_ptr<Mark>> marks_of_device(int number) {
  Streams& all = streams();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<std::shared_ptr<Mark>> marks;
  for (Stream* stream : all.all[number]) marks.push_back(stream->mark());
  return marks;
}

}  // namespace soft_gpu
