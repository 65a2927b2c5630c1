// AVX-512 kernels: fp32 lanes, 16 blocks at a time, so that one transposing tree yields 16 maxima
// and one vector operation their scales. On a Zen 4 core this is about 40 vector operations for a
// block of 32.
#include "block_kernels.h"

namespace mxfp8::cpu {
namespace {

constexpr int kGroup = 16;

// scale_byte() of 16 blocks, its mode turned into numbers.
template <ElementType kElement>
struct ScaleRule {
  explicit ScaleRule(ScalingMode mode) {
    const int shift = 22 - Element<kElement>::kMantissaBits;
    const uint32_t carry = mode == ScalingMode::kRceil  ? 0x1FFFFF
                           : mode == ScalingMode::kCeil ? 0x7FFFFF
                           : mode == ScalingMode::kEven ? 1u << shift
                                                        : 0;
    const bool even = mode == ScalingMode::kEven;
    const uint32_t rounds_down = static_cast<uint32_t>(Element<kElement>::kEmax) << 23 | 0x600001;
    add = _mm512_set1_epi32(carry);
    not_finite = _mm512_set1_epi32(kInfinityBits - (even ? carry : 0));
    zero = _mm512_set1_epi32(mode == ScalingMode::kRceil ? rounds_down : 0);
  }

  // Bytes from the fp32 bits of the maxima; 255 where the mask is set.
  __m512i bytes(__m512i amax, __mmask16* nan) const {
    const __m512i exponent = _mm512_srli_epi32(_mm512_add_epi32(amax, add), 23);
    const __m512i emax = _mm512_set1_epi32(Element<kElement>::kEmax);
    __m512i byte = _mm512_sub_epi32(_mm512_max_epi32(exponent, emax), emax);
    byte = _mm512_mask_mov_epi32(byte, _mm512_cmpeq_epi32_mask(amax, zero), _mm512_setzero_si512());
    *nan = _mm512_cmpge_epu32_mask(amax, not_finite);
    return _mm512_mask_mov_epi32(byte, *nan, _mm512_set1_epi32(kE8m0Nan));
  }

  __m512i add, not_finite, zero;
};

inline __m512 inverse_scales(__m512i byte) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(254), byte), 23));
}

// encode() of 16 lanes, in the low byte of each.
template <ElementType kElement>
inline __m512i encode_lanes(__m512 value) {
  using E = Element<kElement>;
  constexpr int kShift = 23 - E::kMantissaBits;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - E::kBias) << 23;
  constexpr uint32_t kMagicBits = static_cast<uint32_t>(127 + 24 - E::kBias - E::kMantissaBits)
                                  << 23;
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i magnitude = _mm512_min_epu32(
      _mm512_and_si512(bits, _mm512_set1_epi32(kMagnitudeMask)), _mm512_set1_epi32(E::kMaxBits));
  const __m512i magic = _mm512_set1_epi32(kMagicBits);
  const __m512i subnormal =
      _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude),
                                                         _mm512_castsi512_ps(magic))),
                       magic);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, kShift), _mm512_set1_epi32(1));
  const __m512i rounding = _mm512_set1_epi32((1u << (kShift - 1)) - 1 - kRebias);
  __m512i code =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(magnitude, rounding), odd), kShift);
  const __mmask16 is_subnormal =
      _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(E::kMinNormalBits));
  code = _mm512_mask_mov_epi32(code, is_subnormal, subnormal);
  // (bits >> 24 & 0x80) | code
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80), code,
                                   0xEA);
}

