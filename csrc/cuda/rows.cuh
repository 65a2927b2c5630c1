// Quantization along the rows. Four lanes share a block: 16-byte loads of a warp cover 512
// consecutive bytes of 16-bit input, its stores 256, and one byte store per lane writes the scales
// of the unit.
#pragma once

#include "units.cuh"

namespace mxfp8::cuda {

struct RowsParameters {
  UnitParameters u;
  const char* input;
  uint8_t* data;
  uint8_t* scale;
  ScaleRule rule;
};

template <InputType kInput, ElementType kElement, int kUnroll>
__global__ void __launch_bounds__(512) rows_kernel(const __grid_constant__ RowsParameters p) {
  using C = Chunk<kInput>;
  constexpr bool kExact = kInput == InputType::kFp32;
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t index = warp_index(blockIdx.x, blockDim.x, threadIdx.x);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (index >= p.u.units) return;
  const Unit unit = locate<kUnroll>(p.u, index);
  const uint32_t row = unit.shape.row;
  const uint32_t block = unit.shape.column + lane / 4;
  const int64_t element = int64_t{block} * kBlockSize + lane % 4 * kChunk;

  C chunks[kUnroll];
  const char* from =
      p.input + (unit.batch * p.u.batch_stride + row * p.u.row_stride + element) * C::kElementBytes;
  const int64_t from_step =
      (unit.shape.row_step * p.u.row_stride + int64_t{unit.shape.column_step} * kBlockSize) *
      C::kElementBytes;
  if (unit.whole) {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) chunks[i].load(from + i * from_step);
  } else {
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const bool inside = row + i * int64_t{unit.shape.row_step} < p.u.rows;
      const int64_t left = p.u.columns - element - i * int64_t{unit.shape.column_step} * kBlockSize;
      chunks[i] = empty_chunk<kInput>();
      if (inside && left >= kChunk && p.u.aligned) {
        chunks[i].load(from + i * from_step);
      } else if (inside && left > 0) {
        chunks[i].load_part(from + i * from_step, left);
      }
    }
  }

  uint32_t bytes[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; i += 2) {
    auto peaks = Peaks<kInput>::of_chunks(chunks[i], chunks[i + 1 < kUnroll ? i + 1 : i]);
    peaks.include(peaks.from_lane_xor(1));
    peaks.include(peaks.from_lane_xor(2));
    bytes[i] = p.rule.template byte<kElement, kExact>(peaks.first_bits());
    if (i + 1 < kUnroll) {
      bytes[i + 1] = p.rule.template byte<kElement, kExact>(peaks.second_bits());
    }
  }

  const int64_t width = int64_t{p.u.blocks} * kBlockSize;
  uint8_t* to = p.data + (unit.batch * p.u.rows + row) * width + element;
  const int64_t to_step =
      unit.shape.row_step * width + int64_t{unit.shape.column_step} * kBlockSize;
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const uint2 codes = encode_chunk<kInput, kElement>(chunks[i], bytes[i]);
    const bool inside = unit.whole || (row + i * int64_t{unit.shape.row_step} < p.u.rows &&
                                       block + i * unit.shape.column_step < p.u.blocks);
    if (inside) *reinterpret_cast<uint2*>(to + i * to_step) = codes;
  }

  // Lane 4 * g + i stores the scale of access i in column g.
  const uint32_t i = lane % 4;
  uint32_t byte = bytes[0];
#pragma unroll
  for (uint32_t k = 1; k < kUnroll; ++k) byte = i == k ? bytes[k] : byte;
  const uint32_t scale_column = block + i * unit.shape.column_step;
  if (i < kUnroll && scale_column < p.u.padded_columns) {
    p.scale[unit.batch * p.u.scale_stride + scale_place(p.u.layout, row + i * unit.shape.row_step,
                                                        scale_column, p.u.padded_columns)] =
        static_cast<uint8_t>(byte);
  }
}

template <InputType kInput, ElementType kElement>
cudaError_t quantize_rows(const View& input, ScalingMode mode, const Quantized& output,
                          const Device& device) {
  using C = Chunk<kInput>;
  const View view = flattened(input, output.padded_columns, output.layout);
  const int64_t width = view.columns == input.columns ? output.padded_columns : view.columns;
  const int unroll = choose_unroll(input.batch * input.rows * input.columns, device.processors);
  RowsParameters p{};
  p.u = unit_parameters(view, width, output.layout, unroll, C::kElementBytes, 16);
  p.input = static_cast<const char*>(view.data);
  p.data = output.data;
  p.scale = output.scale;
  p.rule = ScaleRule::of<kElement>(mode);
  const auto kernel = unroll == 4   ? rows_kernel<kInput, kElement, 4>
                      : unroll == 2 ? rows_kernel<kInput, kElement, 2>
                                    : rows_kernel<kInput, kElement, 1>;
  return launch_units(kernel, p, p.u, device);
}

}  // namespace mxfp8::cuda
