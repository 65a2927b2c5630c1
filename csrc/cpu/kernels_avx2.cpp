#include "block_kernels.h"

namespace mxfp8::cpu {

const Kernels& kernels_avx2() {
  static constexpr Kernels kTable = plain_kernels("avx2");
  return kTable;
}

}  // namespace mxfp8::cpu
