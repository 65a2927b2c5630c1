// Takes the place of csrc/cpu/kernels.cpp in the library of the tests that has emulated_avx512.h.
#include <cstring>

#include "cpu/kernels.h"

namespace mxfp8::cpu {

const Kernels& kernels() { return kernels_avx512(); }
bool set_kernels(const char* name) { return std::strcmp(name, "avx512") == 0; }

}  // namespace mxfp8::cpu
