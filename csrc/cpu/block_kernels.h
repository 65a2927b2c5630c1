// Kernels on dense blocks in plain C++, shaped so that the compiler vectorises them. Each
// kernels_*.cpp includes this file once and is compiled for its own instruction set: everything
// here has internal linkage, or the linker could pick a copy that the processor cannot run.
#pragma once

#include <cstring>

#include "kernels.h"
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace mxfp8::cpu {
namespace {

constexpr int input_size(InputType type) { return type == InputType::kFp32 ? 4 : 2; }

// `count` values, a multiple of 16, to fp32 bits.
template <InputType kInput>
inline void load_bits(const char* input, int count, uint32_t* bits) {
  if constexpr (kInput == InputType::kFp32) {
    std::memcpy(bits, input, sizeof(uint32_t) * count);
    return;
  }
#if defined(__AVX512F__)
  if constexpr (kInput == InputType::kFp16) {
    for (int i = 0; i < count; i += 16) {
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(input + 2 * i));
      _mm512_storeu_ps(bits + i, _mm512_maskz_cvtph_ps(0xFFFF, half));
    }
    return;
  }
#elif defined(__F16C__)
  if constexpr (kInput == InputType::kFp16) {
    for (int i = 0; i < count; i += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(input + 2 * i));
      _mm256_storeu_ps(reinterpret_cast<float*>(bits + i), _mm256_cvtph_ps(half));
    }
    return;
  }
#endif
  for (int i = 0; i < count; ++i) {
    uint16_t value;
    std::memcpy(&value, input + 2 * i, sizeof(value));
    bits[i] = kInput == InputType::kBf16 ? bf16_to_fp32_bits(value) : fp16_to_fp32_bits(value);
  }
}

template <InputType kInput, ElementType kElement>
void quantize_blocks(const void* input, int64_t blocks, ScalingMode mode, uint8_t* data,
                     uint8_t* scale, bool) {
  const char* source = static_cast<const char*>(input);
  for (int64_t block = 0; block < blocks; ++block) {
    alignas(64) uint32_t bits[kBlockSize];
    load_bits<kInput>(source, kBlockSize, bits);
    uint32_t amax = 0;
    for (int i = 0; i < kBlockSize; ++i) {
      const uint32_t magnitude = bits[i] & kMagnitudeMask;
      amax = magnitude > amax ? magnitude : amax;
    }
    const uint32_t byte = scale_byte<kElement>(amax, mode);
    if (byte == kE8m0Nan) {
      std::memset(data, kNanCode, kBlockSize);
    } else {
      const float inverse = inverse_scale(byte);
      for (int i = 0; i < kBlockSize; ++i) {
        data[i] = static_cast<uint8_t>(encode<kElement>(bits_float(bits[i]) * inverse));
      }
    }
    scale[block] = static_cast<uint8_t>(byte);
    source += input_size(kInput) * kBlockSize;
    data += kBlockSize;
  }
}

// from[32][kTile] to to[kTile][kTile], of which 32 columns are written.
inline void transpose_codes(const uint8_t* from, uint8_t* to) {
#if defined(__SSE2__)
  for (int row = 0; row < kBlockSize; row += 16) {
    for (int column = 0; column < kTile; column += 16) {
      __m128i a[16], b[16];
      for (int i = 0; i < 16; ++i) {
        a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + (row + i) * kTile + column));
      }
      // Four rounds of interleaving rows i and i + 8 transpose 16 x 16 bytes.
      for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < 8; ++i) {
          b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
          b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
        }
        for (int i = 0; i < 16; ++i) a[i] = b[i];
      }
      for (int i = 0; i < 16; ++i) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (column + i) * kTile + row), a[i]);
      }
    }
  }
#else
  for (int column = 0; column < kTile; ++column) {
    for (int row = 0; row < kBlockSize; ++row)
      to[column * kTile + row] = from[row * kTile + column];
  }
#endif
}

