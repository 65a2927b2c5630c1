// The conversions of CUDA's header that csrc/cuda uses, for g++.
#pragma once

#include "mxfp8.h"

struct __half2 {
  uint16_t x, y;
};
inline __half2 __floats2half2_rn(float first, float second) {
  return {mxfp8::fp32_to_fp16(first), mxfp8::fp32_to_fp16(second)};
}
