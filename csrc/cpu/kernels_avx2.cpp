// AVX2 kernels: fp32 lanes up to the rounding, which leaves numbers that fp16 holds exactly; the
// conversion to it (F16C) then aligns exponent and subnormals with the codes, which are the high
// bits of the fp16 pattern. About 65 instructions for a block of 32.
#include "block_kernels.h"
#include "dequantize_avx2.h"

namespace mxfp8::cpu {
namespace {

// An e4m3 code is the upper part of the fp16 pattern of 2^-8 times its value, e5m2 of its value.
template <ElementType kElement>
struct HalfForm {
  static constexpr bool kIsE4m3 = kElement == ElementType::kE4m3;
  static constexpr int kDroppedBits = kIsE4m3 ? 7 : 8;
  static constexpr float kScale = kIsE4m3 ? 0x1p-8f : 1.0f;
  static constexpr float kMax = kIsE4m3 ? 1.75f : 57344.0f;
  // Adding 2^(e + this) rounds a number of exponent e to the mantissa bits of the element.
  static constexpr int kMagicExponent = 23 - Element<kElement>::kMantissaBits;
};

// 16 values: magnitudes in fp32, and a vector of 16-bit lanes whose top bits are the signs.
struct Lanes {
  __m256 low, high;
  __m256i signs;
};

inline __m256i load(const char* source) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
}

inline __m256i swap_middle_quarters(__m256i v) { return _mm256_permute4x64_epi64(v, 0xD8); }

template <InputType kInput>
inline Lanes load_lanes(const char* source) {
  if constexpr (kInput == InputType::kFp32) {
    const __m256i mask = _mm256_set1_epi32(kMagnitudeMask);
    const __m256i a = load(source), b = load(source + 32);
    return {_mm256_castsi256_ps(_mm256_and_si256(a, mask)),
            _mm256_castsi256_ps(_mm256_and_si256(b, mask)),
            swap_middle_quarters(_mm256_packs_epi32(a, b))};
  } else {
    const __m256i bits = load(source);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7FFF));
    if constexpr (kInput == InputType::kFp16) {
      return {_mm256_cvtph_ps(_mm256_castsi256_si128(magnitude)),
              _mm256_cvtph_ps(_mm256_extracti128_si256(magnitude, 1)), bits};
    }
    const __m256i halves = swap_middle_quarters(magnitude), zero = _mm256_setzero_si256();
    return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, halves)),
            _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, halves)), bits};
  }
}

// min(magnitude * factor, max) to the nearest number of the element format, ties to even.
template <ElementType kElement>
inline __m128i round_lanes(__m256 magnitude, __m256 factor) {
  using H = HalfForm<kElement>;
  const __m256 value = _mm256_min_ps(_mm256_mul_ps(magnitude, factor), _mm256_set1_ps(H::kMax));
  const __m256 power = _mm256_and_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(kInfinityBits)));
  // Below 2^-14, the smallest normal number of both forms, the step is that of 2^-14.
  const __m256i exponent = _mm256_castps_si256(_mm256_max_ps(power, _mm256_set1_ps(0x1p-14f)));
  const __m256 magic =
      _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(H::kMagicExponent << 23)));
  return _mm256_cvtps_ph(_mm256_sub_ps(_mm256_add_ps(value, magic), magic),
                         _MM_FROUND_TO_NEAREST_INT);
}

// Codes without signs in 16-bit lanes.
template <ElementType kElement>
inline __m256i encode_lanes(const Lanes& lanes, __m256 factor_low, __m256 factor_high) {
  const __m128i low = round_lanes<kElement>(lanes.low, factor_low);
  const __m128i high = round_lanes<kElement>(lanes.high, factor_high);
  return _mm256_srli_epi16(_mm256_set_m128i(high, low), HalfForm<kElement>::kDroppedBits);
}

inline uint32_t largest_epu16(__m256i v) {
  const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
  return 0xFFFF & ~static_cast<uint32_t>(_mm_cvtsi128_si32(least));
}

