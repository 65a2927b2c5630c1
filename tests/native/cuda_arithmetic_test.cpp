// csrc/cuda/arithmetic.h on the host: index arithmetic against plain division, and the folded scale
// rule against that of mxfp8.h, which mxfp8_test.cpp proves.
#include <initializer_list>
#include <vector>

#include "check.h"
#include "cuda/arithmetic.h"

namespace {

using namespace mxfp8;

void test_fast_divisor() {
  const uint32_t largest = 0x7FFFFFFF;
  for (uint32_t d = 1; d < 5000; ++d) {
    const cuda::FastDivisor divisor(d);
    const uint32_t last = largest / d * d;
    for (const uint32_t n : {0u, 1u, d - 1, d, d + 1, 7 * d - 1, last - 1, last, largest}) {
      expect("quotient", n, divisor.quotient(n), n / d);
    }
  }
  for (int shift = 12; shift < 31; ++shift) {
    for (int step = -1; step <= 1; ++step) {
      const uint32_t d = (1u << shift) + step;
      const cuda::FastDivisor divisor(d);
      for (uint64_t n = 0; n <= largest; n += 1000003) {
        expect("quotient", n, divisor.quotient(static_cast<uint32_t>(n)), n / d);
      }
    }
  }
}

template <ElementType kType>
void check_rule(uint32_t amax, bool reachable_by_16_bits) {
  for (const auto mode :
       {ScalingMode::kRceil, ScalingMode::kFloor, ScalingMode::kCeil, ScalingMode::kEven}) {
    const auto rule = cuda::ScaleRule::of<kType>(mode);
    const uint32_t expected = scale_byte<kType>(amax, mode);
    expect("ScaleRule::byte", amax, rule.template byte<kType, true>(amax), expected);
    if (reachable_by_16_bits) {
      expect("ScaleRule::byte", amax, rule.template byte<kType, false>(amax), expected);
    }
  }
}

template <ElementType kType>
void test_scale_rule() {
  for (uint32_t pattern = 0; pattern < 0x8000; ++pattern) {
    check_rule<kType>(bf16_to_fp32_bits(pattern), true);
    check_rule<kType>(fp16_to_fp32_bits(pattern), true);
  }
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const uint32_t turn : {0u, 0x600000u, 0x700000u, 0x780000u}) {
      for (uint32_t step = 0; step < 5; ++step) {
        const uint32_t bits = (exponent << 23) + turn + step - 2;
        if (bits < 0x80000000) check_rule<kType>(bits, false);
      }
    }
  }
}

void test_scale_place(ScaleLayout layout) {
  for (const uint32_t columns : {4u, 8u, 36u}) {
    for (uint32_t row = 0; row < 300; ++row) {
      for (uint32_t column = 0; column < columns; ++column) {
        expect("scale_place", row, cuda::scale_place(layout, row, column, columns),
               scale_offset(layout, row, column, columns));
      }
    }
  }
  const uint32_t last = 0x7FFFFFFF;
  expect("scale_place", last, cuda::scale_place(layout, last, 7, 8),
         scale_offset(layout, last, 7, 8));
}

// The units of a matrix touch every block of its scale storage once.
template <int kUnroll>
void test_unit_shape(ScaleLayout layout) {
  const bool linear = layout == ScaleLayout::kLinear;
  const uint32_t rows = 256, columns = linear ? 64 : 24;
  std::vector<int> touched(rows * columns);
  for (uint32_t group = 0; group < (linear ? rows : rows / kUnroll); ++group) {
    for (uint32_t unit = 0; unit < columns / (linear ? 8 * kUnroll : 8); ++unit) {
      const auto shape = cuda::unit_shape<kUnroll>(layout, group, unit);
      for (uint32_t access = 0; access < kUnroll; ++access) {
        for (uint32_t block = 0; block < 8; ++block) {
          const uint32_t row = shape.row + access * shape.row_step;
          const uint32_t column = shape.column + access * shape.column_step + block;
          ++touched.at(row * columns + column);
        }
      }
    }
  }
  for (size_t place = 0; place < touched.size(); ++place) {
    expect("unit_shape", static_cast<int64_t>(place), touched[place], 1);
  }
}

void test_warp_index() {
  for (const uint32_t threads : {32u, 128u, 256u, 512u}) {
    for (const uint32_t block : {0u, 1u, 131071u, 1u << 22, (1u << 24) - 1, 1u << 24}) {
      for (const uint32_t thread : {0u, 31u, threads - 1}) {
        expect("warp_index", block, cuda::warp_index(block, threads, thread),
               static_cast<uint32_t>((uint64_t{block} * threads + thread) / 32));
      }
    }
  }
}

void test_waits_for_previous_kernel() {
  struct Row {
    const char* archs;
    int capability;
    bool waits;
  };
  for (const Row& row : {
           Row{"80_89_90_100_120", 80, false},
           Row{"80_89_90_100_120", 89, false},
           Row{"80_89_90_100_120", 90, true},
           Row{"80_89_90_100_120", 103, true},
           Row{"80_89_90_100_120", 121, true},
           Row{"80", 90, false},
           Row{"80_86", 120, false},
           Row{"89", 100, false},
           Row{"90_80", 90, true},
           Row{"90_80", 120, false},
           Row{"90a", 90, true},
           Row{"100f", 103, true},
           Row{"80_90", 120, true},
           Row{"80_120", 121, true},
       }) {
    expect(row.archs, row.capability, cuda::waits_for_previous_kernel(row.archs, row.capability),
           row.waits);
  }
}

}  // namespace

int main() {
  test_warp_index();
  test_waits_for_previous_kernel();
  test_fast_divisor();
  test_scale_rule<ElementType::kE4m3>();
  test_scale_rule<ElementType::kE5m2>();
  for (const auto layout :
       {ScaleLayout::kLinear, ScaleLayout::kSwizzled32x4x4, ScaleLayout::kSwizzled8x4}) {
    test_scale_place(layout);
    test_unit_shape<1>(layout);
    test_unit_shape<2>(layout);
    test_unit_shape<4>(layout);
  }
  return report();
}
