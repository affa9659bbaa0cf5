// How tensors get registers (registers.h).
//
// registers_of() walks the order of issue, to find from which launch to which each place is needed.
// Then places get registers:
//
// - Among those of one shape, in the order of their lives, the one that has been free for longest.
// - Among those of any shape, the largest place first, the smallest register in which nobody is
//   while it lives ("greedy by size" for shared objects: Pisarchyk and Lee, 2020, "Efficient Memory
//   Management for Deep Neural Net Inference").
//
// If there is none, a new one. A small tensor's register rests for kRest launches behind it: so
// launches of both tenants can fuse with their neighbours, and a device can run ahead of another
// one by as much. Of a large one (kLarge), memory counts for more. Those of weights rest in any
// case: meanwhile the next weights are gathered, and the last gradients are reduced. Of a
// transformer, so many launches are one layer or two.
//
// Costs: what the launches touch, and for each place the registers of its class.
//
// find_tenancies() compares what a plan's tasks touch. The simulator finds the same keys when it
// builds its flows (sim/flow_boxes.cc).
#include "plan/registers.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "plan/plan.h"
#include "plan/schedule.h"

namespace flexlegion {

namespace {

using R = RequirementRole;

constexpr int kRest = 32;                                // launches
constexpr std::int64_t kLarge = std::int64_t{16} << 20;  // bytes

// From which launch to which a place is needed, in the order of issue.
struct Life {
  int first = -1, last = -1;
  int stretch = -1;      // of the schedule, if all of it is in one
  bool trained = false;  // some launch of a training iteration writes it
};

// The places that a use may touch under some strategy: where a reduction can be split, a value is
// there as partial values, too, which the same launches may read.
std::vector<Place> places_of(const Graph& graph, const GraphFacts& facts,
                             const IdVector<TensorId, bool>& reduced, const Use& use) {
  std::vector<Place> places = {use};
  if (use.tensor.none() || graph.tensors[use.tensor].kind == TensorKind::input) return {};
  const auto or_in = [&](Field field) {
    places.push_back(use);
    places.back().field = field;
  };
  if (graph.tensors[use.tensor].kind == TensorKind::weight) {
    const bool short_lived =
        use.field == Field::copy || use.field == Field::gradient || use.field == Field::node_sums;
    if (!short_lived || !facts.reduces(use.tensor)) return {};
    if (use.sums_gradient()) or_in(Field::node_sums);
    return places;
  }
  if (use.field == Field::value && reduced[use.tensor]) or_in(Field::partial);
  return places;
}

// Tensors whose producer can compute partial values of them.
IdVector<TensorId, bool> reduced_tensors(const Graph& graph) {
  IdVector<TensorId, bool> reduced(graph.tensors.size(), false);
  for (const Operator& op : graph.operators) {
    if (op.reductions.empty()) continue;
    for (int i : op.outputs()) reduced[op.operands[i].tensor] = true;
  }
  return reduced;
}

std::map<Place, Life> lives_of(const Graph& graph, const GraphFacts& facts,
                               const std::vector<LaunchKey>& order) {
  const IdVector<TensorId, bool> reduced = reduced_tensors(graph);
  std::map<Place, Life> lives;
  for (int i = 0; i < static_cast<int>(order.size()); ++i) {
    const LaunchKey& key = order[static_cast<std::size_t>(i)];
    const int stretch = stretch_of(key.pass);
    const bool trains = (runs_of(graph, facts, key) & kTrains) != 0;
    for (const Use& use : uses_of(graph, facts, key)) {
      for (const Place& place : places_of(graph, facts, reduced, use)) {
        auto [found, fresh] = lives.try_emplace(place, Life{i, i, stretch});
        Life& life = found->second;
        life.last = i;
        if (life.stretch != stretch) life.stretch = -1;
        life.trained = life.trained || (trains && use.privilege != Privilege::read);
      }
    }
  }
  return lives;
}

using DeviceBoxes = std::map<int, Boxes>;

std::map<Place, DeviceBoxes> boxes_of(const Plan& plan, const Registers& registers) {
  std::map<Place, DeviceBoxes> boxes;
  for (const Launch& launch : plan.launches) {
    for (const Requirement& r : launch.requirements) {
      if (registers.count(r) == 0) continue;
      DeviceBoxes& its = boxes[r];
      for (int k = 0; k < launch.tasks(); ++k) {
        if (r.rects[k].empty()) continue;
        its[launch.devices[k]].add(r.rects[k], r.privilege != Privilege::read);
      }
    }
  }
  return boxes;
}

Buffers buffers_in(const Plan& plan, const Place& place) {
  return {plan.buffers(place), plan.configured_buffers[place.tensor]};
}

bool uniform(const DeviceBoxes& boxes) {
  return std::all_of(boxes.begin(), boxes.end(),
                     [](const auto& one) { return one.second.uniform; });
}

}  // namespace

namespace {

// A place that could take turns with others.
struct Candidate {
  Place place;
  Life life;
  std::int64_t bytes;
  DataType type;
  const std::vector<std::int64_t>* shape;
  int rest;  // launches after its life, before the next one's may begin

