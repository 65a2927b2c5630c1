// The conversions of CUDA's header that csrc/cuda uses, for g++.
#pragma once

#include "mxfp8.h"

struct __nv_bfloat162 {
  uint16_t x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float first, float second) {
  return {mxfp8::fp32_to_bf16(first), mxfp8::fp32_to_bf16(second)};
}
