# Links C++'s library as the shared one that Legion uses, whatever the compiler does by itself: with -static-libstdc++ in
# LDFLAGS, and on one machine (Ubuntu 24.04, g++ 13) without it, libraries got a static copy. The symbols of such a copy
# come before those of the shared library when legate is loaded after ours, and legate crashes in its first constructor.
include(CheckLinkerFlag)
set(shared_cxx_library "LINKER:--push-state,--no-as-needed,-l:libstdc++.so.6,--pop-state")
check_linker_flag(CXX "${shared_cxx_library}" FLEXLEGION_SHARED_CXX_LIBRARY)
if(FLEXLEGION_SHARED_CXX_LIBRARY)
  add_link_options(${shared_cxx_library})
endif()
