// The numerics of MXFP8 for all native code: no torch, no standard library beyond <cstdint>, usable
// in C++17, CUDA and SYCL device code. docs/numerics.md states the rules;
// tests/native/mxfp8_test.cpp proves this header.
//
// Everything that decides a byte is integer arithmetic on fp32 bits. The only floating-point
// operations are one multiplication by a power of two and one addition that rounds to an FP8
// subnormal.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MXFP8_FN __host__ __device__ __forceinline__
#define MXFP8_MEMBER MXFP8_FN
#else
// Internal linkage: files compiled for different instruction sets must not share one copy of a
// function.
#define MXFP8_FN static inline
#define MXFP8_MEMBER inline
#endif

namespace mxfp8 {

constexpr int kBlockSize = 32;
constexpr uint32_t kE8m0Nan = 255;
constexpr uint32_t kNanCode = 0x7F;
constexpr uint32_t kInfinityBits = 0x7F800000;
constexpr uint32_t kMagnitudeMask = 0x7FFFFFFF;

enum class InputType : int { kBf16, kFp16, kFp32 };
enum class ElementType : int { kE4m3, kE5m2 };
enum class ScalingMode : int { kRceil, kFloor, kCeil, kEven };
enum class ScaleLayout : int { kLinear, kSwizzled32x4x4, kSwizzled8x4 };

// An FP8 format. Its largest value is 1.75 * 2^kEmax.
template <ElementType kType>
struct Element {
  static constexpr bool kIsE4m3 = kType == ElementType::kE4m3;
  static constexpr int kEmax = kIsE4m3 ? 8 : 15;
  static constexpr int kMantissaBits = kIsE4m3 ? 3 : 2;
  static constexpr int kBias = kIsE4m3 ? 7 : 15;
  static constexpr uint32_t kMaxBits = kIsE4m3 ? 0x43E00000 : 0x47600000;  // 448, 57344
  static constexpr uint32_t kMaxCode = kIsE4m3 ? 0x7E : 0x7B;
  static constexpr uint32_t kMinNormalBits = kIsE4m3 ? 0x3C800000 : 0x38800000;  // 2^-6, 2^-14
};

MXFP8_FN uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(uint32_t, value);
#endif
}

MXFP8_FN float bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

MXFP8_FN uint32_t bf16_to_fp32_bits(uint16_t bits) { return static_cast<uint32_t>(bits) << 16; }

// Exact, subnormals included. A NaN stays a NaN and keeps its payload.
MXFP8_FN uint32_t fp16_to_fp32_bits(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7FFF;
  if (magnitude >= 0x7C00) return sign | kInfinityBits | ((magnitude & 0x3FF) << 13);
  if (magnitude >= 0x0400) return sign | ((magnitude << 13) + ((127 - 15) << 23));
  // magnitude * 2^-24, by an integer to float conversion that is exact.
  const uint32_t value = float_bits(static_cast<float>(magnitude));
  return magnitude == 0 ? sign : sign | (value - (24 << 23));
}

// Scale byte of a block from the fp32 bits of its largest |x|, sign cleared: 0 to 247, or 255.
template <ElementType kType>
MXFP8_FN uint32_t scale_byte(uint32_t amax_bits, ScalingMode mode) {
  using E = Element<kType>;
  if (amax_bits >= kInfinityBits) return kE8m0Nan;
  uint32_t exponent = 0;
  switch (mode) {
    case ScalingMode::kRceil:
      // Exponent of amax / (1.75 * 2^emax), rounded up: + 0x1FFFFF carries for mantissas
      // above 1.75. The rule multiplies by fp32(1 / max), which rounds the neighbour above max *
      // 2^-127 down to it.
      if (amax_bits == ((static_cast<uint32_t>(E::kEmax) << 23) | 0x600001)) return 0;
      exponent = (amax_bits + 0x1FFFFF) >> 23;
      break;
    case ScalingMode::kFloor:
      exponent = amax_bits >> 23;
      break;
    case ScalingMode::kCeil:
      exponent = (amax_bits + 0x7FFFFF) >> 23;
      break;
    case ScalingMode::kEven:
      exponent = (amax_bits + (1u << (22 - E::kMantissaBits))) >> 23;
      if (exponent == 255) return kE8m0Nan;
      break;
  }
  return exponent > static_cast<uint32_t>(E::kEmax) ? exponent - E::kEmax : 0;
}

// 2^(127 - byte) for a byte of scale_byte() below 255: 0 to 247 never needs a subnormal.
MXFP8_FN float inverse_scale(uint32_t byte) { return bits_float((254 - byte) << 23); }

