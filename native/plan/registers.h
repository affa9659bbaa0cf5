// Registers: memory that short-lived tensors take in turn.
//
// A tensor that is needed in the forward pass alone, or a gradient of an activation, is needed for
// a few launches. As soon as its last user has run, the next tensor can have its memory. Two
// questions have to be answered for that, and each has its own place:
//
// - *Who could take turns* follows from the graph alone: registers_of() gives tensors numbers, so
//   that no two of one number are needed at the same time. It is the linear scan of register
//   allocation (Poletto and Sarkar, 1999) over the order of issue.
// - *Who does* is the strategy's to decide.
//   If each device touches one rectangle of a tensor alone, and computes it itself, the tensor is
//   *local*: nobody fetches it. It has a register for tensors of any shape, of which each device
//   has a part for itself.
//   Other tensors have registers for tensors of one shape and type. Tenants of such a one share
//   memory if every device touches the same rectangles of both (TenantKey). Then sharing costs no
//   memory, and whoever writes the second tensor on a device waits for tasks of that device, which
//   come before it anyway, and until other devices have fetched what they read of the first; of
//   that wait the simulator does not know. Tenants that differ keep memory of their own.
//
// So a proposal of the search changes the keys of the tensors that it touches, and nobody's number.
//
// Forward and backward passes have registers of their own: where several micro-batches are under
// way, a forward pass must not wait for the backward pass of the one before.
//
// Weights that are sharded (Sharding) have tensors that are needed for a few launches as well: what
// is gathered of their values, and partial values of their gradients.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "plan/facts.h"
#include "plan/places.h"
#include "support/rect.h"

namespace flexlegion {

struct Plan;

// The registers of a place, by their numbers; -1: none.
struct RegisterNumbers {
  int alike = -1;  // of tensors of its shape
  int local = -1;  // of tensors of any shape
};
// Places that are not listed keep memory of their own.
using Registers = std::map<Place, RegisterNumbers>;
Registers registers_of(const Graph& graph, const GraphFacts& facts);

// How many registers micro-batches take in turn of a place (buffers_of), and how many the strategy
// says (ParallelConfig::buffers).
struct Buffers {
  int held = 1, configured = 1;

  bool operator==(const Buffers& other) const {
    return held == other.held && configured == other.configured;
  }
};

// What decides whether two tenants of a register share it: the slots of their stacks, their
// buffers, and what each device reads and writes of them, as bounding boxes.
//
// Tenants share only if the strategy says as many buffers of both. Where layers go round the
// devices of a pipeline, each run of layers has buffers of its own number; and if two runs took
// turns in one memory, micro-batches would have to go through both, one after the other.
class TenantKey {
 public:
  TenantKey(int slots, const Buffers& buffers, bool uniform);
  explicit TenantKey(const Buffers& buffers);  // of what is local

  // Devices in ascending order, each once.
  void add(int device, const Rect& read, const Rect& written);
  // Equal tenants have equal values, and none has 0, which stands for a tenant that never shares.
  std::uint64_t value() const { return hash_ == 0 ? 1 : hash_; }

 private:
  void mix(std::uint64_t number);
  void mix(const Rect& rect);
  void mix(const Buffers& buffers);

  std::uint64_t hash_ = 0x9E3779B97F4A7C15u;
};

// What the tasks of a device touch of a place, as bounding boxes.
struct Boxes {
  Rect read, written;
  bool uniform = true;  // all of them touch the same

  bool empty() const { return read.empty() && written.empty(); }
  // Whether nothing that they touch comes from other devices.
  bool local() const { return uniform && !written.empty(); }
  // What one of them touches, which is not empty.
  void add(const Rect& rect, bool writes);
};

// A device's part of a register for tensors of any shape has a multiple of so many elements, so
// that the next one's begins with a line of the cache, where kernels are fastest. Of a few
// elements, that does not matter; of more, it takes less than a hundredth more memory.
constexpr std::int64_t kAligned = 64, kFew = 128 * kAligned;
inline std::int64_t aligned(std::int64_t elements) {
  return elements < kFew ? elements : (elements + kAligned - 1) / kAligned * kAligned;
}

// A place's share of a register under a strategy.
struct Tenancy {
  int number = -1;  // the register's
  int tenant = -1;  // the place's, among all that have a register
  std::uint64_t key = 0;
  bool uniform = false;  // tenants of that key are touched in one rectangle by each device
  bool local = false;    // it lies in a register for tensors of any shape
  Place home;            // the first tenant with that key: in whose memory this one lies
};

// A register for tensors of any shape: a row of elements, of which each device has a part, as large
// as the largest of its tiles of tenants. Such a tile lies at the beginning of the part.
struct LocalRegister {
  std::vector<std::int64_t> first;  // a device: where its part begins; and one more

  Rect part(int device, std::int64_t elements) const {
    Rect rect = Rect::of_shape({first[static_cast<std::size_t>(device)] + elements});
    rect.lo[0] = first[static_cast<std::size_t>(device)];
    return rect;
  }
};

// Fills the plan's.
void find_tenancies(const Graph& graph, const GraphFacts& facts, Plan& plan);

// When registers change hands. Launches of both tenants are no parts of one task, unless all that
// it touches of both is the same: Legion wants it to touch one memory in one way.
class Turns {
 public:
  void begin() { holders_.clear(); }
  // The launch at that position of the order of issue touches a tenant that is not uniform. The
  // result: the position of the last launch that touched the tenant before it, or -1.
  int touch(int number, std::uint64_t key, int tenant, int position);

 private:
  struct Holder {
    std::uint64_t key;
    int tenant, last;
  };
  std::map<int, std::vector<Holder>> holders_;  // a register
};

// Throws std::logic_error unless tenants of one memory are needed one after the other, and touched
// in the same rectangles on each device.
void verify_tenancies(const Graph& graph, const Plan& plan);

}  // namespace flexlegion