  int until() const { return life.last + rest; }
};

// Of one shape, a register is given to the next tenant in the order of their lives.
class AlikeRegisters {
 public:
  int take(const Candidate& its, int& count) {
    auto longest = std::min_element(slots_.begin(), slots_.end(),
                                    [](const Slot& a, const Slot& b) { return a.until < b.until; });
    if (longest == slots_.end() || longest->until + its.rest >= its.life.first) {
      longest = slots_.insert(slots_.end(), {count++, 0});
    }
    longest->until = its.life.last;
    return longest->number;
  }

 private:
  struct Slot {
    int number, until;  // of its last tenant's end
  };
  std::vector<Slot> slots_;
};

// Of any shape, tenants come by their sizes, the largest first: each to the smallest register in
// which nobody is while it lives.
class LocalRegisterSizes {
 public:
  int take(const Candidate& its, int& count) {
    // Later registers are smaller.
    for (auto slot = slots_.rbegin(); slot != slots_.rend(); ++slot) {
      if (!slot->free(its)) continue;
      slot->taken.emplace(its.life.first, its.until());
      return slot->number;
    }
    slots_.push_back({count++, {{its.life.first, its.until()}}});
    return slots_.back().number;
  }

 private:
  struct Slot {
    int number;
    std::map<int, int> taken;  // when lives begin, and end

    bool free(const Candidate& its) const {
      const auto next = taken.upper_bound(its.until());
      return next == taken.begin() || std::prev(next)->second < its.life.first;
    }
  };
  std::vector<Slot> slots_;
};

}  // namespace

Registers registers_of(const Graph& graph, const GraphFacts& facts) {
  Registers registers;
  if (graph.keeps_tensors) return registers;
  const int rest = std::min(kRest, graph.fused_launches);
  std::vector<Candidate> candidates;
  for (const auto& [place, life] : lives_of(graph, facts, issue_order(graph, facts))) {
    // What is read when all is done keeps its memory.
    if (!life.trained || facts.lasts(place)) continue;
    const DataType type = type_of(graph, place);
    const std::vector<std::int64_t>& shape = graph.tensors[place.tensor].shape;
    const std::int64_t bytes = Rect::of_shape(shape).volume() * element_bytes(type);
    const bool weight = graph.tensors[place.tensor].kind == TensorKind::weight;
    const int its_rest = weight ? kRest : bytes >= kLarge ? 0 : rest;
    candidates.push_back({place, life, bytes, type, &shape, its_rest});
  }
  int count = 0;
  const bool in_rounds = graph.micro_batches > 1;
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.life.first < b.life.first; });
  std::map<std::tuple<Field, int, DataType, std::vector<std::int64_t>>, AlikeRegisters> alike;
  for (const Candidate& its : candidates) {
    if (its.life.stretch < 0) continue;
    // What is gathered for the forward pass is done with before the backward pass, unless the next
    // micro-batch comes in between.
    const bool shared = its.place.field == Field::copy && !in_rounds;
    const int stretch = shared ? 0 : its.life.stretch;
    AlikeRegisters& pool = alike[{its.place.field, stretch, its.type, *its.shape}];
    registers[its.place].alike = pool.take(its, count);
  }
  // Forward and backward passes have registers of their own where several micro-batches are under
  // way. What is needed in both has memory of its own then.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::map<std::tuple<bool, int, DataType>, LocalRegisterSizes> local;
  for (const Candidate& its : candidates) {
    if (in_rounds && its.life.stretch < 0) continue;
    // Others have parts of it.
    if (graph.tensors[its.place.tensor].kind == TensorKind::weight) continue;
    // Few strategies have partial values, so their registers are not to stand empty in others.
    const bool partial = its.place.field == Field::partial;
    LocalRegisterSizes& pool = local[{partial, in_rounds ? its.life.stretch : 0, its.type}];
    registers[its.place].local = pool.take(its, count);
  }
  return registers;
}