inline uint32_t largest_epu32(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// fp32 bits of the largest magnitude of a block.
template <InputType kInput>
inline uint32_t block_amax(const char* source) {
  if constexpr (kInput == InputType::kFp32) {
    const __m256i mask = _mm256_set1_epi32(kMagnitudeMask);
    __m256i amax = _mm256_and_si256(load(source), mask);
    for (int i = 1; i < 4; ++i) {
      amax = _mm256_max_epu32(amax, _mm256_and_si256(load(source + 32 * i), mask));
    }
    return largest_epu32(amax);
  }
  const __m256i mask = _mm256_set1_epi16(0x7FFF);
  const uint32_t amax = largest_epu16(_mm256_max_epu16(_mm256_and_si256(load(source), mask),
                                                       _mm256_and_si256(load(source + 32), mask)));
  return kInput == InputType::kBf16 ? amax << 16 : float_bits(_cvtsh_ss(amax));
}

template <InputType kInput, ElementType kElement>
void quantize_rows(const void* input, int64_t blocks, ScalingMode mode, uint8_t* data,
                   uint8_t* scale, bool stream) {
  const char* source = static_cast<const char*>(input);
  stream = stream && reinterpret_cast<uintptr_t>(data) % 32 == 0;
  for (int64_t block = 0; block < blocks; ++block, source += input_size(kInput) * kBlockSize) {
    const uint32_t byte = scale_byte<kElement>(block_amax<kInput>(source), mode);
    scale[block] = static_cast<uint8_t>(byte);
    __m256i codes = _mm256_set1_epi8(kNanCode);
    if (byte != kE8m0Nan) {
      const __m256 factor = _mm256_set1_ps(inverse_scale(byte) * HalfForm<kElement>::kScale);
      const Lanes a = load_lanes<kInput>(source);
      const Lanes b = load_lanes<kInput>(source + 16 * input_size(kInput));
      // Saturation keeps the signs where they are.
      const __m256i signs =
          _mm256_and_si256(_mm256_packs_epi16(a.signs, b.signs), _mm256_set1_epi8(-128));
      codes = swap_middle_quarters(
          _mm256_or_si256(_mm256_packus_epi16(encode_lanes<kElement>(a, factor, factor),
                                              encode_lanes<kElement>(b, factor, factor)),
                          signs));
    }
    __m256i* to = reinterpret_cast<__m256i*>(data + block * kBlockSize);
    if (stream) {
      _mm256_stream_si256(to, codes);
    } else {
      _mm256_storeu_si256(to, codes);
    }
  }
}

// scale_byte() of 8 blocks, its mode turned into numbers. Signed comparisons do: signs are clear.
template <ElementType kElement>
struct ScaleRule {
  explicit ScaleRule(ScalingMode mode) {
    const uint32_t carry = mode == ScalingMode::kRceil  ? 0x1FFFFF
                           : mode == ScalingMode::kCeil ? 0x7FFFFF
                           : mode == ScalingMode::kEven
                               ? 1u << (22 - Element<kElement>::kMantissaBits)
                               : 0;
    const uint32_t rounds_down = static_cast<uint32_t>(Element<kElement>::kEmax) << 23 | 0x600001;
    add = _mm256_set1_epi32(carry);
    finite = _mm256_set1_epi32(kInfinityBits - 1 - (mode == ScalingMode::kEven ? carry : 0));
    zero = _mm256_set1_epi32(mode == ScalingMode::kRceil ? rounds_down : 0);
  }

  __m256i bytes(__m256i amax) const {
    const __m256i emax = _mm256_set1_epi32(Element<kElement>::kEmax);
    const __m256i exponent = _mm256_srli_epi32(_mm256_add_epi32(amax, add), 23);
    __m256i byte = _mm256_sub_epi32(_mm256_max_epi32(exponent, emax), emax);
    byte = _mm256_andnot_si256(_mm256_cmpeq_epi32(amax, zero), byte);
    const __m256i nan = _mm256_srli_epi32(_mm256_cmpgt_epi32(amax, finite), 24);
    return _mm256_or_si256(byte, nan);
  }

  __m256i add, finite, zero;
};

template <ElementType kElement>
inline __m256 factors(__m256i byte) {
  const __m256i bits = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), byte), 23);
  return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(HalfForm<kElement>::kScale));
}

// fp32 bits of the largest magnitudes of 16 columns over 32 rows.
template <InputType kInput>
inline void column_amax(const char* source, __m256i* low, __m256i* high) {
  constexpr int kPitch = kTile * input_size(kInput);
  if constexpr (kInput == InputType::kFp32) {
    const __m256i mask = _mm256_set1_epi32(kMagnitudeMask);
    *low = *high = _mm256_setzero_si256();
    for (int row = 0; row < kBlockSize; ++row, source += kPitch) {
      *low = _mm256_max_epu32(*low, _mm256_and_si256(load(source), mask));
      *high = _mm256_max_epu32(*high, _mm256_and_si256(load(source + 32), mask));
    }
  } else {
    __m256i amax = _mm256_setzero_si256();
    for (int row = 0; row < kBlockSize; ++row, source += kPitch) {
      amax = _mm256_max_epu16(amax, _mm256_and_si256(load(source), _mm256_set1_epi16(0x7FFF)));
    }
    alignas(32) char bits[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bits), amax);
    const Lanes lanes = load_lanes<kInput>(bits);
    *low = _mm256_castps_si256(lanes.low);
    *high = _mm256_castps_si256(lanes.high);
  }
}

