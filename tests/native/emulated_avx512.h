// The AVX-512 intrinsics that csrc/cpu uses, lane by lane, for processors that have AVX2 only:
// included before kernels_avx512.cpp, it lets the tests run that file anywhere. Written from
// Intel's description of each instruction.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated {

template <class T>
struct Lanes {
  static constexpr int kCount = 64 / sizeof(T);
  T lane[kCount];
};

template <class To, class From>
inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class T, class Function>
inline __m512i each(__m512i a, __m512i b, Function f) {
  const auto x = bits_as<Lanes<T>>(a), y = bits_as<Lanes<T>>(b);
  Lanes<T> z;
  for (int i = 0; i < z.kCount; ++i) z.lane[i] = static_cast<T>(f(x.lane[i], y.lane[i]));
  return bits_as<__m512i>(z);
}

template <class Function>
inline __m512 each_float(__m512 a, __m512 b, Function f) {
  const auto x = bits_as<Lanes<float>>(a), y = bits_as<Lanes<float>>(b);
  Lanes<float> z;
  for (int i = 0; i < 16; ++i) z.lane[i] = f(x.lane[i], y.lane[i]);
  return bits_as<__m512>(z);
}

template <class T, class Function>
inline uint64_t mask(__m512i a, __m512i b, Function f) {
  const auto x = bits_as<Lanes<T>>(a), y = bits_as<Lanes<T>>(b);
  uint64_t result = 0;
  for (int i = 0; i < x.kCount; ++i) result |= uint64_t{f(x.lane[i], y.lane[i])} << i;
  return result;
}

template <class T>
inline __m512i select(__m512i otherwise, uint64_t chosen, __m512i value) {
  auto x = bits_as<Lanes<T>>(otherwise);
  const auto y = bits_as<Lanes<T>>(value);
  for (int i = 0; i < x.kCount; ++i) x.lane[i] = chosen >> i & 1 ? y.lane[i] : x.lane[i];
  return bits_as<__m512i>(x);
}

template <class T>
inline __m512i set1(T value) {
  Lanes<T> z;
  for (T& lane : z.lane) lane = value;
  return bits_as<__m512i>(z);
}

// Lanes of each 128-bit quarter, from its lower (first = 0) or upper half, of a and b in turns.
template <class T>
inline __m512i unpack(__m512i a, __m512i b, bool upper) {
  constexpr int kQuarter = 16 / sizeof(T);
  const auto x = bits_as<Lanes<T>>(a), y = bits_as<Lanes<T>>(b);
  Lanes<T> z;
  for (int i = 0; i < z.kCount; ++i) {
    const int from = i / kQuarter * kQuarter + i % kQuarter / 2 + (upper ? kQuarter / 2 : 0);
    z.lane[i] = i % 2 == 0 ? x.lane[from] : y.lane[from];
  }
  return bits_as<__m512i>(z);
}

template <class To, class From, class Result, class Source>
inline Result convert(const Source& source) {
  constexpr int kCount = sizeof(Source) / sizeof(From);
  static_assert(kCount == sizeof(Result) / sizeof(To));
  From from[kCount];
  To to[kCount];
  std::memcpy(from, &source, sizeof(from));
  for (int i = 0; i < kCount; ++i) to[i] = static_cast<To>(from[i]);
  return bits_as<Result>(to);
}

template <class T>
inline T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <class T>
inline void store(void* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

struct Halves {
  __m256i low, high;
};

inline __m512i shuffle_quarters(__m512i a, __m512i b, int order) {
  const auto x = bits_as<Lanes<uint64_t>>(a), y = bits_as<Lanes<uint64_t>>(b);
  Lanes<uint64_t> z;
  for (int i = 0; i < 8; ++i) {
    const int from = 2 * (order >> (i / 2 * 2) & 3) + i % 2;
    z.lane[i] = i < 4 ? x.lane[from] : y.lane[from];
  }
  return bits_as<__m512i>(z);
}

inline __m512i ternary(__m512i a, __m512i b, __m512i c, int table) {
  const auto x = bits_as<Lanes<uint64_t>>(a), y = bits_as<Lanes<uint64_t>>(b),
             w = bits_as<Lanes<uint64_t>>(c);
  Lanes<uint64_t> z = {};
  for (int i = 0; i < 512; ++i) {
    const int lane = i / 64, bit = i % 64;
    const int index =
        (x.lane[lane] >> bit & 1) << 2 | (y.lane[lane] >> bit & 1) << 1 | (w.lane[lane] >> bit & 1);
    z.lane[lane] |= uint64_t{static_cast<unsigned>(table) >> index & 1} << bit;
  }
  return bits_as<__m512i>(z);
}

inline __m512 half_to_float(uint16_t chosen, __m256i half) {
  const __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
                           _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
  const __m512i zero = set1<uint32_t>(0);
  return bits_as<__m512>(select<uint32_t>(zero, chosen, bits_as<__m512i>(parts)));
}

inline __m256i float_to_half(__m512 value) {
  __m256 parts[2];
  std::memcpy(parts, &value, sizeof(parts));
  return _mm256_set_m128i(_mm256_cvtps_ph(parts[1], 0), _mm256_cvtps_ph(parts[0], 0));
}

constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kSubtract = [](auto a, auto b) { return a - b; };
constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kMax = [](auto a, auto b) { return a > b ? a : b; };
constexpr auto kMin = [](auto a, auto b) { return a < b ? a : b; };
constexpr auto kEqual = [](auto a, auto b) { return a == b; };
constexpr auto kLess = [](auto a, auto b) { return a < b; };
constexpr auto kGreaterEqual = [](auto a, auto b) { return a >= b; };

}  // namespace emulated

