// Which launches become one (fusion.h): the rule itself, and how the runtime's launches are told to
// it.
//
// The rule keeps, for each launch, the set of launches on other devices that it waits for, directly
// or through others: one bit a launch, merged from those that it waits for. Two consecutive
// launches may fuse if these sets are equal, their tasks have the same devices, nobody elsewhere
// needs the first one's results early, and no task touches what another was given in a way that
// does not fit.
//
// Of several launches that a task awaits on one device, only the last one has to hurry: the others
// are done before it.
//
// Costs: the sets take (launches)^2 / 64 words, and each dependency one merge of them.
#include "plan/fusion.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "plan/touches.h"

namespace flexlegion {

bool answers(const Graph& graph, const Optimizer& optimizer, const LaunchKey& key) {
  const auto answers = row_of(key.pass).answers;
  return answers != nullptr && answers(graph, optimizer, key);
}

// Bits for all launches at once, in one block of memory that is used again.
void FusionRule::begin(int launches, bool rounds) {
  rounds_ = rounds;
  words_ = (static_cast<std::size_t>(launches) + kBits - 1) / kBits;
  told_.clear();
  far_.assign(static_cast<std::size_t>(launches) * words_, 0);
  for (std::vector<Awaited>& of_task : awaited_) of_task.clear();
}

// The next launch in the order of issue. Its waits follow.
void FusionRule::add(const std::vector<int>& devices, bool fusible, bool closing) {
  settle();
  told_.push_back({&devices, fusible, closing, false, -1});
  awaited_.resize(std::max(awaited_.size(), devices.size()));
  waited_for_ = -1;
}

// Task k of the last launch waits for task j of an earlier one.
void FusionRule::wait(int k, int before, int j, bool one_memory) {
  Told& told = told_.back();
  Word* mine = far(static_cast<int>(told_.size()) - 1);
  if (before != waited_for_) {
    const Word* its = far(before);
    for (std::size_t w = 0; w < words_; ++w) mine[w] |= its[w];
    waited_for_ = before;
  }
  const int other = (*told_[static_cast<std::size_t>(before)].devices)[static_cast<std::size_t>(j)];
  if ((*told.devices)[static_cast<std::size_t>(k)] == other) {
    // Task k of a run runs the tasks k of its launches alone.
    if (k != j) set_apart(before);
    return;
  }
  mine[static_cast<std::size_t>(before) / kBits] |= Word{1}
                                                    << (static_cast<std::size_t>(before) % kBits);
  // Between devices of one memory, nothing is gained by an early update.
  if (told.closing && one_memory) return;
  std::vector<Awaited>& of_task = awaited_[static_cast<std::size_t>(k)];
  for (Awaited& awaited : of_task) {
    if (awaited.device != other) continue;
    awaited.launch = std::max(awaited.launch, before);
    return;
  }
  of_task.push_back({other, before});
}

// The last launch must not share a run with that one, and so with none before it.
void FusionRule::set_apart(int before) {
  told_.back().apart = std::max(told_.back().apart, before);
}

// When the next launch comes, what the last one awaits is complete.
void FusionRule::settle() {
  for (std::vector<Awaited>& of_task : awaited_) {
    for (const Awaited& awaited : of_task) {
      told_[static_cast<std::size_t>(awaited.launch)].awaited = true;
    }
    of_task.clear();
  }
}

// `apart` and `first` compare positions: no launch of the run may be one that this launch has to be
// apart from.
bool FusionRule::joins(int launch, int first, int longest) const {
  if (launch <= first || launch - first >= longest) return false;
  const Told& told = told_[static_cast<std::size_t>(launch)];
  const Told& before = told_[static_cast<std::size_t>(launch) - 1];
  if (rounds_ && told.closing != before.closing) return false;
  return told.fusible && before.fusible && !before.awaited && told.apart < first &&
         *told.devices == *before.devices &&
         std::equal(far(launch), far(launch) + words_, far(launch - 1));
}

namespace {

bool reads(const FieldUse& use) { return use.privilege != Privilege::write; }
bool writes(const FieldUse& use) { return use.privilege != Privilege::read; }

// A few tasks a launch: comparing all pairs is fast enough.
bool overlap(const std::vector<Rect>& a, const std::vector<Rect>& b) {
  for (const Rect& mine : a) {
    if (mine.empty()) continue;
    for (const Rect& its : b) {
      if (!its.empty() && mine.overlaps(its)) return true;
    }
  }
  return false;
}

bool contain(const std::vector<Rect>& outer, const std::vector<Rect>& inner) {
  return std::equal(outer.begin(), outer.end(), inner.begin(), inner.end(),
                    [](const Rect& its, const Rect& mine) { return its.contains(mine); });
}

bool conflict(const FieldUse& a, const FieldUse& b) {
  return a.place == b.place && (writes(a) || writes(b)) && overlap(*a.rects, *b.rects);
}

// Whether what a task was given for `before` will do for `use`, which is of the same place. An
// instance is as large as its writers need (runtime/regions.h), so what is read has to lie within
// what was written, and what is written has to be what was touched.
bool gets_by(const FieldUse& use, const FieldUse& before) {
  if (!conflict(use, before)) return true;
  return writes(use) ? touch_alike(*use.rects, *before.rects) : contain(*before.rects, *use.rects);
}

struct Earlier {
  int position;
  const Issued* launch;
  const FieldUse* use;
};

// Tells of the tasks that wrote last what the tasks of the last launch read. Who wrote a rectangle
// before that was waited for by who wrote it last.
void tell_waits(const Issued& launch, const FieldUse& use, const std::vector<Earlier>& earlier,
                const std::vector<int>& memory_of, FusionRule& rule) {
  // For each task, the rectangles whose last writer is known. An equal rectangle further back was
  // overwritten; one that overlaps only in part is waited for as well, which is never wrong.
  std::vector<std::vector<const Rect*>> found(use.rects->size());
  for (std::size_t e = earlier.size(); e-- > 0;) {
    const auto& [position, writer, written] = earlier[e];
    if (!writes(*written)) continue;
    for (std::size_t j = written->rects->size(); j-- > 0;) {
      const Rect& its = (*written->rects)[j];
      if (its.empty()) continue;
      for (std::size_t k = 0; k < use.rects->size(); ++k) {
        const Rect& mine = (*use.rects)[k];
        if (mine.empty() || !mine.overlaps(its)) continue;
        if (std::any_of(found[k].begin(), found[k].end(),
                        [&its](const Rect* other) { return *other == its; })) {
          continue;
        }
        found[k].push_back(&its);
        const auto memory = [&memory_of](const std::vector<int>& devices, std::size_t task) {
          return memory_of[static_cast<std::size_t>(devices[task])];
        };
        rule.wait(static_cast<int>(k), position, static_cast<int>(j),
                  memory(*launch.devices, k) == memory(*writer->devices, j));
      }
    }
  }
}

// Tells the rule of all launches.
//
// - A task waits for those that wrote last what it reads. That one writes what others have read is
//   no reason to wait for them: in training, who updates a weight waits for its gradient, and so
//   for all who read the weight.
// - A task finds in its memory what the task touched that it follows (PassRow::follows).
// - Launches are apart whose tasks do not get by with what each other's were given.
void describe(const std::vector<Issued>& order, const std::vector<int>& memory_of, int longest,
              FusionRule& rule) {
  std::map<Place, std::vector<Earlier>> uses;
  for (int i = 0; i < static_cast<int>(order.size()); ++i) {
    const Issued& launch = order[static_cast<std::size_t>(i)];
    rule.add(*launch.devices, launch.fusible, launch.closing);
    std::vector<FieldUse> at_hand;
    if (launch.follows >= 0) {
      at_hand = order[static_cast<std::size_t>(launch.follows)].uses;
      for (int k = 0; k < static_cast<int>(launch.devices->size()); ++k) {
        rule.wait(k, launch.follows, k, true);
      }
    }
    for (const FieldUse& use : launch.uses) {
      const std::vector<Earlier>& earlier = uses[use.place];
      const bool known = std::any_of(at_hand.begin(), at_hand.end(), [&use](const FieldUse& other) {
        return other.place == use.place && touch_alike(*other.rects, *use.rects);
      });
      if (reads(use) && !known) tell_waits(launch, use, earlier, memory_of, rule);
      for (const Earlier& other : earlier) {
        if (i - other.position < longest && !gets_by(use, *other.use))
          rule.set_apart(other.position);
      }
    }
    if (launch.apart >= 0) rule.set_apart(launch.apart);
    for (const FieldUse& use : launch.uses) uses[use.place].push_back({i, &launch, &use});
  }
  rule.end();
}

}  // namespace

// Greedy: each run is as long as the rule and `longest` allow.
std::vector<std::vector<int>> fused_runs(const std::vector<Issued>& order,
                                         const std::vector<int>& memory_of, int longest,
                                         bool rounds) {
  FusionRule rule;
  rule.begin(static_cast<int>(order.size()), rounds);
  describe(order, memory_of, longest, rule);
  std::vector<std::vector<int>> runs;
  for (int i = 0; i < static_cast<int>(order.size()); ++i) {
    if (i == 0 || !rule.joins(i, runs.back().front(), longest)) runs.emplace_back();
    runs.back().push_back(i);
  }
  return runs;
}

std::vector<FieldUse> field_uses(const Launch& launch) {
  std::vector<FieldUse> uses;
  for (const Requirement& r : launch.requirements) uses.push_back({r, r.privilege, &r.rects});
  return uses;
}

// The launches of one kind of run, in their order, as the rule is told them. Loads are left out:
// they run ahead, and fuse with nothing.
IdVector<LaunchId, int> run_numbers(const Graph& graph, const Plan& plan, unsigned runs,
                                    const std::vector<int>& memory_of, int longest) {
  std::vector<Issued> order;
  std::vector<LaunchId> launches;
  std::map<std::pair<Pass, OpId>, int> positions;
  Turns turns;
  for (LaunchId l : plan.launches.ids()) {
    const Launch& launch = plan.launches[l];
    const PassRow& row = row_of(launch.pass);
    if (row.ahead || !(launch.runs & runs)) continue;
    Issued issued;
    issued.devices = &launch.devices;
    issued.fusible = !answers(graph, plan.optimizer, launch);
    issued.closing = row.closing;
    positions[{launch.pass, launch.op}] = static_cast<int>(order.size());
    for (Pass pass : row.follows) {
      const auto followed = positions.find({pass, launch.op});
      if (issued.follows < 0 && followed != positions.end()) issued.follows = followed->second;
    }
    issued.uses = field_uses(launch);
    for (const Requirement& r : launch.requirements) {
      const auto its = plan.tenancies.find(r);
      if (its == plan.tenancies.end() || its->second.uniform || volume(r.rects) == 0) continue;
      const Tenancy& of = its->second;
      issued.apart = std::max(
          issued.apart, turns.touch(of.number, of.key, of.tenant, static_cast<int>(order.size())));
    }
    order.push_back(std::move(issued));
    launches.push_back(l);
  }
  IdVector<LaunchId, int> numbers(plan.launches.size(), -1);
  int number = 0;
  for (const std::vector<int>& run :
       fused_runs(order, memory_of, longest, plan.micro_batches > 1)) {
    for (int position : run) numbers[launches[static_cast<std::size_t>(position)]] = number;
    ++number;
  }
  return numbers;
}

std::size_t MergedUses::add(const FieldUse& use) {
  // A use that conflicts with one before it has to share its instance; one that only reads the same
  // rectangles may.
  std::size_t with = uses_.size();  // what it has to be one with
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    const bool touches = conflict(uses_[i], use);
    if (touches && (with < uses_.size() || !gets_by(use, uses_[i]))) {
      throw std::logic_error("launches were fused that cannot be");
    }
    const bool alike = uses_[i].place == use.place && *uses_[i].rects == *use.rects;
    if (touches || (alike && with == uses_.size())) with = i;
  }
  if (with == uses_.size()) {
    uses_.push_back(use);
  } else if (!writes(uses_[with]) && writes(use)) {
    uses_[with].privilege = Privilege::read_write;
  }
  return with;
}

}  // namespace flexlegion
