// What a program takes of each memory, as a table for people.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "legion.h"
#include "runtime/regions.h"

namespace flexlegion {

// The devices whose memory it is: "cpu:0 to cpu:3", "rank 0, pinned".
std::string name_of(const Legion::Memory& memory);
// The option by which Legate is given more of it.
const char* option_of(const Legion::Memory& memory);

// A line a memory; `others` is what other programs and scratch memory have of them.
std::string memory_table(const std::map<Legion::Memory, ContentBytes>& needed,
                         const std::map<Legion::Memory, std::int64_t>& others);

}  // namespace flexlegion
