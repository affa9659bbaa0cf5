# Headers of others that most units of a target include are compiled once for all of them: a build from nothing takes a
# quarter less processor time. Not where a compiler cache is used: ccache keeps no unit that has a precompiled header,
# and developers, who have it, compile little. Headers of our own change, so they stay out.
function(flexlegion_precompile target)
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    target_precompile_headers(${target} PRIVATE <algorithm> <array> <cmath> <cstdint> <functional> <limits> <map>
                              <memory> <numeric> <optional> <set> <stdexcept> <string> <utility> <vector> ${ARGN})
  endif()
endfunction()
