// What the binding asks of the CUDA kernels. No torch here: pointers, sizes and a stream.
#pragma once

#include <cuda_runtime.h>

#include "mxfp8.h"

namespace mxfp8::cuda {

// [batch, rows, columns] with a dense last dimension; strides count elements.
struct View {
  const void* data;
  int64_t batch, rows, columns;
  int64_t batch_stride, row_stride;
};

// Data [batch, rows, padded_columns], contiguous, and its scales.
struct Quantized {
  uint8_t* data;
  uint8_t* scale;
  ScaleLayout layout;
  int64_t padded_columns;
};

struct Format {
  InputType input;
  ElementType element;
  ScalingMode mode;
};

struct Device {
  cudaStream_t stream;
  int processors;
  bool overlaps_launches;  // programmatic dependent launch: waits_for_previous_kernel()
};

// Overrides of the launch heuristics for benchmarks/tune_cuda.py; 0 and -1 leave them alone.
struct Tuning {
  int unroll = 0;
  int threads = 0;
  int overlap = -1;
};
Tuning& tuning();

cudaError_t quantize(const View& input, const Format& format, const Quantized& output,
                     const Device& device);

// `columns.data` is [batch, columns of input, padded rows of input]. Without `rows` only that
// direction is computed.
cudaError_t quantize_columns(const View& input, const Format& format, const Quantized* rows,
                             const Quantized& columns, const Device& device);

// `data` is contiguous [batch, rows, columns]; so is the output, of type `output_type`.
cudaError_t dequantize(const View& data, const uint8_t* scale, ScaleLayout layout,
                       ElementType element, InputType output_type, void* output,
                       const Device& device);

}  // namespace mxfp8::cuda
