# Compiles through ccache where it is installed and no other launcher was asked for. What a clone in one folder has
# compiled is found again from another: paths below the source folder are hashed relative to it.
find_program(FLEXLEGION_CCACHE ccache)
if(FLEXLEGION_CCACHE)
  set(through_ccache ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${FLEXLEGION_CCACHE})
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${through_ccache})
    endif()
  endforeach()
endif()
