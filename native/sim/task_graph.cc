#include "sim/task_graph.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace flexlegion {

namespace {

constexpr std::int64_t kElementBytes = 4;

// Rectangles without overlap that cover the same elements as those added.
class RectUnion {
 public:
  void add(const Rect& rect) {
    std::vector<Rect> fresh = {rect};
    for (const Rect& old : parts_) {
      std::vector<Rect> rest;
      for (const Rect& piece : fresh) subtract(piece, old, rest);
      fresh = std::move(rest);
    }
    parts_.insert(parts_.end(), fresh.begin(), fresh.end());
  }

  std::int64_t volume() const {
    std::int64_t sum = 0;
    for (const Rect& part : parts_) sum += part.volume();
    return sum;
  }

 private:
  // `from` without `what`, in slabs: below and above it, dimension by dimension.
  static void subtract(Rect from, const Rect& what, std::vector<Rect>& rest) {
    if (from.empty()) return;
    if (!from.overlaps(what)) {
      rest.push_back(from);
      return;
    }
    for (int d = 0; d < from.rank; ++d) {
      if (from.lo[d] < what.lo[d]) {
        rest.push_back(from);
        rest.back().hi[d] = what.lo[d];
        from.lo[d] = what.lo[d];
      }
      if (what.hi[d] < from.hi[d]) {
        rest.push_back(from);
        rest.back().lo[d] = what.hi[d];
        from.hi[d] = what.hi[d];
      }
    }
  }

  std::vector<Rect> parts_;
};

class TaskGraphBuilder {
 public:
  TaskGraphBuilder(const Graph& graph, const Plan& plan, const MachineModel& machine,
                   const std::vector<std::int64_t>& exe_time)
      : graph_(graph), plan_(plan), machine_(machine) {
    add_tasks(exe_time);
    for (std::size_t l = 0; l < plan.launches.size(); ++l) {
      if (plan.launches[l].runs & kTrains) connect(static_cast<int>(l));
    }
    for (const auto& [place, reads] : weight_reads_) return_weight(place, reads);
    for (const auto& [transfer, need] : transfers_) add_transfer(transfer, need);
  }

  TaskGraph take() { return std::move(tasks_); }

 private:
  using Place = std::tuple<int, Field, int>;  // tensor, field, optimizer state
  struct Piece {
    int task;
    Rect rect;
  };
  struct Transfer {
    int producer;
    Place place;
    int memory;
    bool operator<(const Transfer& o) const {
      return std::tie(producer, place, memory) < std::tie(o.producer, o.place, o.memory);
    }
  };
  struct Need {
    RectUnion what;
    std::vector<int> consumers;
  };

  int add_task(std::int64_t exe_time, int device, int launch, int part, std::uint64_t key) {
    tasks_.exe_time.push_back(std::max<std::int64_t>(1, exe_time));
    tasks_.device.push_back(device);
    tasks_.key.push_back(key);
    tasks_.launch.push_back(launch);
    tasks_.part.push_back(part);
    tasks_.bytes.push_back(0);
    tasks_.destination.push_back(-1);
    tasks_.hop.push_back(-1);
    tasks_.successors.emplace_back();
    return tasks_.size() - 1;
  }

  void add_tasks(const std::vector<std::int64_t>& exe_time) {
    tasks_.compute_devices = machine_.devices();
    tasks_.all_devices = machine_.devices() + static_cast<int>(machine_.links.size());
    std::size_t next = 0;
    for (std::size_t l = 0; l < plan_.launches.size(); ++l) {
      const Launch& launch = plan_.launches[l];
      first_task_.push_back(tasks_.size());
      for (int k = 0; k < launch.tasks(); ++k, ++next) {
        if (next >= exe_time.size()) throw std::invalid_argument("too few task times");
        if (launch.devices[k] < 0 || launch.devices[k] >= machine_.devices()) {
          throw std::invalid_argument("the machine has no device " +
                                      std::to_string(launch.devices[k]));
        }
        if (!(launch.runs & kTrains)) continue;
        const auto key = (static_cast<std::uint64_t>(l) << 32) | static_cast<std::uint32_t>(k);
        add_task(exe_time[next], launch.devices[k], static_cast<int>(l), k, key);
      }
    }
  }

  int memory_of(int task) const { return machine_.memory_of[tasks_.device[task]]; }

  // Edges and transfers into the launch's tasks; then what they write.
  void connect(int l) {
    const Launch& launch = plan_.launches[l];
    for (const Requirement& r : launch.requirements) {
      const Place place{r.tensor, r.field, r.state};
      if (r.privilege == Privilege::write) continue;
      for (int k = 0; k < launch.tasks(); ++k) read(first_task_[l] + k, place, r.rects[k]);
    }
    for (const Requirement& r : launch.requirements) {
      const Place place{r.tensor, r.field, r.state};
      if (r.privilege == Privilege::read) continue;
      for (int k = 0; k < launch.tasks(); ++k) write(first_task_[l] + k, place, r.rects[k]);
    }
  }

