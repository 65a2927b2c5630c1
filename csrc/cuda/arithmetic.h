// Index and scale arithmetic of the CUDA kernels that has nothing to do with a GPU:
// tests/native/cuda_arithmetic_test.cpp runs it on the host.
#pragma once

#include "mxfp8.h"

namespace mxfp8::cuda {

// n / divisor and n % divisor for 0 <= n < 2^31 by one high multiplication.
struct FastDivisor {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier =
        static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
  MXFP8_MEMBER uint32_t quotient(uint32_t n) const {
#if defined(__CUDA_ARCH__)
    const uint32_t high = __umulhi(n, multiplier);
#else
    const uint32_t high = static_cast<uint32_t>((uint64_t{n} * multiplier) >> 32);
#endif
    return (high + n) >> shift;
  }
};

// Whether the code that a device of compute capability 10 * major + minor runs, out of `archs` like
// "80_90_100a" with PTX for the last, was compiled for 9.0 or newer and hence has the waits of
// programmatic dependent launch. A launch that overlaps without them races.
inline bool waits_for_previous_kernel(const char* archs, int capability) {
  int last = 0;
  for (const char* c = archs; *c != '\0';) {
    for (last = 0; *c >= '0' && *c <= '9'; ++c) last = 10 * last + (*c - '0');
    while (*c != '\0' && *c != '_') ++c;  // a suffix
    if (*c == '_') ++c;
    if (last >= 90 && last / 10 == capability / 10 && last <= capability) return true;
  }
  return capability >= 90 && last >= 90;
}

// Number of a warp in a grid of fewer than 2^31 of them: the number of its thread can pass 2^32.
MXFP8_FN uint32_t warp_index(uint32_t block, uint32_t threads_per_block, uint32_t thread) {
  return block * (threads_per_block >> 5) + (thread >> 5);
}

// scale_byte() of mxfp8.h with the mode folded into three numbers, so that kernels need no branch.
struct ScaleRule {
  uint32_t addend;       // carries into the exponent where the mode rounds it up
  uint32_t nan_from;     // amax bits from which the byte is 255
  uint32_t rounds_down;  // the one amax whose product with fp32(1 / max) rounds down; 0 for none

  template <ElementType kType>
  static ScaleRule of(ScalingMode mode) {
    using E = Element<kType>;
    switch (mode) {
      case ScalingMode::kRceil:
        return {0x1FFFFF, kInfinityBits, (static_cast<uint32_t>(E::kEmax) << 23) | 0x600001};
      case ScalingMode::kFloor:
        return {0, kInfinityBits, 0};
      case ScalingMode::kCeil:
        return {0x7FFFFF, kInfinityBits, 0};
      default:
        return {1u << (22 - E::kMantissaBits), kInfinityBits - (1u << (22 - E::kMantissaBits)), 0};
    }
  }

  // kExact = false leaves out the case that only fp32 input can reach.
  template <ElementType kType, bool kExact>
  MXFP8_MEMBER uint32_t byte(uint32_t amax_bits) const {
    constexpr uint32_t kEmax = Element<kType>::kEmax;
    const uint32_t exponent = (amax_bits + addend) >> 23;
    uint32_t result = (exponent > kEmax ? exponent : kEmax) - kEmax;
    if (kExact && amax_bits == rounds_down) result = 0;
    return amax_bits >= nan_from ? kE8m0Nan : result;
  }
};

// scale_offset() of mxfp8.h for matrices of fewer than 2^31 rows and 2^32 scale columns.
MXFP8_FN int64_t scale_place(ScaleLayout layout, uint32_t row, uint32_t column,
                             uint32_t padded_columns) {
  if (layout == ScaleLayout::kLinear) return static_cast<int64_t>(row) * padded_columns + column;
  const uint32_t tiles = padded_columns >> 2;
  if (layout == ScaleLayout::kSwizzled32x4x4) {
    return (static_cast<int64_t>(row >> 7) * tiles + (column >> 2)) * 512 +
           ((row & 31) << 4 | (row >> 5 & 3) << 2 | (column & 3));
  }
  return (static_cast<int64_t>(row >> 3) * tiles + (column >> 2)) * 32 +
         ((row & 7) << 2 | (column & 3));
}

// A warp works on one unit: `kUnroll` accesses of 8 blocks of 32 elements. In the linear layout
// they follow each other in one row; in a swizzled one they are rows of one tile whose scales are
// neighbours in memory, so that the unit's scale bytes form runs of 4 * kUnroll.
struct UnitShape {
  uint32_t row, column;  // first access
  uint32_t row_step, column_step;
};

template <int kUnroll>
MXFP8_FN UnitShape unit_shape(ScaleLayout layout, uint32_t group, uint32_t column_unit) {
  if (layout == ScaleLayout::kLinear) return {group, column_unit * 8 * kUnroll, 0, 8};
  if (layout == ScaleLayout::kSwizzled32x4x4) {
    return {(group >> 5) * (32 * kUnroll) + (group & 31), column_unit * 8, 32, 0};
  }
  return {group * kUnroll, column_unit * 8, 1, 0};
}

}  // namespace mxfp8::cuda
