#include "block_kernels.h"

namespace mxfp8::cpu {

const Kernels& kernels_avx512() {
  static constexpr Kernels kTable = plain_kernels("avx512");
  return kTable;
}

}  // namespace mxfp8::cpu
