// The SYCL kernels. This text is embedded in the library and compiled at run time for the device of
// the queue, by the compiler that SYCL's runtime brings; no host compiler sees it.
//
// Eight work-items share a block of 32, four elements each: a sub-group of 32 moves four blocks,
// 256 bytes of bf16, in one load. Nothing here depends on how a device treats fp32 subnormals.
#include <sycl/sycl.hpp>

#include "mxfp8.h"

namespace mxfp8_xpu {

using namespace mxfp8;

constexpr int kElements = 4;                    // of a work-item
constexpr int kLanes = kBlockSize / kElements;  // work-items of a block
constexpr int kSubGroup = 32;                   // work-items
constexpr int kSubGroupBlocks = kSubGroup / kLanes;

template <InputType kType>
using Storage = std::conditional_t<kType == InputType::kFp32, uint32_t, uint16_t>;

template <InputType kType>
inline uint32_t load_bits(Storage<kType> value) {
  if constexpr (kType == InputType::kFp32)
    return value;
  else if constexpr (kType == InputType::kBf16)
    return bf16_to_fp32_bits(value);
  else
    return fp16_to_fp32_bits(value);
}

template <InputType kType>
inline Storage<kType> store_bits(uint32_t bits) {
  if constexpr (kType == InputType::kFp32)
    return bits;
  else if constexpr (kType == InputType::kBf16)
    return fp32_to_bf16(bits_float(bits));
  else
    return fp32_to_fp16(bits_float(bits));
}

// x * 2^(127 - byte). A subnormal x goes through an integer, for devices that read it as zero.
inline float scaled_down(uint32_t bits, uint32_t byte) {
  if ((bits & kInfinityBits) != 0) return bits_float(bits) * inverse_scale(byte);
  // x is mantissa * 2^-149. From byte 105 on the product is below every FP8 number.
  const float factor = bits_float(byte < 105 ? (105 - byte) << 23 : 0);
  const float magnitude = static_cast<float>(bits & 0x7FFFFF) * factor;
  return bits_float((bits & 0x80000000) | float_bits(magnitude));
}

// fp32 bits of code * 2^(byte - 127). An FP8 number has few enough bits to stay exact as a
// subnormal.
template <ElementType kType>
inline uint32_t scaled_up(uint32_t code, uint32_t byte) {
  const uint32_t bits = decode_bits<kType>(code);
  const uint32_t magnitude = bits & kMagnitudeMask;
  if (byte == kE8m0Nan || magnitude > kInfinityBits) return 0x7FC00000;
  if (magnitude == 0 || magnitude == kInfinityBits) return bits;
  const uint32_t sign = bits & 0x80000000;
  const int exponent = static_cast<int>(magnitude >> 23) + static_cast<int>(byte) - 127;
  if (exponent >= 255) return sign | kInfinityBits;
  const uint32_t mantissa = magnitude & 0x7FFFFF;
  if (exponent > 0) return sign | (static_cast<uint32_t>(exponent) << 23) | mantissa;
  return sign | ((mantissa | 0x800000) >> (1 - exponent));
}

// Most tensors fit 32-bit division, which is several times cheaper on GPUs.
inline int64_t divide(int64_t value, int64_t by, int64_t& remainder) {
  if (((value | by) >> 32) == 0) {
    const uint32_t quotient = static_cast<uint32_t>(value) / static_cast<uint32_t>(by);
    remainder = static_cast<uint32_t>(value) - quotient * static_cast<uint32_t>(by);
    return quotient;
  }
  const int64_t quotient = value / by;
  remainder = value - quotient * by;
  return quotient;
}

// Where a work-item stands: the first block of its sub-group, how many blocks all sub-groups take
// in one turn, and its own block and elements within those of the sub-group.
struct Position {
  int64_t first, step;
  int block, lane;
};

inline Position position() {
  const auto item = sycl::ext::oneapi::this_work_item::get_nd_item<1>();
  const auto group = item.get_sub_group();
  const int64_t groups = group.get_group_linear_range();
  const int64_t index =
      static_cast<int64_t>(item.get_group(0)) * groups + group.get_group_linear_id();
  const int lane = static_cast<int>(group.get_local_linear_id());
  return {index * kSubGroupBlocks,
          static_cast<int64_t>(item.get_group_range(0)) * groups * kSubGroupBlocks, lane / kLanes,
          lane % kLanes};
}

// rows x columns elements of each matrix; blocks of a row including padding; grid_rows x
// grid_blocks scales of each matrix as stored; tasks is the number of all stored scales.
template <InputType kInput, ElementType kElement>
inline void quantize(const Storage<kInput>* input, uint8_t* data, uint8_t* scale,
                     int64_t batch_stride, int64_t row_stride, int64_t rows, int64_t columns,
                     int64_t blocks, int64_t grid_rows, int64_t grid_blocks, int64_t tasks,
                     int mode, int layout, int is_aligned) {
  const Position at = position();
  const auto group = sycl::ext::oneapi::this_work_item::get_sub_group();
  // Every work-item of a sub-group takes every turn: the exchange below needs all of them.
  for (int64_t first = at.first; first < tasks; first += at.step) {
    const int64_t task = first + at.block;
    int64_t in_matrix = 0, block = 0;
    const int64_t matrix = divide(task, grid_rows * grid_blocks, in_matrix);
    const int64_t row = divide(in_matrix, grid_blocks, block);
    const bool has_scale = task < tasks;
    const bool has_data = has_scale && row < rows && block < blocks;

    uint32_t bits[kElements] = {0, 0, 0, 0};
    const int64_t column = block * kBlockSize + at.lane * kElements;
    if (has_data && column < columns) {
      const Storage<kInput>* source = input + matrix * batch_stride + row * row_stride + column;
      if (is_aligned && column + kElements <= columns) {
        const auto values = *reinterpret_cast<const sycl::vec<Storage<kInput>, kElements>*>(source);
        for (int i = 0; i < kElements; ++i) bits[i] = load_bits<kInput>(values[i]);
      } else {
        for (int i = 0; i < kElements; ++i) {
          if (column + i < columns) bits[i] = load_bits<kInput>(source[i]);
        }
      }
    }
    // As integers, NaN > infinity > finite: the maximum cannot lose a NaN.
    uint32_t amax = 0;
    for (int i = 0; i < kElements; ++i) {
      const uint32_t magnitude = bits[i] & kMagnitudeMask;
      amax = magnitude > amax ? magnitude : amax;
    }
    for (int mask = kLanes / 2; mask > 0; mask /= 2) {
      const uint32_t other = sycl::permute_group_by_xor(group, amax, mask);
      amax = other > amax ? other : amax;
    }
    const uint32_t byte = scale_byte<kElement>(amax, static_cast<ScalingMode>(mode));
    if (has_data) {
      uint32_t codes = 0x01010101 * kNanCode;
      if (byte != kE8m0Nan) {
        codes = 0;
        for (int i = 0; i < kElements; ++i) {
          codes |= encode<kElement>(scaled_down(bits[i], byte)) << (8 * i);
        }
      }
      const int64_t place = ((matrix * rows + row) * blocks + block) * kLanes + at.lane;
      reinterpret_cast<uint32_t*>(data)[place] = codes;
    }
    if (has_scale && at.lane == 0) {
      const int64_t place = scale_offset(static_cast<ScaleLayout>(layout), row, block, grid_blocks);
      scale[matrix * grid_rows * grid_blocks + place] = has_data ? byte : 0;
    }
  }
}

template <ElementType kElement, InputType kOutput>
inline void dequantize(const uint8_t* data, const uint8_t* scale, Storage<kOutput>* output,
                       int64_t rows, int64_t blocks, int64_t grid_rows, int64_t grid_blocks,
                       int64_t tasks, int layout, int is_aligned) {
  const Position at = position();
  for (int64_t first = at.first; first < tasks; first += at.step) {
    const int64_t task = first + at.block;
    if (task >= tasks) break;
    int64_t in_matrix = 0, block = 0;
    const int64_t matrix = divide(task, rows * blocks, in_matrix);
    const int64_t row = divide(in_matrix, blocks, block);
    const int64_t place = scale_offset(static_cast<ScaleLayout>(layout), row, block, grid_blocks);
    const uint32_t byte = scale[matrix * grid_rows * grid_blocks + place];

    const int64_t element = (task * kLanes + at.lane) * kElements;
    uint32_t codes = 0;
    if (is_aligned) {
      codes = *reinterpret_cast<const uint32_t*>(data + element);
    } else {
      for (int i = 0; i < kElements; ++i)
        codes |= static_cast<uint32_t>(data[element + i]) << (8 * i);
    }
    sycl::vec<Storage<kOutput>, kElements> values;
    for (int i = 0; i < kElements; ++i) {
      values[i] = store_bits<kOutput>(scaled_up<kElement>((codes >> (8 * i)) & 0xFF, byte));
    }
    *reinterpret_cast<sycl::vec<Storage<kOutput>, kElements>*>(output + element) = values;
  }
}

}  // namespace mxfp8_xpu

