// Dequantization with AVX2 and F16C, included by kernels_avx2.cpp alone.
#pragma once

#include <immintrin.h>

#include "block_kernels.h"

namespace mxfp8::cpu {
namespace {

// 16 codes as fp16: e5m2 is the upper half of one; e4m3 is one of 2^-8 times the value.
template <ElementType kElement>
inline __m256i codes_to_fp16(const uint8_t* data) {
  const __m256i words =
      _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
  if constexpr (kElement == ElementType::kE5m2) return _mm256_slli_epi16(words, 8);
  const __m256i half =
      _mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(0xBFFF - 0x10000));
  const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
  const __m256i nan =
      _mm256_cmpeq_epi16(_mm256_and_si256(half, magnitude), _mm256_set1_epi16(kNanCode << 7));
  return _mm256_or_si256(half, _mm256_and_si256(nan, magnitude));
}

// fp32 bits with every NaN as 0x7FC00000.
inline __m256i canonical_bits(__m256 value) {
  const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256 canonical = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  return _mm256_castps_si256(_mm256_blendv_ps(value, canonical, nan));
}

inline __m256i to_bf16(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_set1_epi32(0x7FFF);
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, half), odd), 16);
}

inline void put(char* to, __m256i bits, bool stream) {
  if (stream) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bits);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  }
}

// 16 values, 32 or 64 bytes.
template <InputType kOutput>
inline void store_values(char* to, __m256 low, __m256 high, bool stream) {
  const __m256i a = canonical_bits(low), b = canonical_bits(high);
  if constexpr (kOutput == InputType::kFp32) {
    put(to, a, stream);
    put(to + 32, b, stream);
  } else if constexpr (kOutput == InputType::kFp16) {
    const auto half = [](__m256i bits) {
      return _mm256_cvtps_ph(_mm256_castsi256_ps(bits), _MM_FROUND_TO_NEAREST_INT);
    };
    put(to, _mm256_set_m128i(half(b), half(a)), stream);
  } else {
    const __m256i quarters = _mm256_packus_epi32(to_bf16(a), to_bf16(b));
    put(to, _mm256_permute4x64_epi64(quarters, 0xD8), stream);
  }
}

template <ElementType kElement, InputType kOutput>
void dequantize_lanes(const uint8_t* data, const uint8_t* scale, int64_t blocks, void* output,
                      bool stream) {
  constexpr int kStep = 16;
  char* to = static_cast<char*>(output);
  stream = stream && reinterpret_cast<uintptr_t>(output) % 32 == 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const __m256 factor = _mm256_set1_ps(scale_value(scale[block]));
    for (int i = 0; i < kBlockSize; i += kStep) {
      const __m256i half = codes_to_fp16<kElement>(data + block * kBlockSize + i);
      __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
      __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
      if constexpr (kElement == ElementType::kE4m3) {
        low = _mm256_mul_ps(low, _mm256_set1_ps(256));
        high = _mm256_mul_ps(high, _mm256_set1_ps(256));
      }
      store_values<kOutput>(to, _mm256_mul_ps(low, factor), _mm256_mul_ps(high, factor), stream);
      to += kStep * input_size(kOutput);
    }
  }
}

}  // namespace
}  // namespace mxfp8::cpu
