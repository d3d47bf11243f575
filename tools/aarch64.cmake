# Cross compilation for 64-bit ARM by Debian's g++-aarch64-linux-gnu, for tools/wheel_aarch64.py. Settings come from the
# environment, because CMake reads this file again for each of its trials:
#   HVD_ARM64_DEBIAN    a folder with arm64 Debian's files: Python's headers are taken from there
#   HVD_PYTHON_VERSION  of that Python, for example 3.11
#   HVD_PYTHON          a Python of this machine, of the same version
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# Debian's pyconfig.h includes that of the architecture from this folder, which is the last to be searched: the C
# library's headers are those of the compiler.
foreach(language IN ITEMS C CXX)
  set(CMAKE_${language}_FLAGS_INIT "-idirafter $ENV{HVD_ARM64_DEBIAN}/usr/include")
endforeach()

set(Python_EXECUTABLE "$ENV{HVD_PYTHON}")
set(Python_INCLUDE_DIR "$ENV{HVD_ARM64_DEBIAN}/usr/include/python$ENV{HVD_PYTHON_VERSION}")
set(PYTHON_MODULE_EXTENSION "$ENV{SETUPTOOLS_EXT_SUFFIX}")
set(PYTHON_MODULE_DEBUG_POSTFIX "")
set(PYTHON_IS_DEBUG FALSE)