// The attribute, not the property sub_group_size<32>: runtimes of 2025.3 drop that one silently.
#define MXFP8_KERNEL                             \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(( \
      sycl::ext::oneapi::experimental::nd_range_kernel<1>)) [[sycl::reqd_sub_group_size(32)]] void

#define MXFP8_QUANTIZE(NAME, INPUT, ELEMENT)                                                 \
  MXFP8_KERNEL NAME(const mxfp8_xpu::Storage<mxfp8::InputType::INPUT>* input, uint8_t* data, \
                    uint8_t* scale, int64_t batch_stride, int64_t row_stride, int64_t rows,  \
                    int64_t columns, int64_t blocks, int64_t grid_rows, int64_t grid_blocks, \
                    int64_t tasks, int mode, int layout, int is_aligned) {                   \
    mxfp8_xpu::quantize<mxfp8::InputType::INPUT, mxfp8::ElementType::ELEMENT>(               \
        input, data, scale, batch_stride, row_stride, rows, columns, blocks, grid_rows,      \
        grid_blocks, tasks, mode, layout, is_aligned);                                       \
  }

#define MXFP8_DEQUANTIZE(NAME, ELEMENT, OUTPUT)                                                \
  MXFP8_KERNEL NAME(const uint8_t* data, const uint8_t* scale,                                 \
                    mxfp8_xpu::Storage<mxfp8::InputType::OUTPUT>* output, int64_t rows,        \
                    int64_t blocks, int64_t grid_rows, int64_t grid_blocks, int64_t tasks,     \
                    int layout, int is_aligned) {                                              \
    mxfp8_xpu::dequantize<mxfp8::ElementType::ELEMENT, mxfp8::InputType::OUTPUT>(              \
        data, scale, output, rows, blocks, grid_rows, grid_blocks, tasks, layout, is_aligned); \
  }

MXFP8_QUANTIZE(quantize_bf16_e4m3, kBf16, kE4m3)
MXFP8_QUANTIZE(quantize_bf16_e5m2, kBf16, kE5m2)
MXFP8_QUANTIZE(quantize_fp16_e4m3, kFp16, kE4m3)
MXFP8_QUANTIZE(quantize_fp16_e5m2, kFp16, kE5m2)
MXFP8_QUANTIZE(quantize_fp32_e4m3, kFp32, kE4m3)
MXFP8_QUANTIZE(quantize_fp32_e5m2, kFp32, kE5m2)
MXFP8_DEQUANTIZE(dequantize_bf16_e4m3, kE4m3, kBf16)
MXFP8_DEQUANTIZE(dequantize_bf16_e5m2, kE5m2, kBf16)
MXFP8_DEQUANTIZE(dequantize_fp16_e4m3, kE4m3, kFp16)
MXFP8_DEQUANTIZE(dequantize_fp16_e5m2, kE5m2, kFp16)
MXFP8_DEQUANTIZE(dequantize_fp32_e4m3, kE4m3, kFp32)
MXFP8_DEQUANTIZE(dequantize_fp32_e5m2, kE5m2, kFp32)
