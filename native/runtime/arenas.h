// Scratch memory of GPUs: a part of their memory that Legion gives out once, for all programs.
#pragma once

#include <cstdint>

namespace flexlegion {

struct Arena {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

// Of a GPU of this rank; empty before reserve_arenas(). For running tasks.
Arena arena_of(int device);

// How many bytes of its memory a GPU, of any rank, has as scratch memory.
std::int64_t arena_bytes(int device);

// Every rank calls this, once, after the machine was found. Throws UserMistake if a GPU's memory is
// too small. The environment variable FLEXLEGION_GPU_SCRATCH says how many MiB a GPU has; by
// default an eighth of its memory, and at most 2 GiB.
void reserve_arenas();

}  // namespace flexlegion
