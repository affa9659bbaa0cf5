// What a program needs of each memory, for whoever is told that one is too small.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "flexlegion_core.h"
#include "legion.h"
#include "runtime/regions.h"

namespace flexlegion {

// The devices whose memory it is: "cpu:0 to cpu:3", "rank 0, pinned".
std::string name_of(const Legion::Memory& memory);
// The option by which Legate is given more of it.
const char* option_of(const Legion::Memory& memory);

std::vector<fl_memory_need> memory_needs(const std::map<Legion::Memory, ContentBytes>& needed,
                                         const std::map<Legion::Memory, std::int64_t>& others);

}  // namespace flexlegion