// pairs[k] holds the codes of rows 2k and 2k + 1 of 16 columns; to[column * kTile] gets 32 codes.
inline void store_transposed(__m256i* pairs, uint8_t* to) {
  for (int half = 0; half < 16; half += 8) {
    __m256i* v = pairs + half;
    // Three rounds of interleaving i and i + 4 transpose 8 x 8 pairs in each 128-bit lane.
    for (int round = 0; round < 3; ++round) {
      __m256i w[8];
      for (int i = 0; i < 4; ++i) {
        w[2 * i] = _mm256_unpacklo_epi16(v[i], v[i + 4]);
        w[2 * i + 1] = _mm256_unpackhi_epi16(v[i], v[i + 4]);
      }
      for (int i = 0; i < 8; ++i) v[i] = w[i];
    }
  }
  for (int i = 0; i < 8; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * kTile),
                        _mm256_permute2x128_si256(pairs[i], pairs[i + 8], 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + (i + 8) * kTile),
                        _mm256_permute2x128_si256(pairs[i], pairs[i + 8], 0x31));
  }
}

template <InputType kInput, ElementType kElement>
void quantize_tile_lanes(const void* input, int blocks, ScalingMode mode, uint8_t* data,
                         uint8_t* scale) {
  constexpr int kPitch = kTile * input_size(kInput);
  const ScaleRule<kElement> rule(mode);
  const __m256i sign = _mm256_set1_epi16(-0x8000);
  for (int block = 0; block < blocks; ++block) {
    const char* rows = static_cast<const char*>(input) + block * kBlockSize * kPitch;
    for (int column = 0; column < kTile; column += 16) {
      const char* source = rows + column * input_size(kInput);
      uint8_t* to = data + column * kTile + block * kBlockSize;
      __m256i low, high;
      column_amax<kInput>(source, &low, &high);
      const __m256i byte_low = rule.bytes(low), byte_high = rule.bytes(high);
      const __m256 factor_low = factors<kElement>(byte_low);
      const __m256 factor_high = factors<kElement>(byte_high);
      __m256i pairs[16];
      for (int pair = 0; pair < 16; ++pair) {
        const Lanes a = load_lanes<kInput>(source + 2 * pair * kPitch);
        const Lanes b = load_lanes<kInput>(source + (2 * pair + 1) * kPitch);
        const __m256i first =
            _mm256_or_si256(encode_lanes<kElement>(a, factor_low, factor_high),
                            _mm256_srli_epi16(_mm256_and_si256(a.signs, sign), 8));
        const __m256i second = _mm256_or_si256(
            _mm256_slli_epi16(encode_lanes<kElement>(b, factor_low, factor_high), 8),
            _mm256_and_si256(b.signs, sign));
        pairs[pair] = _mm256_or_si256(first, second);
      }
      store_transposed(pairs, to);
      alignas(32) uint32_t bytes[16];
      _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), byte_low);
      _mm256_store_si256(reinterpret_cast<__m256i*>(bytes + 8), byte_high);
      for (int i = 0; i < 16; ++i) {
        scale[(column + i) * kTileBlocks + block] = static_cast<uint8_t>(bytes[i]);
        if (bytes[i] == kE8m0Nan) std::memset(to + i * kTile, kNanCode, kBlockSize);
      }
    }
  }
}

}  // namespace

const Kernels& kernels_avx2() {
  static constexpr Kernels kTable{
      "avx2",
      {{quantize_rows<kB, k4>, quantize_rows<kB, k5>},
       {quantize_rows<kH, k4>, quantize_rows<kH, k5>},
       {quantize_rows<kF, k4>, quantize_rows<kF, k5>}},
      {{quantize_tile_lanes<kB, k4>, quantize_tile_lanes<kB, k5>},
       {quantize_tile_lanes<kH, k4>, quantize_tile_lanes<kH, k5>},
       {quantize_tile_lanes<kF, k4>, quantize_tile_lanes<kF, k5>}},
      {{dequantize_lanes<k4, kB>, dequantize_lanes<k4, kH>, dequantize_lanes<k4, kF>},
       {dequantize_lanes<k5, kB>, dequantize_lanes<k5, kH>, dequantize_lanes<k5, kF>}}};
  return kTable;
}

}  // namespace mxfp8::cpu
