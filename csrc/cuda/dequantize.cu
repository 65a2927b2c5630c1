#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "units.cuh"

namespace mxfp8::cuda {
namespace {

struct DequantizeParameters {
  UnitParameters u;
  const uint8_t* data;
  const uint8_t* scale;
  char* output;
};

// Whether one of the four codes is a NaN: a carry into its sign bit.
template <ElementType kElement>
__device__ __forceinline__ bool has_nan(uint32_t codes) {
  constexpr uint32_t kToSign = kElement == ElementType::kE4m3 ? 0x01010101 : 0x03030303;
  return ((codes & 0x7F7F7F7F) + kToSign) & 0x80808080;
}

template <ElementType kElement>
__device__ __forceinline__ float2 decode2(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  if constexpr (kElement == ElementType::kE4m3) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}"
        : "=r"(halves)
        : "r"(codes));
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e5m2x2 %0, l;}"
        : "=r"(halves)
        : "r"(codes));
  }
  return __half22float2(*reinterpret_cast<__half2*>(&halves));
#else
  return {bits_float(decode_bits<kElement>(codes & 255)),
          bits_float(decode_bits<kElement>(codes >> 8 & 255))};
#endif
}

// Eight outputs of one block, stored. The header computes the chunks that contain a NaN, whose bits
// the hardware conversions choose differently.
template <ElementType kElement, InputType kOutput>
__device__ __forceinline__ void store_chunk(char* to, uint2 codes, uint32_t byte) {
  constexpr bool kWide = kOutput == InputType::kFp32;
  uint32_t words[kWide ? 8 : 4];
  if (byte == kE8m0Nan || has_nan<kElement>(codes.x) || has_nan<kElement>(codes.y)) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const uint32_t code = (i < 4 ? codes.x : codes.y) >> (i % 4 * 8) & 255;
      float value = bits_float(decode_bits<kElement>(code)) * scale_value(byte);
      if (value != value) value = bits_float(0x7FC00000);
      if constexpr (kWide) {
        words[i] = float_bits(value);
      } else {
        const uint32_t half =
            kOutput == InputType::kBf16 ? fp32_to_bf16(value) : fp32_to_fp16(value);
        words[i / 2] = i % 2 ? words[i / 2] | half << 16 : half;
      }
    }
  } else {
    const float scale = scale_value(byte);
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      const float2 pair = decode2<kElement>((i < 4 ? codes.x : codes.y) >> (i % 4 * 8));
      const float first = pair.x * scale, second = pair.y * scale;
      if constexpr (kWide) {
        words[i] = float_bits(first);
        words[i + 1] = float_bits(second);
      } else if constexpr (kOutput == InputType::kBf16) {
        const __nv_bfloat162 packed = __floats2bfloat162_rn(first, second);
        words[i / 2] = *reinterpret_cast<const uint32_t*>(&packed);
      } else {
        const __half2 packed = __floats2half2_rn(first, second);
        words[i / 2] = *reinterpret_cast<const uint32_t*>(&packed);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < (kWide ? 2 : 1); ++i) {
    reinterpret_cast<uint4*>(to)[i] =
        make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
  }
}

