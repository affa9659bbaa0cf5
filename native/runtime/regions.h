// The logical regions of a program, and their partitions by the plan's rectangles.
//
// A tensor has one region for its value (and, for weights, a field an optimizer state), one for the
// stack of its gradient's partial values, whose first dimension is the slot, and one for the stack
// of its own, if it has such. An input tensor has another, into which the next batch is staged
// while the present one computes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "legion.h"
#include "support/data_type.h"
#include "support/rect.h"

namespace flexlegion {

constexpr Legion::FieldID kValueField = 100;  // optimizer state s is field kValueField + 1 + s

// What a field is stored as, of a region whose values are of that type: states are floats.
inline DataType type_of(DataType value, Legion::FieldID field) {
  return field == kValueField ? value : DataType::float32;
}

// What a region holds, for tables of memory. Fields of weights after the first are states.
enum class Content { weights, gradients, states, activations, batches, other };
constexpr std::size_t kContents = 6;
using ContentBytes = std::array<std::int64_t, kContents>;

// The instance of a field in a memory that all tasks of that memory share, be it to read or to
// write.
struct Footprint {
  Legion::LogicalRegion region;  // what it covers, exactly
  // Whether it stays as long as the region lives, so that tasks may remember where it lies. If not,
  // Legion may discard it after a use, and make another one for the next.
  bool kept = false;
};

class RegionStore {
 public:
  // Creates a region over `shape` with a field of that type, and so many states, which are floats;
  // returns its index.
  int add(const std::vector<std::int64_t>& shape, Content content = Content::other,
          DataType type = DataType::float32, int states = 0);

  Legion::LogicalRegion region(int index) const { return entries_[index].region; }
  std::array<std::int64_t, kMaxRegionRank> shape(int index) const { return entries_[index].box.hi; }
  DataType type(int index, Legion::FieldID field) const {
    return type_of(entries_[index].type, field);
  }

  // The partition whose k-th part is rects[k]; equal lists share one partition.
  Legion::LogicalPartition partition(int index, const std::vector<Rect>& rects) const;

  // Notes that tasks with that memory read or write `rect` of a field, and whether their instance
  // has to be kept; seal() then fixes every footprint.
  void touch(int index, Legion::FieldID field, Legion::Memory memory, bool reads, const Rect& rect,
             bool kept);
  void seal();
  // Bytes of the instances that each memory will hold.
  std::map<Legion::Memory, std::int64_t> bytes() const;
  std::map<Legion::Memory, ContentBytes> bytes_by_content() const;

  // For the mapper, of a region tree's field in a memory, by the tree's root: the instance of its
  // tasks that read it, or write it.
  static Footprint footprint(Legion::LogicalRegion root, Legion::FieldID field,
                             Legion::Memory memory, bool reads);
  // The instance for a look at the whole field from outside of tasks.
  static Footprint whole(Legion::LogicalRegion root, Legion::FieldID field, Legion::Memory memory);
  // Notes which instance the mapper chose for a footprint. False if it is kept, and another one was
  // chosen before: tasks would go on using the old one.
  static bool stays(Legion::LogicalRegion root, Legion::FieldID field, Legion::Memory memory,
                    bool reads, std::uint64_t instance);

  // The one-dimensional space of `count` tasks, shared by all launches and partitions.
  static Legion::IndexSpace colors(std::int64_t count);

  void destroy();  // gives the regions back to Legion; nothing may be running

 private:
  using Use = std::tuple<Legion::FieldID, Legion::Memory, bool>;
  struct Touched {
    Rect box;
    bool kept = false;
  };
  struct Entry {
    Legion::LogicalRegion region;
    Rect box;
    Content content;
    DataType type;
    // (field, memory, reads) -> footprint. Each field has its own: the states of a weight's shard,
    // say, need not lie where only its value is read.
    std::map<Use, Touched> touched;
  };

  static void share_instances(Entry& entry);

  std::vector<Entry> entries_;
};

}  // namespace flexlegion
