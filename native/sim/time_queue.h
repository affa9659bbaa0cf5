// Events to come, the next moment first: a radix heap.
//
// Simulated time never goes back. So events are kept by the highest bit in which their time differs
// from the present moment: bucket 0 has those of the moment, bucket b those that differ in bit b -
// 1 and in no higher one. When bucket 0 is empty, the first bucket that is not has the next moment;
// its events go to lower buckets, each at most 64 times in all. There are millions of events to
// come where gradients are summed over a thousand devices: unlike a heap, this reads memory in
// order.
//
// Events of one moment come in no particular order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace flexlegion {

class TimeQueue {
 public:
  struct Event {
    std::int64_t time;
    std::uint32_t what;
  };

  bool empty() const { return size_ == 0; }
  void clear() {
    for (auto& bucket : buckets_) bucket.clear();
    now_ = 0;
    size_ = 0;
  }
  // Not before the moment that next() has told last.
  void push(std::int64_t time, std::uint32_t what) {
    buckets_[bucket_of(time)].push_back({time, what});
    ++size_;
  }
  // The next moment; the queue is not empty.
  std::int64_t next() {
    std::size_t b = 0;
    while (buckets_[b].empty()) ++b;
    if (b == 0) return now_;
    auto& from = buckets_[b];
    now_ = std::min_element(from.begin(), from.end(), [](const Event& a, const Event& o) {
             return a.time < o.time;
           })->time;
    for (const Event& event : from) buckets_[bucket_of(event.time)].push_back(event);
    from.clear();
    return now_;
  }
  // Takes out all events of the moment that next() has told, into `events`.
  void take(std::vector<Event>& events) {
    events.clear();
    events.swap(buckets_[0]);
    size_ -= events.size();
  }
  template <typename Body>
  void for_each(const Body& body) const {
    for (const auto& bucket : buckets_) {
      for (const Event& event : bucket) body(event);
    }
  }

 private:
  std::size_t bucket_of(std::int64_t time) const {
    const auto differs = static_cast<std::uint64_t>(time ^ now_);
    return differs == 0 ? 0 : 64 - static_cast<std::size_t>(__builtin_clzll(differs));
  }

  std::array<std::vector<Event>, 65> buckets_;
  std::int64_t now_ = 0;
  std::size_t size_ = 0;
};

}  // namespace flexlegion
