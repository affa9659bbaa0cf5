# C++'s library is linked as the shared one that Legion uses, whatever the compiler's default is. Some machines link a
# static one (-static-libstdc++ in LDFLAGS, or no link for the linker to find the shared one by). A copy inside one of
# our libraries would stand before the shared one when legate is loaded after it, and legate crashes in its first
# constructor.
include(CheckLinkerFlag)
set(shared_cxx_library "LINKER:--push-state,--no-as-needed,-l:libstdc++.so.6,--pop-state")
check_linker_flag(CXX "${shared_cxx_library}" FLEXLEGION_SHARED_CXX_LIBRARY)
if(FLEXLEGION_SHARED_CXX_LIBRARY)
  add_link_options(${shared_cxx_library})
endif()