template <InputType kInput, ElementType kElement>
void quantize_tile(const void* input, int blocks, ScalingMode mode, uint8_t* data, uint8_t* scale) {
  const char* source = static_cast<const char*>(input);
  constexpr int kPitch = kTile * input_size(kInput);
  for (int block = 0; block < blocks; ++block) {
    alignas(64) uint32_t bits[kTile];
    alignas(64) uint32_t amax[kTile] = {};
    alignas(64) float inverse[kTile];
    alignas(64) uint8_t nan_mask[kTile];
    alignas(64) uint8_t codes[kBlockSize * kTile];
    for (int row = 0; row < kBlockSize; ++row) {
      load_bits<kInput>(source + row * kPitch, kTile, bits);
      for (int i = 0; i < kTile; ++i) {
        const uint32_t magnitude = bits[i] & kMagnitudeMask;
        amax[i] = magnitude > amax[i] ? magnitude : amax[i];
      }
    }
    for (int i = 0; i < kTile; ++i) {
      const uint32_t byte = scale_byte<kElement>(amax[i], mode);
      scale[i * kTileBlocks + block] = static_cast<uint8_t>(byte);
      nan_mask[i] = byte == kE8m0Nan ? 0xFF : 0;
      inverse[i] = inverse_scale(byte == kE8m0Nan ? 127 : byte);
    }
    for (int row = 0; row < kBlockSize; ++row) {
      load_bits<kInput>(source + row * kPitch, kTile, bits);
      uint8_t* line = codes + row * kTile;
      for (int i = 0; i < kTile; ++i) {
        line[i] = static_cast<uint8_t>(encode<kElement>(bits_float(bits[i]) * inverse[i]));
      }
      for (int i = 0; i < kTile; ++i) {
        line[i] = static_cast<uint8_t>((line[i] & ~nan_mask[i]) | (kNanCode & nan_mask[i]));
      }
    }
    transpose_codes(codes, data + block * kBlockSize);
    source += kBlockSize * kPitch;
  }
}

template <ElementType kElement, InputType kOutput>
void dequantize_blocks(const uint8_t* data, const uint8_t* scale, int64_t blocks, void* output,
                       bool) {
  char* target = static_cast<char*>(output);
  for (int64_t block = 0; block < blocks; ++block) {
    const float factor = scale_value(scale[block]);
    alignas(64) float values[kBlockSize];
    for (int i = 0; i < kBlockSize; ++i) {
      const float value = bits_float(decode_bits<kElement>(data[i])) * factor;
      const uint32_t bits = float_bits(value);
      values[i] = bits_float((bits & kMagnitudeMask) > kInfinityBits ? 0x7FC00000 : bits);
    }
    if constexpr (kOutput == InputType::kFp32) {
      std::memcpy(target, values, sizeof(values));
    } else {
      alignas(64) uint16_t rounded[kBlockSize];
      for (int i = 0; i < kBlockSize; ++i) {
        rounded[i] =
            kOutput == InputType::kBf16 ? fp32_to_bf16(values[i]) : fp32_to_fp16(values[i]);
      }
      std::memcpy(target, rounded, sizeof(rounded));
    }
    data += kBlockSize;
    target += input_size(kOutput) * kBlockSize;
  }
}

constexpr InputType kB = InputType::kBf16, kH = InputType::kFp16, kF = InputType::kFp32;
constexpr ElementType k4 = ElementType::kE4m3, k5 = ElementType::kE5m2;

// The table of this file's kernels.
constexpr Kernels plain_kernels(const char* name) {
  return {name,
          {{quantize_blocks<kB, k4>, quantize_blocks<kB, k5>},
           {quantize_blocks<kH, k4>, quantize_blocks<kH, k5>},
           {quantize_blocks<kF, k4>, quantize_blocks<kF, k5>}},
          {{quantize_tile<kB, k4>, quantize_tile<kB, k5>},
           {quantize_tile<kH, k4>, quantize_tile<kH, k5>},
           {quantize_tile<kF, k4>, quantize_tile<kF, k5>}},
          {{dequantize_blocks<k4, kB>, dequantize_blocks<k4, kH>, dequantize_blocks<k4, kF>},
           {dequantize_blocks<k5, kB>, dequantize_blocks<k5, kH>, dequantize_blocks<k5, kF>}}};
}

}  // namespace
}  // namespace mxfp8::cpu
