# flexlegion_cuda: the GPU kernels (native/gpu), a library of its own, so that flexlegion_rt runs without CUDA. It needs a
# CUDA compiler, cuBLAS and cuDNN: of the system, or of PyPI's wheels (nvidia-cuda-nvcc, which there is from CUDA 13 on;
# nvidia-cublas, nvidia-cudnn-cu12 or -cu13). Attention is one kernel where there is also cuDNN's front end, which is
# headers alone: PyPI's nvidia-cudnn-frontend puts them into site-packages/include.
option(FLEXLEGION_CUDA "Build the GPU kernels, if there is a CUDA compiler with cuBLAS and cuDNN" ON)
include(CheckLanguage)
set(cuda_wanted OFF) # a variable of our own: what an earlier configuration found is still in the cache
if(FLEXLEGION_CUDA AND NOT FLEXLEGION_SANITIZE AND TARGET flexlegion_ops)
  set(site_folders)
  set(site_includes)
  foreach(site IN LISTS FLEXLEGION_PURELIB)
    list(APPEND site_folders ${site}/nvidia/cudnn ${site}/nvidia/cu13 ${site}/nvidia/cublas)
    list(APPEND site_includes ${site}/include)
  endforeach()
  # The system's compiler comes first; check_language hands the environment on.
  find_program(FLEXLEGION_NVCC nvcc PATHS ${site_folders} PATH_SUFFIXES bin)
  if(FLEXLEGION_NVCC AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${FLEXLEGION_NVCC})
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(cuda_wanted ON)
  endif()
endif()
if(cuda_wanted)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES all-major)
  endif()
  enable_language(CUDA)
  # As CMake writes it ("-isystem="), ccache does not see the path in it, which differs from clone to clone.
  set(CMAKE_INCLUDE_SYSTEM_FLAG_CUDA "-isystem ")
  set(CMAKE_CUDA_STANDARD 17)
  find_path(CUBLAS_INCLUDE cublas_v2.h HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${site_folders}
            PATH_SUFFIXES include)
  find_path(CUDNN_INCLUDE cudnn.h HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${site_folders} PATH_SUFFIXES include)
  find_library(CUBLAS_LIBRARY NAMES cublas libcublas.so.13 libcublas.so.12
               HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${site_folders} PATH_SUFFIXES lib lib64)
  find_library(CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12
               HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${site_folders} PATH_SUFFIXES lib lib64)
  find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9
               HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${site_folders} PATH_SUFFIXES lib lib64)
  find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${site_includes} ${CUDNN_INCLUDE}
            ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  set(frontend_fits "") # an older one has no choice of implementations
  if(CUDNN_FRONTEND_INCLUDE)
    file(STRINGS ${CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_utils.h frontend_fits
         REGEX "^enum class AttentionImplementation_t")
  endif()
endif()
if(cuda_wanted AND CUBLAS_INCLUDE AND CUDNN_INCLUDE AND CUBLAS_LIBRARY AND CUBLASLT_LIBRARY AND CUDNN_LIBRARY)
  if(frontend_fits)
    set(fused_attention "fused attention by ${CUDNN_FRONTEND_INCLUDE}/cudnn_frontend.h")
  else()
    set(fused_attention "without a fitting nvidia-cudnn-frontend, no fused attention")
  endif()
  message(STATUS "flexlegion: GPU kernels by ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, ${CUBLAS_LIBRARY}, "
                 "${CUDNN_LIBRARY}; ${fused_attention}")
  file(GLOB cuda_sources CONFIGURE_DEPENDS native/gpu/*.cu)
  add_library(flexlegion_cuda_ops OBJECT ${cuda_sources})
  target_compile_options(flexlegion_cuda_ops PRIVATE --extended-lambda --expt-relaxed-constexpr
                         -Xcompiler=-Wall)
  target_include_directories(flexlegion_cuda_ops PUBLIC native)
  target_include_directories(flexlegion_cuda_ops SYSTEM PUBLIC ${CUBLAS_INCLUDE} ${CUDNN_INCLUDE})
  if(frontend_fits)
    target_compile_definitions(flexlegion_cuda_ops PRIVATE FLEXLEGION_CUDNN_FRONTEND)
    target_include_directories(flexlegion_cuda_ops PRIVATE native/gpu/no_nvrtc)
    target_include_directories(flexlegion_cuda_ops SYSTEM PRIVATE ${CUDNN_FRONTEND_INCLUDE})
    # Descriptions of graphs, made once a shape: to optimise all that the front end has takes a minute.
    set_source_files_properties(native/gpu/fused_attention.cu PROPERTIES COMPILE_OPTIONS -O1)
  endif()
  target_link_libraries(flexlegion_cuda_ops PUBLIC ${CUBLAS_LIBRARY} ${CUBLASLT_LIBRARY} ${CUDNN_LIBRARY})
  if(TARGET flexlegion_rt)
    add_library(flexlegion_cuda SHARED)
    target_link_libraries(flexlegion_cuda PRIVATE flexlegion_cuda_ops flexlegion_rt)
    set_target_properties(flexlegion_cuda PROPERTIES LINKER_LANGUAGE CUDA INSTALL_RPATH
      "$ORIGIN;$ORIGIN/../../nvidia/cudnn/lib;$ORIGIN/../../nvidia/cu13/lib;$ORIGIN/../../nvidia/cublas/lib")
    install(TARGETS flexlegion_cuda LIBRARY DESTINATION flexlegion/lib)
  endif()
else()
  message(STATUS "flexlegion: without a CUDA compiler, cuBLAS or cuDNN, no GPU kernels are built: CPU processors only")
endif()