// 2^(byte - 127); NaN for 255, and the subnormal 2^-127 for 0.
MXFP8_FN float scale_value(uint32_t byte) {
  if (byte == kE8m0Nan) return bits_float(0x7FC00000);
  return bits_float(byte == 0 ? 0x00400000 : byte << 23);
}

// RNE(clamp(value, -max, max)) as an FP8 code, exact on every processor. value must not be NaN.
template <ElementType kType>
MXFP8_FN uint32_t encode(float value) {
  using E = Element<kType>;
  constexpr int kShift = 23 - E::kMantissaBits;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - E::kBias) << E::kMantissaBits;
  // Adding this power of two leaves the FP8 subnormal, rounded to nearest even, in the low bits.
  constexpr uint32_t kMagicBits = static_cast<uint32_t>(127 + 23 + 1 - E::kBias - E::kMantissaBits)
                                  << 23;
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 24) & 0x80;
  const uint32_t magnitude = bits & kMagnitudeMask;
  if (magnitude >= E::kMaxBits) return sign | E::kMaxCode;
  if (magnitude < E::kMinNormalBits) {
    return sign | (float_bits(bits_float(magnitude) + bits_float(kMagicBits)) - kMagicBits);
  }
  const uint32_t rounding = (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1);
  return sign | (((magnitude + rounding) >> kShift) - kRebias);
}

// FP8 code to fp32 bits, exact.
template <ElementType kType>
MXFP8_FN uint32_t decode_bits(uint32_t code) {
  using E = Element<kType>;
  const uint32_t sign = (code & 0x80) << 24;
  const uint32_t magnitude = code & 0x7F;
  if (E::kIsE4m3 ? magnitude == 0x7F : magnitude > 0x7C) return 0x7FC00000;
  if (!E::kIsE4m3 && magnitude == 0x7C) return sign | kInfinityBits;
  if (magnitude >> E::kMantissaBits == 0) {
    const uint32_t value = float_bits(static_cast<float>(magnitude));
    constexpr uint32_t kScale = static_cast<uint32_t>(E::kBias - 1 + E::kMantissaBits) << 23;
    return magnitude == 0 ? sign : sign | (value - kScale);
  }
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - E::kBias) << 23;
  return sign | ((magnitude << (23 - E::kMantissaBits)) + kRebias);
}

// Round to nearest even; every NaN becomes the quiet NaN with a clear sign and no payload.
MXFP8_FN uint16_t fp32_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & kMagnitudeMask) > kInfinityBits) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

MXFP8_FN uint16_t fp32_to_fp16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & kMagnitudeMask;
  if (magnitude > kInfinityBits) return 0x7E00;
  if (magnitude >= 0x477FF000)
    return static_cast<uint16_t>(sign | 0x7C00);  // rounds to 2^16 or more
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves the subnormal in the low bits
    const uint32_t rounded = float_bits(bits_float(magnitude) + bits_float(0x3F000000));
    return static_cast<uint16_t>(sign | (rounded - 0x3F000000));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - ((127u - 15) << 23)) >> 13));
}

// Of sums that fit 64 bits; others come out negative, and no tensor is that large.
MXFP8_FN int64_t round_up(int64_t n, int64_t multiple) {
  const uint64_t whole = static_cast<uint64_t>(n) / static_cast<uint64_t>(multiple);
  const uint64_t rest = static_cast<uint64_t>(n) % static_cast<uint64_t>(multiple);
  return static_cast<int64_t>((whole + (rest != 0)) * static_cast<uint64_t>(multiple));
}

static constexpr int tile_rows(ScaleLayout layout) {
  return layout == ScaleLayout::kLinear ? 1 : layout == ScaleLayout::kSwizzled8x4 ? 8 : 128;
}

static constexpr int tile_columns(ScaleLayout layout) {
  return layout == ScaleLayout::kLinear ? 1 : 4;
}

// Place of scale (row, column) within one matrix whose storage has padded_columns scales a row.
MXFP8_FN int64_t scale_offset(ScaleLayout layout, int64_t row, int64_t column,
                              int64_t padded_columns) {
  switch (layout) {
    case ScaleLayout::kSwizzled32x4x4:
      return (row / 128 * (padded_columns / 4) + column / 4) * 512 + row % 32 * 16 +
             row % 128 / 32 * 4 + column % 4;
    case ScaleLayout::kSwizzled8x4:
      return (row / 8 * (padded_columns / 4) + column / 4) * 32 + row % 8 * 4 + column % 4;
    default:
      return row * padded_columns + column;
  }
}

}  // namespace mxfp8
