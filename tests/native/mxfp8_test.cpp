// csrc/mxfp8.h against the sentences of docs/numerics.md in double arithmetic, where every value
// and every product is exact. Every 16-bit amax, scale byte and code; fp32 where its rules turn.
#include "mxfp8.h"

#include <initializer_list>

#include "check.h"

namespace {

using namespace mxfp8;

struct Format {
  int emax, mantissa_bits, min_exponent, largest_code;
  double max;
};
template <ElementType kType>
constexpr Format kFormat =
    kType == ElementType::kE4m3 ? Format{8, 3, -6, 0x7E, 448.0} : Format{15, 2, -14, 0x7B, 57344.0};

double value_of(uint32_t fp32_bits) { return bits_float(fp32_bits); }

// A binary number of one sign bit, `exponent_bits` and `mantissa_bits`; infinities and NaN
// excluded.
double value_of_code(uint32_t code, int mantissa_bits, int min_exponent) {
  const int exponent = static_cast<int>(code >> mantissa_bits);
  const int mantissa = static_cast<int>(code & ((1u << mantissa_bits) - 1));
  if (exponent == 0) return std::ldexp(mantissa, min_exponent - mantissa_bits);
  return std::ldexp(mantissa + (1 << mantissa_bits), min_exponent + exponent - 1 - mantissa_bits);
}

// Biased exponent field of an fp32 number >= 0.
int field_of(double value) { return value < std::ldexp(1.0, -126) ? 0 : std::ilogb(value) + 127; }

int expected_scale_byte(double amax, ScalingMode mode, const Format& format) {
  if (!std::isfinite(amax)) return 255;
  const int field = field_of(amax);
  const double power = field == 0 ? 0.0 : std::ldexp(1.0, field - 127);
  int byte = field - format.emax;
  if (mode == ScalingMode::kRceil) {
    // The product of two fp32 numbers is exact in double; one rounding to fp32 follows.
    const float quotient =
        static_cast<float>(amax * static_cast<double>(static_cast<float>(1.0 / format.max)));
    if (quotient == 0) return 0;
    byte = field_of(quotient);
    if (std::ldexp(1.0, byte - 127) < quotient) ++byte;
  } else if (mode == ScalingMode::kCeil) {
    byte += amax != power;
  } else if (mode == ScalingMode::kEven) {
    // Rounded to the element's mantissa bits, amax reaches the next power of two.
    const double limit = 2.0 - std::ldexp(1.0, -format.mantissa_bits - 1);
    if (field > 0 && amax >= power * limit) ++byte;
    if (byte + format.emax == 255) return 255;
  }
  return byte < 0 ? 0 : byte > 254 ? 254 : byte;
}

// Nearest of the finite codes, ties to the even one, sign kept.
template <ElementType kType>
int expected_code(double value) {
  constexpr Format kF = kFormat<kType>;
  const double magnitude = std::fmin(std::fabs(value), kF.max);
  int low = 0, high = kF.largest_code;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value_of_code(middle, kF.mantissa_bits, kF.min_exponent) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of_code(low, kF.mantissa_bits, kF.min_exponent);
  const double above = value_of_code(high, kF.mantissa_bits, kF.min_exponent) - magnitude;
  const int code = below < above ? low : above < below ? high : low % 2 == 0 ? low : high;
  return code | (std::signbit(value) ? 0x80 : 0);
}

// Nearest fp32 number's 16-bit form, ties to even, overflow to infinity.
int expected_half(double value, int mantissa_bits, int min_exponent, int infinity) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return infinity | (1 << (mantissa_bits - 1));
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | infinity;
  int exponent = magnitude == 0 ? min_exponent : std::ilogb(magnitude);
  if (exponent < min_exponent) exponent = min_exponent;
  // std::nearbyint rounds to even; a carry out of the mantissa moves into the exponent field.
  const int steps =
      static_cast<int>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  const int code = steps + ((exponent - min_exponent) << mantissa_bits);
  return sign | (code > infinity ? infinity : code);
}

