# FLEXLEGION_PURELIB: the site-packages of the Python that builds or will run this; FLEXLEGION_PREFIX: its environment.
# Under pip's build isolation packages lie elsewhere than in the environment, so sys.path is asked, not sysconfig alone.
find_package(Python 3.11 COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
          "import sys, sysconfig; print(';'.join([sysconfig.get_path('purelib'), *(p for p in sys.path if 'site-packages' in p or 'dist-packages' in p)]))"
  OUTPUT_VARIABLE FLEXLEGION_PURELIB OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(FLEXLEGION_PREFIX)
foreach(site IN LISTS FLEXLEGION_PURELIB)
  get_filename_component(prefix "${site}/../../.." ABSOLUTE)
  list(APPEND FLEXLEGION_PREFIX "${prefix}")
endforeach()
list(REMOVE_DUPLICATES FLEXLEGION_PREFIX)
