// Logical regions, their partitions, and the footprints by which the mapper chooses instances
// (regions.h).
//
// The footprint of a field in a memory is the bounding box of all rectangles that tasks of that
// memory touch, of those that read and of those that write. Where it takes no more memory to make
// both boxes one, they become one, and a task reads what another wrote without a copy. Else there
// are two instances (support/rect.h has the rule, which the simulator shares).
//
// Everything that Legion gives is cached: index spaces by their extents, partitions by their lists
// of rectangles, field spaces by type and number of states. A program that is closed leaves them to
// the next.
//
// Disjointness is told to Legion, which would otherwise compute it: n^2 / 2 comparisons of boxes
// for n tasks.
#include "runtime/regions.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <set>
#include <shared_mutex>
#include <utility>

namespace flexlegion {

using namespace Legion;

namespace {

// Legion has a deletion depend on every operation since the last fence, so the deletions of a large
// network would take a time that grows with the square of their number: seconds for Inception-v3.
// There is a fence after so many of them, which costs little and waits for nothing here.
constexpr int kDeletions = 16;

// The mapper's view of all living programs: (region tree, field, memory, reads) -> footprint.
struct Sealed : Footprint {
  bool whole = false;          // it covers all of the region
  std::uint64_t instance = 0;  // that the mapper chose; 0: none yet
};
using Key = std::tuple<RegionTreeID, FieldID, Memory, bool>;
std::shared_mutex footprints_mutex;
std::map<Key, Sealed> footprints;

// What Legion may assume of a partition; saying it spares Legion the computation. Of parts that
// overlap, completeness is only claimed where one of them is the whole: all else would have to be
// computed.
PartitionKind kind_of(const std::vector<Rect>& rects, const Rect& box) {
  bool disjoint = true;
  std::int64_t volume = 0, largest = 0;
  for (std::size_t i = 0; i < rects.size(); ++i) {
    volume += rects[i].volume();
    largest = std::max(largest, rects[i].volume());
    for (std::size_t j = 0; j < i && disjoint; ++j) disjoint = !rects[i].overlaps(rects[j]);
  }
  if (disjoint) {
    return volume == box.volume() ? LEGION_DISJOINT_COMPLETE_KIND : LEGION_DISJOINT_INCOMPLETE_KIND;
  }
  return largest == box.volume() ? LEGION_ALIASED_COMPLETE_KIND : LEGION_ALIASED_KIND;
}

Domain domain_of(const Rect& rect) {
  DomainPoint lo, hi;
  lo.dim = hi.dim = rect.rank;
  for (int d = 0; d < rect.rank; ++d) {
    lo[d] = rect.lo[d];
    hi[d] = rect.hi[d] - 1;  // Legion's bounds are inclusive
  }
  return Domain(lo, hi);
}

// Index spaces by their boxes, and the partitions of each. They stay when programs are closed, and
// serve the next ones: Legion takes spaces of equal extents for one another, and where the one that
// it took has been destroyed, it waits forever for parts that are gone.
struct Space {
  IndexSpace space;
  std::map<std::vector<Rect>, IndexPartition> partitions;
};

Space& space_of(const Rect& box) {
  static std::map<Rect, Space> spaces;
  auto [found, fresh] = spaces.try_emplace(box);
  if (fresh) {
    found->second.space =
        Runtime::get_runtime()->create_index_space(Runtime::get_context(), domain_of(box));
  }
  return found->second;
}

// Field spaces stay, too: they differ by the type of the value and the number of states alone.
FieldSpace fields_of(DataType type, int states) {
  static std::map<std::pair<DataType, int>, FieldSpace> spaces;
  auto [found, fresh] = spaces.try_emplace({type, states});
  if (fresh) {
    Runtime* runtime = Runtime::get_runtime();
    Context ctx = Runtime::get_context();
    found->second = runtime->create_field_space(ctx);
    FieldAllocator allocator = runtime->create_field_allocator(ctx, found->second);
    for (int f = 0; f <= states; ++f) {
      const FieldID field = kValueField + static_cast<FieldID>(f);
      allocator.allocate_field(static_cast<std::size_t>(element_bytes(type_of(type, field))),
                               field);
    }
  }
  return found->second;
}

// Equal lists of rectangles have one partition: forward and backward launches of an operator, say.
IndexPartition partition_of(const Rect& box, const std::vector<Rect>& rects) {
  Space& space = space_of(box);
  auto [found, fresh] = space.partitions.try_emplace(rects);
  if (fresh) {
    std::map<DomainPoint, Domain> parts;
    for (std::size_t k = 0; k < rects.size(); ++k) {
      parts[DomainPoint(static_cast<coord_t>(k))] = domain_of(rects[k]);
    }
    found->second = Runtime::get_runtime()->create_partition_by_domain(
        Runtime::get_context(), space.space, parts,
        RegionStore::colors(static_cast<std::int64_t>(rects.size())),
        /*perform_intersections=*/false, kind_of(rects, box));
  }
  return found->second;
}

}  // namespace

int RegionStore::add(const std::vector<std::int64_t>& shape, Content content, DataType type,
                     int states) {
  Runtime* runtime = Runtime::get_runtime();
  Context ctx = Runtime::get_context();
  Entry entry;
  entry.box = Rect::of_shape(shape);
  entry.content = content;
  entry.type = type;
  entry.region =
      runtime->create_logical_region(ctx, space_of(entry.box).space, fields_of(type, states));
  entries_.push_back(std::move(entry));
  return static_cast<int>(entries_.size()) - 1;
}

IndexSpace RegionStore::colors(std::int64_t count) {
  return space_of(Rect::of_shape({count})).space;
}

LogicalPartition RegionStore::partition(int index, const std::vector<Rect>& rects) const {
  const Entry& entry = entries_[index];
  return Runtime::get_runtime()->get_logical_partition(Runtime::get_context(), entry.region,
                                                       partition_of(entry.box, rects));
}

// Boxes grow until seal().
void RegionStore::touch(int index, FieldID field, Memory memory, bool reads, const Rect& rect,
                        bool kept) {
  auto [found, fresh] =
      entries_[index].touched.try_emplace({field, memory, reads}, Touched{rect, kept});
  if (fresh) return;
  Touched& touched = found->second;
  touched.box = touched.box.bounding(rect);
  touched.kept |= kept;
}

// For each field and memory that is both read and written.
void RegionStore::share_instances(Entry& entry) {
  for (auto& [use, read] : entry.touched) {
    const auto& [field, memory, reads] = use;
    const auto found = entry.touched.find({field, memory, false});
    if (!reads || found == entry.touched.end()) continue;
    Touched& written = found->second;
    if (share_instance(read.box, written.box)) {
      read.box = written.box = read.box.bounding(written.box);
    }
    // Instances of equal extents are one.
    if (read.box == written.box) read.kept = written.kept = read.kept || written.kept;
  }
}

// From here on the mapper can ask for footprints. Each is named by a subregion, which is a part of
// a partition made for that purpose.
void RegionStore::seal() {
  Runtime* runtime = Runtime::get_runtime();
  Context ctx = Runtime::get_context();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.touched.empty()) continue;
    share_instances(entry);
    std::vector<Rect> boxes;  // without repetition: one part of the partition, one instance
    for (const auto& [use, its] : entry.touched) {
      if (std::find(boxes.begin(), boxes.end(), its.box) == boxes.end()) boxes.push_back(its.box);
    }
    const LogicalPartition parts = partition(static_cast<int>(i), boxes);
    const std::unique_lock<std::shared_mutex> lock(footprints_mutex);
    for (const auto& [use, its] : entry.touched) {
      const auto color = std::find(boxes.begin(), boxes.end(), its.box) - boxes.begin();
      const auto& [field, memory, reads] = use;
      Sealed& sealed = footprints[{entry.region.get_tree_id(), field, memory, reads}];
      sealed.region = runtime->get_logical_subregion_by_color(ctx, parts, DomainPoint(color));
      sealed.kept = its.kept;
      sealed.whole = its.box == entry.box;
    }
  }
}

