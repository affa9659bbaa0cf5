// Scratch memory of GPUs: a region of so many floats for each, which Legion allocates once.
//
// Kernels may not allocate while they run: a device allocation can wait for all of the device's
// work, and Legion would not know of the memory. So each GPU gets an arena of it when the runtime
// starts. Taking it as a region has Legion place it in the memory that it manages, and count it
// like all else.
#include "runtime/arenas.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/executor.h"
#include "runtime/leaf_task.h"
#include "runtime/machine.h"
#include "support/error.h"

namespace flexlegion {

using namespace Legion;

namespace {

constexpr const char* kVariable = "FLEXLEGION_GPU_SCRATCH";
constexpr std::int64_t kMiB = 1 << 20, kMost = 2048 * kMiB;

}  // namespace

std::int64_t arena_bytes(int device) {
  const Device& of = MachineState::get().devices().at(static_cast<std::size_t>(device));
  if (of.kind != DeviceKind::gpu) return 0;
  const Memory& memory = of.memory;
  // The default leaves most of the memory to tensors; a convolution's workspace is what needs most
  // of the arena.
  const char* const text = std::getenv(kVariable);
  if (text == nullptr) return std::min(kMost, static_cast<std::int64_t>(memory.capacity()) / 8);
  std::int64_t value = 0;
  const auto result = std::from_chars(text, text + std::strlen(text), value);
  if (result.ec != std::errc() || *result.ptr != '\0' || value < 1) {
    throw UserMistake(std::string(kVariable) + " has to be a number of MiB, but is '" + text + "'");
  }
  return value * kMiB;
}

namespace {

// It holds a region a GPU. A task finds out where Legion put its instance, which stays there.
class Arenas : public Executor {
 public:
  Arenas() : found_(MachineState::get().devices().size()) {
    const auto& devices = MachineState::get().devices();
    std::vector<int> launches;
    for (int d = 0; d < static_cast<int>(devices.size()); ++d) {
      if (devices[static_cast<std::size_t>(d)].kind != DeviceKind::gpu) continue;
      const std::int64_t bytes = arena_bytes(d);
      const auto elements = bytes / static_cast<std::int64_t>(sizeof(float));
      LaunchRequirement all;
      all.region = regions_.add({elements});
      all.field = kValueField;
      all.privilege = LEGION_WRITE_DISCARD;
      all.rects = {Rect::of_shape({elements})};
      RuntimeLaunch launch;
      launch.task = MachineState::get().task_id(kTouchTask);
      launch.devices = {d};
      launch.requirements = {std::move(all)};
      // The task computes nothing: it tells where its instance lies.
      launch.body = [this, d, bytes](LeafContext& context) {
        found_[static_cast<std::size_t>(d)] = {context.views[0].data, bytes};
      };
      launches.push_back(add_launch(std::move(launch)));
    }
    seal("the GPUs' scratch memory");
    for (int launch : launches) issue(launch, RunState{});
    wait();
  }
  ~Arenas() override { wait_quietly(); }

  Arena of(int device) const { return found_[static_cast<std::size_t>(device)]; }

 private:
  std::vector<Arena> found_;
};

Arenas* arenas = nullptr;

}  // namespace

// None on machines without GPUs.
Arena arena_of(int device) { return arenas == nullptr ? Arena() : arenas->of(device); }

void reserve_arenas() {
  const auto& devices = MachineState::get().devices();
  const bool any = std::any_of(devices.begin(), devices.end(),
                               [](const Device& device) { return device.kind == DeviceKind::gpu; });
  if (any) arenas = new Arenas;  // lives as long as Legion does
}

}  // namespace flexlegion