template <ElementType kType>
void check_scale_byte(uint32_t amax_bits) {
  for (const auto mode :
       {ScalingMode::kRceil, ScalingMode::kFloor, ScalingMode::kCeil, ScalingMode::kEven}) {
    expect("scale_byte", amax_bits, scale_byte<kType>(amax_bits, mode),
           expected_scale_byte(value_of(amax_bits), mode, kFormat<kType>));
  }
}

template <ElementType kType>
void test_scale_bytes() {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    check_scale_byte<kType>(bf16_to_fp32_bits(pattern) & kMagnitudeMask);
    check_scale_byte<kType>(fp16_to_fp32_bits(pattern) & kMagnitudeMask);
  }
  // Every exponent: both sides of the mantissas at which some rule turns, and a sweep between.
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const uint32_t turn : {0u, 0x400000u, 0x600000u, 0x700000u, 0x780000u, 0x7FFFFFu}) {
      for (int step = -3; step <= 3; ++step) {
        const int64_t bits = (int64_t{exponent} << 23) + turn + step;
        if (bits >= 0 && bits < 0x80000000) check_scale_byte<kType>(static_cast<uint32_t>(bits));
      }
    }
    for (uint32_t mantissa = 0; mantissa < 0x800000; mantissa += 4099) {
      check_scale_byte<kType>(exponent << 23 | mantissa);
    }
  }
  // Every mantissa where the product with fp32(1 / max) is 2^-127 or near it.
  for (uint32_t mantissa = 0; mantissa < 0x800000; mantissa += 1) {
    const uint32_t bits = static_cast<uint32_t>(kFormat<kType>.emax) << 23 | mantissa;
    expect("scale_byte", bits, scale_byte<kType>(bits, ScalingMode::kRceil),
           expected_scale_byte(value_of(bits), ScalingMode::kRceil, kFormat<kType>));
  }
}

void test_scale_values() {
  for (uint32_t byte = 0; byte < 255; ++byte) {
    expect("scale_value", byte, float_bits(scale_value(byte)),
           float_bits(static_cast<float>(std::ldexp(1.0, static_cast<int>(byte) - 127))));
    if (byte > 247) continue;  // scale_byte() has no such result
    expect("inverse_scale", byte, float_bits(inverse_scale(byte)),
           float_bits(static_cast<float>(std::ldexp(1.0, 127 - static_cast<int>(byte)))));
  }
  expect("scale_value", 255, float_bits(scale_value(255)), 0x7FC00000);
}

template <ElementType kType>
void check_encode(uint32_t bits) {
  if ((bits & kMagnitudeMask) > kInfinityBits) return;
  expect("encode", bits, encode<kType>(bits_float(bits)), expected_code<kType>(value_of(bits)));
}

template <ElementType kType>
void test_codes() {
  constexpr Format kF = kFormat<kType>;
  for (uint32_t code = 0; code < 256; ++code) {
    const uint32_t magnitude = code & 0x7F;
    const uint32_t sign = (code & 0x80) << 24;
    uint32_t expected = 0x7FC00000;
    if (static_cast<int>(magnitude) <= kF.largest_code) {
      const double value = value_of_code(magnitude, kF.mantissa_bits, kF.min_exponent);
      expected = sign | float_bits(static_cast<float>(value));
      expect("encode(decode_bits)", code, encode<kType>(bits_float(expected)), code);
    } else if (kType == ElementType::kE5m2 && magnitude == 0x7C) {
      expected = sign | kInfinityBits;
    }
    expect("decode_bits", code, decode_bits<kType>(code), expected);
  }
  // Ties between neighbouring codes and their fp32 neighbours, both signs.
  for (int code = 0; code < kF.largest_code; ++code) {
    const double tie = (value_of_code(code, kF.mantissa_bits, kF.min_exponent) +
                        value_of_code(code + 1, kF.mantissa_bits, kF.min_exponent)) /
                       2;
    const uint32_t bits = float_bits(static_cast<float>(tie));
    for (uint32_t near = bits - 2; near <= bits + 2; ++near) {
      check_encode<kType>(near);
      check_encode<kType>(near | 0x80000000);
    }
  }
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    check_encode<kType>(bf16_to_fp32_bits(pattern));
    check_encode<kType>(fp16_to_fp32_bits(pattern));
  }
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 65521) {
    check_encode<kType>(static_cast<uint32_t>(bits));
  }
}