  void read(int task, const Place& place, const Rect& rect) {
    if (rect.empty()) return;
    for (const Piece& piece : written_[place]) need(piece, task, place, rect);
    const Tensor& tensor = graph_.tensors[std::get<0>(place)];
    if (tensor.kind == TensorKind::weight && std::get<1>(place) == Field::value) {
      weight_reads_[place].push_back({task, rect});
    }
  }

  void need(const Piece& piece, int consumer, const Place& place, const Rect& rect) {
    const Rect common = piece.rect.intersect(rect);
    if (common.empty() || piece.task == consumer) return;
    if (memory_of(piece.task) == memory_of(consumer)) {
      tasks_.successors[piece.task].push_back({consumer, false, 0});
      return;
    }
    Need& what = transfers_[{piece.task, place, memory_of(consumer)}];
    what.what.add(common);
    what.consumers.push_back(consumer);
  }

  // A later writer of the same rectangle (it added to it) takes the earlier one's place.
  void write(int task, const Place& place, const Rect& rect) {
    if (rect.empty()) return;
    for (Piece& piece : written_[place]) {
      if (piece.rect == rect) {
        piece.task = task;
        return;
      }
    }
    written_[place].push_back({task, rect});
  }

  // The next iteration's readers of a weight: what they need of the updated shards.
  void return_weight(const Place& place, const std::vector<Piece>& reads) {
    for (const Piece& shard : written_[place]) {
      for (const Piece& reader : reads) {
        const Rect common = shard.rect.intersect(reader.rect);
        if (common.empty() || memory_of(shard.task) == memory_of(reader.task)) continue;
        transfers_[{shard.task, place, memory_of(reader.task)}].what.add(common);
      }
    }
  }

  void add_transfer(const Transfer& transfer, const Need& need) {
    const std::int64_t bytes = need.what.volume() * kElementBytes;
    const std::vector<int>& route = machine_.route(memory_of(transfer.producer), transfer.memory);
    if (route.empty()) {
      throw std::invalid_argument("no route from memory " +
                                  std::to_string(memory_of(transfer.producer)) + " to memory " +
                                  std::to_string(transfer.memory));
    }
    int before = transfer.producer;
    for (std::size_t hop = 0; hop < route.size(); ++hop) {
      const CommunicationDevice& link = machine_.links[static_cast<std::size_t>(route[hop])];
      const int task = add_task(transfer_time(bytes, link.bandwidth),
                                machine_.devices() + route[hop], tasks_.launch[transfer.producer],
                                tasks_.part[transfer.producer], transfers_key_++);
      tasks_.bytes[task] = bytes;
      tasks_.destination[task] = transfer.memory;
      tasks_.hop[task] = static_cast<int>(hop);
      tasks_.successors[before].push_back({task, hop > 0, link.latency});
      before = task;
    }
    std::vector<int> consumers = need.consumers;
    std::sort(consumers.begin(), consumers.end());
    consumers.erase(std::unique(consumers.begin(), consumers.end()), consumers.end());
    for (int consumer : consumers) tasks_.successors[before].push_back({consumer, false, 0});
  }

  const Graph& graph_;
  const Plan& plan_;
  const MachineModel& machine_;
  TaskGraph tasks_;
  std::vector<int> first_task_;  // a launch
  std::map<Place, std::vector<Piece>> written_;
  std::map<Place, std::vector<Piece>> weight_reads_;
  std::map<Transfer, Need> transfers_;
  // Transfers run on devices of their own, so that their keys need an order among themselves only.
  std::uint64_t transfers_key_ = 0;
};

}  // namespace

std::int64_t transfer_time(std::int64_t bytes, std::int64_t bandwidth) {
  // In two parts, as bytes * 1e9 would leave 64 bits at 9 GB.
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t whole = bytes / bandwidth, rest = bytes % bandwidth;
  const auto part = static_cast<std::int64_t>((static_cast<unsigned __int128>(rest) * kSecond +
                                               static_cast<unsigned __int128>(bandwidth) - 1) /
                                              static_cast<unsigned __int128>(bandwidth));
  return whole * kSecond + part;
}

TaskGraph build_task_graph(const Graph& graph, const Plan& plan, const MachineModel& machine,
                           const std::vector<std::int64_t>& exe_time) {
  return TaskGraphBuilder(graph, plan, machine, exe_time).take();
}

}  // namespace flexlegion