void Boxes::add(const Rect& rect, bool writes) {
  // As long as all touch the same, either box is that rectangle, or empty.
  const Rect& before = read.empty() ? written : read;
  uniform = uniform && (before.empty() || before == rect);
  Rect& box = writes ? written : read;
  box = box.bounding(rect);
}

TenantKey::TenantKey(const Buffers& buffers) {
  mix(0);  // there are no stacks of no slots
  mix(buffers);
}

TenantKey::TenantKey(int slots, const Buffers& buffers, bool uniform) {
  mix(static_cast<std::uint64_t>(slots));
  mix(buffers);
  mix(uniform ? 1 : 0);
}

void TenantKey::add(int device, const Rect& read, const Rect& written) {
  mix(static_cast<std::uint64_t>(device));
  mix(read);
  mix(written);
}

// The finalizer of MurmurHash3 between numbers. Equal tenants are found by their hash alone: of 64
// bits, two of the few thousand tenants of a graph meet by chance once in 10^12 graphs.
void TenantKey::mix(std::uint64_t number) {
  hash_ = (hash_ ^ number) * 0xFF51AFD7ED558CCDu;
  hash_ = (hash_ ^ (hash_ >> 33)) * 0xC4CEB9FE1A85EC53u;
  hash_ ^= hash_ >> 29;
}

void TenantKey::mix(const Buffers& buffers) {
  mix(static_cast<std::uint64_t>(buffers.held));
  mix(static_cast<std::uint64_t>(buffers.configured));
}

void TenantKey::mix(const Rect& rect) {
  mix(rect.empty() ? 0 : static_cast<std::uint64_t>(rect.rank));
  for (int d = 0; d < rect.rank && !rect.empty(); ++d) {
    mix(static_cast<std::uint64_t>(rect.lo[d]));
    mix(static_cast<std::uint64_t>(rect.hi[d]));
  }
}

// A stack that starts as zeros is written in part, and what is left out has to stay as it is.
void find_tenancies(const Graph& graph, const GraphFacts& facts, Plan& plan) {
  const Registers registers = registers_of(graph, facts);
  const std::map<Place, DeviceBoxes> boxes = boxes_of(plan, registers);
  std::map<std::pair<int, std::uint64_t>, Place> homes;
  std::map<Place, std::map<int, std::int64_t>> parts;  // of local registers: a device's elements
  for (const auto& [place, its] : boxes) {
    if (place.field == Field::gradient && !plan.gradients[place.tensor].fully_written) continue;
    const bool local =
        std::all_of(its.begin(), its.end(), [](const auto& one) { return one.second.local(); });
    const auto& [of_alike, of_any] = registers.at(place);
    Tenancy tenancy;
    tenancy.local = local && of_any >= 0;
    tenancy.number = tenancy.local ? of_any : of_alike;
    if (tenancy.number < 0) continue;
    const Buffers buffers = buffers_in(plan, place);
    if (tenancy.local) {
      tenancy.key = TenantKey(buffers).value();
    } else {
      tenancy.uniform = uniform(its);
      TenantKey key(slots_of(plan, place), buffers, tenancy.uniform);
      for (const auto& [device, box] : its) key.add(device, box.read, box.written);
      tenancy.key = key.value();
    }
    tenancy.home = homes.try_emplace({tenancy.number, tenancy.key}, place).first->second;
    tenancy.tenant = static_cast<int>(plan.tenancies.size());
    for (const auto& [device, box] : its) {
      if (!tenancy.local) break;
      std::int64_t& part = parts[tenancy.home][device];
      part = std::max(part, aligned(box.written.volume()));
    }
    plan.tenancies[place] = tenancy;
  }
  for (const auto& [home, of_device] : parts) {
    LocalRegister& its = plan.local_registers[home];
    for (const auto& [device, elements] : of_device) {
      its.first.resize(static_cast<std::size_t>(device) + 1,
                       its.first.empty() ? 0 : its.first.back());
      its.first.push_back(its.first.back() + elements);
    }
  }
}