// 16 values to fp32.
template <InputType kInput>
inline __m512 load_lanes(const char* source) {
  if constexpr (kInput == InputType::kFp32) return _mm512_loadu_ps(source);
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  if constexpr (kInput == InputType::kFp16) return _mm512_maskz_cvtph_ps(0xFFFF, half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline __m512i max_pairs_epi16(__m512i a, __m512i b) {
  return _mm512_max_epu16(_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
}

template <class Maximum>
inline __m512i max_pairs_epi32(__m512i a, __m512i b, Maximum maximum) {
  return maximum(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

template <class Maximum>
inline __m512i max_pairs_epi64(__m512i a, __m512i b, Maximum maximum) {
  return maximum(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// Maxima of neighbouring 128-bit lanes: two of a, then two of b.
template <class Maximum>
inline __m512i max_lanes(__m512i a, __m512i b, Maximum maximum) {
  return maximum(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xDD));
}

// The fp32 bits of the largest magnitudes of 16 blocks. At every step two vectors become one that
// holds half as many candidates of twice as many blocks.
template <InputType kInput>
inline __m512i maxima(const char* source) {
  if constexpr (kInput == InputType::kFp32) {
    const __m512i mask = _mm512_set1_epi32(kMagnitudeMask);
    const auto maximum = [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); };
    __m512i v[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      const __m512i a = _mm512_and_si512(_mm512_loadu_si512(source + i * 128), mask);
      const __m512i b = _mm512_and_si512(_mm512_loadu_si512(source + i * 128 + 64), mask);
      v[i] = maximum(a, b);
    }
    for (int i = 0; i < 8; ++i) v[i] = max_pairs_epi32(v[2 * i], v[2 * i + 1], maximum);
    for (int i = 0; i < 4; ++i) v[i] = max_pairs_epi64(v[2 * i], v[2 * i + 1], maximum);
    for (int i = 0; i < 2; ++i) v[i] = max_lanes(v[2 * i], v[2 * i + 1], maximum);
    return max_lanes(v[0], v[1], maximum);
  }
  const __m512i mask = _mm512_set1_epi16(0x7FFF);
  const auto maximum = [](__m512i a, __m512i b) { return _mm512_max_epu16(a, b); };
  __m512i v[kGroup];
  for (int i = 0; i < kGroup; ++i) {
    v[i] = _mm512_and_si512(_mm512_loadu_si512(source + i * 64), mask);
  }
  for (int i = 0; i < 8; ++i) v[i] = max_pairs_epi16(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 4; ++i) v[i] = max_pairs_epi32(v[2 * i], v[2 * i + 1], maximum);
  for (int i = 0; i < 2; ++i) v[i] = max_pairs_epi64(v[2 * i], v[2 * i + 1], maximum);
  const __m512i two = max_lanes(v[0], v[1], maximum);  // 8 blocks twice, the other 8 twice
  const __m512i one = max_lanes(two, two, maximum);    // all 16, in the first two lanes
  alignas(32) uint16_t amax[kGroup];
  _mm256_store_si256(reinterpret_cast<__m256i*>(amax), _mm512_castsi512_si256(one));
  return _mm512_castps_si512(load_lanes<kInput>(reinterpret_cast<const char*>(amax)));
}

inline void store_codes(uint8_t* data, __m256i codes, bool stream) {
  __m256i* to = reinterpret_cast<__m256i*>(data);
  if (stream) {
    _mm256_stream_si256(to, codes);
  } else {
    _mm256_storeu_si256(to, codes);
  }
}

template <InputType kInput, ElementType kElement>
void quantize_groups(const void* input, int64_t blocks, ScalingMode mode, uint8_t* data,
                     uint8_t* scale, bool stream) {
  constexpr int kHalf = input_size(kInput) * kBlockSize / 2;
  const char* source = static_cast<const char*>(input);
  const ScaleRule<kElement> rule(mode);
  stream = stream && reinterpret_cast<uintptr_t>(data) % 32 == 0;
  for (; blocks >= kGroup; blocks -= kGroup) {
    __mmask16 nan;
    const __m512i bytes = rule.bytes(maxima<kInput>(source), &nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(scale), _mm512_cvtepi32_epi8(bytes));
    alignas(64) float inverse[kGroup];
    _mm512_store_ps(inverse, inverse_scales(bytes));
    for (int i = 0; i < kGroup; ++i) {
      const __m512 factor = _mm512_set1_ps(inverse[i]);
      const __m512i low =
          encode_lanes<kElement>(_mm512_mul_ps(load_lanes<kInput>(source + 2 * i * kHalf), factor));
      const __m512i high = encode_lanes<kElement>(
          _mm512_mul_ps(load_lanes<kInput>(source + (2 * i + 1) * kHalf), factor));
      __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(low)),
                                              _mm512_cvtepi32_epi8(high), 1);
      if (nan >> i & 1) codes = _mm256_set1_epi8(kNanCode);
      store_codes(data + i * kBlockSize, codes, stream);
    }
    source += 2 * kGroup * kHalf;
    data += kGroup * kBlockSize;
    scale += kGroup;
  }
  if (blocks > 0) {
    // The rest as a group of its own, zeros behind it.
    alignas(64) char padded[kGroup * 2 * kHalf] = {};
    alignas(64) uint8_t codes[kGroup * kBlockSize];
    uint8_t bytes[kGroup];
    std::memcpy(padded, source, blocks * 2 * kHalf);
    quantize_groups<kInput, kElement>(padded, kGroup, mode, codes, bytes, false);
    std::memcpy(data, codes, blocks * kBlockSize);
    std::memcpy(scale, bytes, blocks);
  }
}

template <InputType kInput, ElementType kElement>
void quantize_tile_lanes(const void* input, int blocks, ScalingMode mode, uint8_t* data,
                         uint8_t* scale) {
  constexpr int kVectors = kTile / 16;
  constexpr int kStep = 16 * input_size(kInput);
  const char* source = static_cast<const char*>(input);
  constexpr int kPitch = kTile * input_size(kInput);
  const ScaleRule<kElement> rule(mode);
  for (int block = 0; block < blocks; ++block, source += kBlockSize * kPitch) {
    alignas(64) uint8_t codes[kBlockSize * kTile];
    for (int i = 0; i < kVectors; ++i) {
      const char* column = source + i * kStep;
      __m512i amax = _mm512_setzero_si512();
      for (int row = 0; row < kBlockSize; ++row) {
        const __m512i bits = _mm512_castps_si512(load_lanes<kInput>(column + row * kPitch));
        amax = _mm512_max_epu32(amax, _mm512_and_si512(bits, _mm512_set1_epi32(kMagnitudeMask)));
      }
      __mmask16 nan;
      const __m512i bytes = rule.bytes(amax, &nan);
      alignas(16) uint8_t byte[16];
      _mm_store_si128(reinterpret_cast<__m128i*>(byte), _mm512_cvtepi32_epi8(bytes));
      for (int j = 0; j < 16; ++j) scale[(i * 16 + j) * kTileBlocks + block] = byte[j];
      const __m512 inverse = inverse_scales(bytes);
      for (int row = 0; row < kBlockSize; ++row) {
        const __m512 value = _mm512_mul_ps(load_lanes<kInput>(column + row * kPitch), inverse);
        const __m512i code =
            _mm512_mask_mov_epi32(encode_lanes<kElement>(value), nan, _mm512_set1_epi32(kNanCode));
        _mm_store_si128(reinterpret_cast<__m128i*>(codes + row * kTile + i * 16),
                        _mm512_cvtepi32_epi8(code));
      }
    }
    transpose_codes(codes, data + block * kBlockSize);
  }
}

// 32 codes as fp16: e5m2 is the upper half of one; e4m3 is one of 2^-8 times the value.
template <ElementType kElement>
inline __m512i codes_to_fp16(const uint8_t* data) {
  const __m512i words =
      _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
  if constexpr (kElement == ElementType::kE5m2) return _mm512_slli_epi16(words, 8);
  const __m512i half =
      _mm512_and_si512(_mm512_slli_epi16(words, 7), _mm512_set1_epi16(0xBFFF - 0x10000));
  const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(half, _mm512_set1_epi16(0x7FFF)),
                                                _mm512_set1_epi16(kNanCode << 7));
  return _mm512_mask_mov_epi16(half, nan, _mm512_set1_epi16(0x7FFF));
}

template <InputType kOutput>
inline void store_lanes(char* to, __m512 value, bool stream) {
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i bits =
      _mm512_mask_mov_epi32(_mm512_castps_si512(value), nan, _mm512_set1_epi32(0x7FC00000));
  if constexpr (kOutput == InputType::kFp32) {
    if (stream) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bits);
    } else {
      _mm512_storeu_si512(to, bits);
    }
    return;
  }
  __m256i half;
  if constexpr (kOutput == InputType::kFp16) {
    half = _mm512_cvtps_ph(_mm512_castsi512_ps(bits), _MM_FROUND_TO_NEAREST_INT);
  } else {
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  store_codes(reinterpret_cast<uint8_t*>(to), half, stream);
}

template <ElementType kElement, InputType kOutput>
void dequantize_lanes(const uint8_t* data, const uint8_t* scale, int64_t blocks, void* output,
                      bool stream) {
  constexpr int kHalf = input_size(kOutput) * kBlockSize / 2;
  char* to = static_cast<char*>(output);
  stream = stream && reinterpret_cast<uintptr_t>(output) % 64 == 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const __m512 factor = _mm512_set1_ps(scale_value(scale[block]));
    const __m512i half = codes_to_fp16<kElement>(data + block * kBlockSize);
    __m512 low = _mm512_maskz_cvtph_ps(0xFFFF, _mm512_castsi512_si256(half));
    __m512 high = _mm512_maskz_cvtph_ps(0xFFFF, _mm512_extracti64x4_epi64(half, 1));
    if constexpr (kElement == ElementType::kE4m3) {
      low = _mm512_mul_ps(low, _mm512_set1_ps(256));
      high = _mm512_mul_ps(high, _mm512_set1_ps(256));
    }
    store_lanes<kOutput>(to, _mm512_mul_ps(low, factor), stream);
    store_lanes<kOutput>(to + kHalf, _mm512_mul_ps(high, factor), stream);
    to += 2 * kHalf;
  }
}

}  // namespace

const Kernels& kernels_avx512() {
  static constexpr Kernels kTable{
      "avx512",
      {{quantize_groups<kB, k4>, quantize_groups<kB, k5>},
       {quantize_groups<kH, k4>, quantize_groups<kH, k5>},
       {quantize_groups<kF, k4>, quantize_groups<kF, k5>}},
      {{quantize_tile_lanes<kB, k4>, quantize_tile_lanes<kB, k5>},
       {quantize_tile_lanes<kH, k4>, quantize_tile_lanes<kH, k5>},
       {quantize_tile_lanes<kF, k4>, quantize_tile_lanes<kF, k5>}},
      {{dequantize_lanes<k4, kB>, dequantize_lanes<k4, kH>, dequantize_lanes<k4, kF>},
       {dequantize_lanes<k5, kB>, dequantize_lanes<k5, kH>, dequantize_lanes<k5, kF>}}};
  return kTable;
}

}  // namespace mxfp8::cpu