template <ElementType kElement, InputType kOutput, int kUnroll>
__global__ void __launch_bounds__(512)
    dequantize_kernel(const __grid_constant__ DequantizeParameters p) {
  constexpr int kOutputBytes = kOutput == InputType::kFp32 ? 4 : 2;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t index = warp_index(blockIdx.x, blockDim.x, threadIdx.x);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (index >= p.u.units) return;
  const Unit unit = locate<kUnroll>(p.u, index);
  const uint32_t row = unit.shape.row;
  const uint32_t block = unit.shape.column + lane / 4;
  const int64_t element = int64_t{block} * kBlockSize + lane % 4 * kChunk;

  // Lane 4 * g + i holds the scale of access i in column g.
  const uint32_t own = lane % 4;
  const uint32_t own_row = row + own * unit.shape.row_step;
  const uint32_t own_block = block + own * unit.shape.column_step;
  uint32_t bytes = 0;
  if (own < kUnroll && own_row < p.u.rows && own_block < p.u.blocks) {
    // No __ldg: the kernel overlaps the one that writes the scales.
    bytes = p.scale[unit.batch * p.u.scale_stride +
                    scale_place(p.u.layout, own_row, own_block, p.u.padded_columns)];
  }

  uint2 codes[kUnroll];
  bool inside[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    inside[i] = unit.whole || (row + i * unit.shape.row_step < p.u.rows &&
                               block + i * unit.shape.column_step < p.u.blocks);
    const uint8_t* from = p.data + unit.batch * p.u.batch_stride +
                          (row + i * int64_t{unit.shape.row_step}) * p.u.row_stride + element +
                          i * int64_t{unit.shape.column_step} * kBlockSize;
    codes[i] = {0, 0};
    if (inside[i] && p.u.aligned) {
      codes[i] = *reinterpret_cast<const uint2*>(from);
    } else if (inside[i]) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        codes[i].x |= uint32_t{from[k]} << (8 * k);
        codes[i].y |= uint32_t{from[k + 4]} << (8 * k);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const uint32_t byte = __shfl_sync(kFullWarp, bytes, (lane & ~3u) | i);
    const int64_t to =
        (unit.batch * p.u.rows + row + i * int64_t{unit.shape.row_step}) * p.u.columns + element +
        i * int64_t{unit.shape.column_step} * kBlockSize;
    if (inside[i]) store_chunk<kElement, kOutput>(p.output + to * kOutputBytes, codes[i], byte);
  }
}

template <ElementType kElement, InputType kOutput>
cudaError_t launch_dequantize(const View& data, const uint8_t* scale, ScaleLayout layout,
                              void* output, const Device& device) {
  const View view = flattened(data, data.columns, layout);
  // Two accesses a lane and 128 threads: 52.9 us for 8192 x 8192 on an H200, against 55.6 with four
  // and 256, which suit the other direction.
  const int chosen = choose_unroll(data.batch * data.rows * data.columns, device.processors);
  const int unroll = tuning().unroll || chosen < 2 ? chosen : 2;
  DequantizeParameters p{};
  p.u = unit_parameters(view, view.columns, layout, unroll, 1, 8);
  p.data = static_cast<const uint8_t*>(view.data);
  p.scale = scale;
  p.output = static_cast<char*>(output);
  const auto kernel = unroll == 4   ? dequantize_kernel<kElement, kOutput, 4>
                      : unroll == 2 ? dequantize_kernel<kElement, kOutput, 2>
                                    : dequantize_kernel<kElement, kOutput, 1>;
  return launch_units(kernel, p, p.u, device, 128);
}

}  // namespace

cudaError_t dequantize(const View& data, const uint8_t* scale, ScaleLayout layout,
                       ElementType element, InputType output_type, void* output,
                       const Device& device) {
  const bool e4m3 = element == ElementType::kE4m3;
  switch (output_type) {
    case InputType::kBf16:
      return e4m3 ? launch_dequantize<ElementType::kE4m3, InputType::kBf16>(data, scale, layout,
                                                                            output, device)
                  : launch_dequantize<ElementType::kE5m2, InputType::kBf16>(data, scale, layout,
                                                                            output, device);
    case InputType::kFp16:
      return e4m3 ? launch_dequantize<ElementType::kE4m3, InputType::kFp16>(data, scale, layout,
                                                                            output, device)
                  : launch_dequantize<ElementType::kE5m2, InputType::kFp16>(data, scale, layout,
                                                                            output, device);
    default:
      return e4m3 ? launch_dequantize<ElementType::kE4m3, InputType::kFp32>(data, scale, layout,
                                                                            output, device)
                  : launch_dequantize<ElementType::kE5m2, InputType::kFp32>(data, scale, layout,
                                                                            output, device);
  }
}

}  // namespace mxfp8::cuda