// clang-format off
#undef _mm512_cmp_ps_mask
#undef _mm512_cvtps_ph
#undef _mm512_extracti64x4_epi64
#undef _mm512_shuffle_i64x2
#undef _mm512_slli_epi16
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_ternarylogic_epi32
#define _mm512_add_epi32(a, b) emulated::each<uint32_t>(a, b, emulated::kAdd)
#define _mm512_sub_epi32(a, b) emulated::each<uint32_t>(a, b, emulated::kSubtract)
#define _mm512_and_si512(a, b) emulated::each<uint64_t>(a, b, emulated::kAnd)
#define _mm512_max_epi32(a, b) emulated::each<int32_t>(a, b, emulated::kMax)
#define _mm512_max_epu32(a, b) emulated::each<uint32_t>(a, b, emulated::kMax)
#define _mm512_max_epu16(a, b) emulated::each<uint16_t>(a, b, emulated::kMax)
#define _mm512_min_epu32(a, b) emulated::each<uint32_t>(a, b, emulated::kMin)
#define _mm512_slli_epi16(a, n) emulated::each<uint16_t>(a, a, [](auto x, auto) { return x << (n); })
#define _mm512_slli_epi32(a, n) emulated::each<uint32_t>(a, a, [](auto x, auto) { return x << (n); })
#define _mm512_srli_epi32(a, n) emulated::each<uint32_t>(a, a, [](auto x, auto) { return x >> (n); })
#define _mm512_add_ps(a, b) emulated::each_float(a, b, emulated::kAdd)
#define _mm512_mul_ps(a, b) emulated::each_float(a, b, [](float x, float y) { return x * y; })
#define _mm512_cmpeq_epi16_mask(a, b) emulated::mask<uint16_t>(a, b, emulated::kEqual)
#define _mm512_cmpeq_epi32_mask(a, b) emulated::mask<uint32_t>(a, b, emulated::kEqual)
#define _mm512_cmplt_epu32_mask(a, b) emulated::mask<uint32_t>(a, b, emulated::kLess)
#define _mm512_cmpge_epu32_mask(a, b) emulated::mask<uint32_t>(a, b, emulated::kGreaterEqual)
// Only used to find NaN.
#define _mm512_cmp_ps_mask(a, b, unordered) \
  emulated::mask<float>(_mm512_castps_si512(a), _mm512_castps_si512(b), \
                        [](float x, float y) { return x != x || y != y; })
#define _mm512_mask_mov_epi16(a, m, b) emulated::select<uint16_t>(a, m, b)
#define _mm512_mask_mov_epi32(a, m, b) emulated::select<uint32_t>(a, m, b)
#define _mm512_set1_epi16(x) emulated::set1<int16_t>(x)
#define _mm512_set1_epi32(x) emulated::set1<uint32_t>(x)
#define _mm512_set1_ps(x) emulated::bits_as<__m512>(emulated::set1<float>(x))
#define _mm512_setzero_si512() emulated::set1<uint32_t>(0)
#define _mm512_castps_si512(a) emulated::bits_as<__m512i>(a)
#define _mm512_castsi512_ps(a) emulated::bits_as<__m512>(a)
#define _mm512_castsi512_si256(a) emulated::bits_as<emulated::Halves>(a).low
#define _mm512_extracti64x4_epi64(a, half) emulated::bits_as<emulated::Halves>(a).high
#define _mm512_unpacklo_epi16(a, b) emulated::unpack<uint16_t>(a, b, false)
#define _mm512_unpackhi_epi16(a, b) emulated::unpack<uint16_t>(a, b, true)
#define _mm512_unpacklo_epi32(a, b) emulated::unpack<uint32_t>(a, b, false)
#define _mm512_unpackhi_epi32(a, b) emulated::unpack<uint32_t>(a, b, true)
#define _mm512_unpacklo_epi64(a, b) emulated::unpack<uint64_t>(a, b, false)
#define _mm512_unpackhi_epi64(a, b) emulated::unpack<uint64_t>(a, b, true)
#define _mm512_shuffle_i64x2(a, b, order) emulated::shuffle_quarters(a, b, order)
#define _mm512_ternarylogic_epi32(a, b, c, table) emulated::ternary(a, b, c, table)
#define _mm512_cvtepi32_epi8(a) emulated::convert<uint8_t, uint32_t, __m128i>(a)
#define _mm512_cvtepi32_epi16(a) emulated::convert<uint16_t, uint32_t, __m256i>(a)
#define _mm512_cvtepi8_epi16(a) emulated::convert<int16_t, int8_t, __m512i>(a)
#define _mm512_cvtepu16_epi32(a) emulated::convert<uint32_t, uint16_t, __m512i>(a)
#define _mm512_maskz_cvtph_ps(m, a) emulated::half_to_float(m, a)
#define _mm512_cvtps_ph(a, rounding) emulated::float_to_half(a)
#define _mm512_loadu_ps(p) emulated::load<__m512>(p)
#define _mm512_loadu_si512(p) emulated::load<__m512i>(p)
#define _mm512_store_ps(p, a) emulated::store(p, a)
#define _mm512_storeu_ps(p, a) emulated::store(p, a)
#define _mm512_storeu_si512(p, a) emulated::store(p, a)
#define _mm512_stream_si512(p, a) emulated::store(p, a)
// clang-format on
