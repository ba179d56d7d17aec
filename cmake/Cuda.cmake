# The CUDA toolkit, which is optional: without it everything but device/cuda is built.
#   RINGMASTER_CUDA   AUTO: where the toolkit is found and no sanitizer is asked for; ON: must be there; OFF
#   RINGMASTER_HAS_CUDA   the result
#   rm_cuda_library(NAME [DEPS ...])   all *.cu and *.cc of this folder
#   rm_gpu_tests(NAME SOURCES ... [DEPS ...])   a test binary that needs a GPU: built, but not among the tests that run everywhere
set(RINGMASTER_CUDA AUTO CACHE STRING "AUTO, ON or OFF: build the cuda device")
set(RINGMASTER_CUDA_ARCHITECTURES 90a CACHE STRING "Compute capabilities to compile kernels for")
set(RINGMASTER_HAS_CUDA OFF)
if(RINGMASTER_CUDA STREQUAL "ON" OR (RINGMASTER_CUDA STREQUAL "AUTO" AND NOT RINGMASTER_SANITIZE))
  find_program(RINGMASTER_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(RINGMASTER_NVCC)
    set(CMAKE_CUDA_COMPILER ${RINGMASTER_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${RINGMASTER_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc has C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    if(RINGMASTER_CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${RINGMASTER_CCACHE})
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(RINGMASTER_HAS_CUDA ON)
  elseif(RINGMASTER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RINGMASTER_CUDA is ON, but nvcc is neither on the PATH nor in /usr/local/cuda/bin")
  endif()
endif()
message(STATUS "cuda device: ${RINGMASTER_HAS_CUDA}")

function(rm_cuda_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_library(${name} STATIC ${sources})
  target_compile_options(${name} PRIVATE
                         "$<$<COMPILE_LANGUAGE:CUDA>:-O3;-lineinfo;--expt-relaxed-constexpr;--Werror=all-warnings>")
  target_link_libraries(${name} PUBLIC rm_flags CUDA::cudart_static ${ARG_DEPS})
endfunction()

function(rm_gpu_tests name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE rm_flags GTest::gtest_main GTest::gmock ${ARG_DEPS})
  target_compile_definitions(${name} PRIVATE RINGMASTER_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endfunction()
