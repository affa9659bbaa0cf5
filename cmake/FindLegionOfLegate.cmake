# flexlegion_legion: Legion and Realm, from the installed legate wheel, else any that CMake finds. The wheel's own CMake
# package insists on a CUDA toolkit, which a user's machine may lack, so the target is made from the wheel's paths.
find_path(LEGATE_PACKAGE include/legate/deps/legion.h
          PATHS ${FLEXLEGION_PURELIB} PATH_SUFFIXES legate NO_DEFAULT_PATH)
if(LEGATE_PACKAGE)
  add_library(flexlegion_legion INTERFACE)
  target_include_directories(flexlegion_legion SYSTEM INTERFACE ${LEGATE_PACKAGE}/include/legate/deps)
  find_library(LEGATE_LEGION NAMES liblegion-legate.so.1 PATHS ${LEGATE_PACKAGE}/lib64 NO_DEFAULT_PATH REQUIRED)
  find_library(LEGATE_REALM NAMES librealm-legate.so.25 PATHS ${LEGATE_PACKAGE}/lib64 NO_DEFAULT_PATH REQUIRED)
  target_link_libraries(flexlegion_legion INTERFACE ${LEGATE_LEGION} ${LEGATE_REALM})
  message(STATUS "flexlegion: Legion of the legate package at ${LEGATE_PACKAGE}")
else()
  find_package(Legion CONFIG QUIET)
  if(TARGET Legion::Legion)
    add_library(flexlegion_legion INTERFACE)
    target_link_libraries(flexlegion_legion INTERFACE Legion::Legion)
    message(STATUS "flexlegion: Legion found by CMake at ${Legion_DIR}")
  endif()
endif()