std::map<Memory, std::int64_t> RegionStore::bytes() const {
  std::map<Memory, std::int64_t> total;
  for (const auto& [memory, contents] : bytes_by_content()) {
    total[memory] = std::accumulate(contents.begin(), contents.end(), std::int64_t{0});
  }
  return total;
}

std::map<Memory, ContentBytes> RegionStore::bytes_by_content() const {
  std::map<Memory, ContentBytes> total;
  // A copy, since it may be asked for before seal(): what memories would hold, if it were called.
  for (Entry entry : entries_) {
    share_instances(entry);
    std::set<std::tuple<FieldID, Memory, Rect>> instances;
    for (const auto& [use, its] : entry.touched) {
      const auto& [field, memory, reads] = use;
      if (!instances.insert({field, memory, its.box}).second) continue;
      const bool state = field != kValueField;
      const Content content = state ? Content::states : entry.content;
      total[memory][static_cast<std::size_t>(content)] +=
          its.box.volume() * element_bytes(type_of(entry.type, field));
    }
  }
  return total;
}

// Asked by mappers on all processors, so the lock is a shared one.
Footprint RegionStore::footprint(LogicalRegion root, FieldID field, Memory memory, bool reads) {
  const std::shared_lock<std::shared_mutex> lock(footprints_mutex);
  return footprints.at({root.get_tree_id(), field, memory, reads});
}

Footprint RegionStore::whole(LogicalRegion root, FieldID field, Memory memory) {
  const std::shared_lock<std::shared_mutex> lock(footprints_mutex);
  for (const bool reads : {true, false}) {
    const auto found = footprints.find({root.get_tree_id(), field, memory, reads});
    if (found != footprints.end() && found->second.whole) return found->second;
  }
  return {root, /*kept=*/false};
}

// The invariant behind remembered views: a kept footprint has one instance for its whole life.
bool RegionStore::stays(LogicalRegion root, FieldID field, Memory memory, bool reads,
                        std::uint64_t instance) {
  const std::unique_lock<std::shared_mutex> lock(footprints_mutex);
  Sealed& sealed = footprints.at({root.get_tree_id(), field, memory, reads});
  const std::uint64_t before = std::exchange(sealed.instance, instance);
  return !sealed.kept || before == 0 || before == instance;
}

// Footprints go first, so that no mapper finds one of a region that is gone.
void RegionStore::destroy() {
  Runtime* runtime = Runtime::get_runtime();
  Context ctx = Runtime::get_context();
  int destroyed = 0;
  for (Entry& entry : entries_) {
    {
      const std::unique_lock<std::shared_mutex> lock(footprints_mutex);
      for (const auto& [use, its] : entry.touched) {
        const auto& [field, memory, reads] = use;
        footprints.erase({entry.region.get_tree_id(), field, memory, reads});
      }
    }
    runtime->destroy_logical_region(ctx, entry.region);
    if (++destroyed % kDeletions == 0) runtime->issue_mapping_fence(ctx);
  }
  entries_.clear();
}

}  // namespace flexlegion