int Turns::touch(int number, std::uint64_t key, int tenant, int position) {
  std::vector<Holder>& all = holders_[number];
  const auto found =
      std::find_if(all.begin(), all.end(), [key](const Holder& its) { return its.key == key; });
  if (found == all.end()) {
    all.push_back({key, tenant, position});
    return -1;
  }
  const int before = found->tenant == tenant ? -1 : found->last;
  found->tenant = tenant;
  found->last = position;
  return before;
}

namespace {

// Whether a place lies in a local register, and its tiles in the devices' parts.
bool is_local(const Plan& plan, const Place& place, const DeviceBoxes& boxes) {
  const Tenancy& tenancy = plan.tenancies.at(place);
  if (!tenancy.local) return false;
  const std::vector<std::int64_t>& first = plan.local_registers.at(tenancy.home).first;
  return std::all_of(boxes.begin(), boxes.end(), [&](const auto& one) {
    const auto device = static_cast<std::size_t>(one.first);
    return one.second.local() && device + 1 < first.size() &&
           one.second.written.volume() <= first[device + 1] - first[device];
  });
}

}  // namespace

void verify_tenancies(const Graph& graph, const Plan& plan) {
  Registers registers;
  std::map<Place, std::pair<int, int>> lives;
  for (const auto& [place, its] : plan.tenancies) registers[place] = {its.number, its.number};
  for (LaunchId l : plan.launches.ids()) {
    for (const Requirement& r : plan.launches[l].requirements) {
      if (registers.count(r) > 0)
        lives.try_emplace(r, l.value, l.value).first->second.second = l.value;
    }
  }
  const std::map<Place, DeviceBoxes> boxes = boxes_of(plan, registers);
  std::map<Place, std::vector<Place>> sharing;  // by home
  for (const auto& [place, its] : plan.tenancies) sharing[its.home].push_back(place);
  for (auto& [home, tenants] : sharing) {
    std::sort(tenants.begin(), tenants.end(),
              [&](const Place& a, const Place& b) { return lives.at(a) < lives.at(b); });
    for (std::size_t i = 0; i + 1 < tenants.size(); ++i) {
      const Place &a = tenants[i], &b = tenants[i + 1];
      const bool apart = lives.at(a).second < lives.at(b).first;
      const auto alike = [](const auto& mine, const auto& its) {
        return mine.first == its.first && mine.second.read == its.second.read &&
               mine.second.written == its.second.written;
      };
      const DeviceBoxes &mine = boxes.at(a), &its = boxes.at(b);
      const bool same = uniform(mine) == uniform(its) &&
                        std::equal(mine.begin(), mine.end(), its.begin(), its.end(), alike) &&
                        graph.tensors[a.tensor].shape == graph.tensors[b.tensor].shape &&
                        slots_of(plan, a) == slots_of(plan, b);
      const bool local = is_local(plan, a, mine) && is_local(plan, b, its);
      if (apart && (same || local) && type_of(graph, a) == type_of(graph, b) &&
          buffers_in(plan, a) == buffers_in(plan, b)) {
        continue;
      }
      throw std::logic_error("'" + graph.tensors[a.tensor].name + "' and '" +
                             graph.tensors[b.tensor].name +
                             "' share memory, and cannot take turns in it");
    }
  }
}

}  // namespace flexlegion