void test_16_bit_types() {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const uint32_t sign = (pattern & 0x8000) << 16;
    const uint32_t magnitude = pattern & 0x7FFF;
    uint32_t expected = sign | kInfinityBits | (magnitude & 0x3FF) << 13;
    if (magnitude < 0x7C00) {
      expected = sign | float_bits(static_cast<float>(value_of_code(magnitude, 10, -14)));
    }
    expect("fp16_to_fp32_bits", pattern, fp16_to_fp32_bits(pattern), expected);
    expect("bf16_to_fp32_bits", pattern, bf16_to_fp32_bits(pattern), int64_t{pattern} << 16);
    // Each number, the tie above it and the neighbours of both.
    for (const uint32_t centre : {expected, bf16_to_fp32_bits(pattern)}) {
      for (const uint32_t half : {0u, 0x1000u, 0x8000u}) {
        for (int step = -1; step <= 1; ++step) {
          const uint32_t bits = centre + half + step;
          const double value = value_of(bits);
          expect("fp32_to_bf16", bits, fp32_to_bf16(bits_float(bits)),
                 expected_half(value, 7, -126, 0x7F80));
          expect("fp32_to_fp16", bits, fp32_to_fp16(bits_float(bits)),
                 expected_half(value, 10, -14, 0x7C00));
        }
      }
    }
  }
  // Ties of fp16 subnormals, which are further apart than the mantissa suggests.
  for (int steps = 0; steps < 2048; ++steps) {
    const uint32_t bits = float_bits(static_cast<float>(std::ldexp(steps + 0.5, -24)));
    for (uint32_t near = bits - 1; near <= bits + 1; ++near) {
      expect("fp32_to_fp16", near, fp32_to_fp16(bits_float(near)),
             expected_half(value_of(near), 10, -14, 0x7C00));
    }
  }
}

// Walks a matrix in the order of storage, tile by tile, and asks for the place of each scale.
void test_layout(ScaleLayout layout, int64_t lines, int64_t quarters) {
  const int64_t rows_of_tile = lines * quarters;
  const int64_t columns_of_tile = layout == ScaleLayout::kLinear ? 1 : 4;
  expect("tile_rows", static_cast<int>(layout), tile_rows(layout), rows_of_tile);
  expect("tile_columns", static_cast<int>(layout), tile_columns(layout), columns_of_tile);
  for (const int64_t columns : {4, 12, 20}) {
    int64_t place = 0;
    for (int64_t tile_row = 0; tile_row < 3; ++tile_row) {
      for (int64_t tile = 0; tile < columns / columns_of_tile; ++tile) {
        for (int64_t line = 0; line < lines; ++line) {
          for (int64_t quarter = 0; quarter < quarters; ++quarter) {
            for (int64_t c = 0; c < columns_of_tile; ++c, ++place) {
              const int64_t row = tile_row * rows_of_tile + quarter * lines + line;
              expect("scale_offset", place,
                     scale_offset(layout, row, tile * columns_of_tile + c, columns), place);
            }
          }
        }
      }
    }
  }
  // Beyond 2^32: 64-bit arithmetic throughout.
  const int64_t row = (int64_t{1} << 33) / columns_of_tile;
  expect("scale_offset", row, scale_offset(layout, row, 0, columns_of_tile), row * columns_of_tile);
}

}  // namespace

int main() {
  test_scale_bytes<ElementType::kE4m3>();
  test_scale_bytes<ElementType::kE5m2>();
  test_scale_values();
  test_codes<ElementType::kE4m3>();
  test_codes<ElementType::kE5m2>();
  test_16_bit_types();
  test_layout(ScaleLayout::kLinear, 1, 1);
  test_layout(ScaleLayout::kSwizzled32x4x4, 32, 4);
  test_layout(ScaleLayout::kSwizzled8x4, 8, 1);
  expect("round_up", 0, round_up(0, 128), 0);
  expect("round_up", 1, round_up(1, 128), 128);
  expect("round_up", 128, round_up(128, 128), 128);
  return report();
}
