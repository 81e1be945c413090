# find_package(tensorops) gives the target tensorops::tensorops.
get_filename_component(_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT EXISTS "${_root}/include/tensorops/backends.h") # lib/<architecture>/cmake/tensorops
  get_filename_component(_root "${_root}/.." ABSOLUTE)
endif()
find_library(TENSOROPS_LIBRARY tensorops PATHS "${CMAKE_CURRENT_LIST_DIR}/../.." NO_DEFAULT_PATH REQUIRED)
if(NOT TARGET tensorops::tensorops)
  add_library(tensorops::tensorops UNKNOWN IMPORTED)
  set_target_properties(
    tensorops::tensorops PROPERTIES IMPORTED_LOCATION "${TENSOROPS_LIBRARY}"
                                    INTERFACE_INCLUDE_DIRECTORIES "${_root}/include")
endif()
unset(_root)
