// The tasks that are ready on a device or link, of several micro-batches; the first one first.
//
// Most tasks get ready in the order in which they are served, since time goes on and turns with it:
// these are kept in a run that is sorted. The others are in a heap beside it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace flexlegion {

struct Ready {
  int turn;
  std::int64_t time;
  int round;
  std::uint32_t task;  // of that round

  bool operator>(const Ready& o) const {
    if (turn != o.turn) return turn > o.turn;
    return time != o.time ? time > o.time : task > o.task;
  }
};

class ReadyQueue {
 public:
  bool empty() const { return first_ == run_.size() && heap_.empty(); }
  void clear() {
    run_.clear();
    heap_.clear();
    first_ = 0;
  }
  void push(const Ready& ready) {
    if (first_ == run_.size() || ready > run_.back()) {
      run_.push_back(ready);
    } else {
      heap_.push_back(ready);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }
  const Ready& front() const { return in_heap() ? heap_.front() : run_[first_]; }
  Ready pop() {
    const Ready its = front();
    if (in_heap()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
      return its;
    }
    // What was served goes when it is half of the run, so that each task is moved once on average.
    if (2 * ++first_ > run_.size()) {
      run_.erase(run_.begin(), run_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    return its;
  }
  // body(task), which may put another task, by a map that keeps their order.
  template <typename Body>
  void for_each(const Body& body) {
    for (auto* its : {&run_, &heap_}) {
      for (Ready& ready : *its) body(ready);
    }
  }

 private:
  bool in_heap() const {
    return !heap_.empty() && (first_ == run_.size() || run_[first_] > heap_.front());
  }

  std::vector<Ready> run_, heap_;
  std::size_t first_ = 0;  // of the run, that has not been served
};

}  // namespace flexlegion
