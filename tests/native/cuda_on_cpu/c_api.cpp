// Plain C entries of the CUDA kernels on the CPU. `sizes` is batch, rows, columns, then the strides
// of batches and rows in elements; formats by the values of the enums of mxfp8.h; `unroll`
// is how many accesses a thread makes, 1, 2 or 4. They return a cudaError_t.
#include "cuda/launch.h"

using namespace mxfp8;
using namespace mxfp8::cuda;

#define MXFP8_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

View view_of(const void* data, const int64_t* sizes) {
  return {data, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]};
}

Device device_of(int unroll) {
  tuning().unroll = unroll;
  return {nullptr, 1, false};
}

}  // namespace

MXFP8_EXPORT int mxfp8_cuda_quantize_raw(const void* input, const int64_t* sizes, int input_type,
                                         int element, int mode, int layout, int64_t padded_columns,
                                         int unroll, uint8_t* data, uint8_t* scale) {
  const Format format{static_cast<InputType>(input_type), static_cast<ElementType>(element),
                      static_cast<ScalingMode>(mode)};
  return quantize(view_of(input, sizes), format,
                  {data, scale, static_cast<ScaleLayout>(layout), padded_columns},
                  device_of(unroll));
}

MXFP8_EXPORT int mxfp8_cuda_quantize_both_raw(const void* input, const int64_t* sizes,
                                              int input_type, int element, int mode, int layout,
                                              int layout_t, int64_t padded_columns,
                                              int64_t padded_rows, uint8_t* data, uint8_t* scale,
                                              uint8_t* data_t, uint8_t* scale_t) {
  const Format format{static_cast<InputType>(input_type), static_cast<ElementType>(element),
                      static_cast<ScalingMode>(mode)};
  const Quantized rows{data, scale, static_cast<ScaleLayout>(layout), padded_columns};
  const Quantized columns{data_t, scale_t, static_cast<ScaleLayout>(layout_t), padded_rows};
  return quantize_columns(view_of(input, sizes), format, &rows, columns, device_of(0));
}

MXFP8_EXPORT int mxfp8_cuda_quantize_columnwise_raw(const void* input, const int64_t* sizes,
                                                    int input_type, int element, int mode,
                                                    int layout, int64_t padded_rows, uint8_t* data,
                                                    uint8_t* scale) {
  const Format format{static_cast<InputType>(input_type), static_cast<ElementType>(element),
                      static_cast<ScalingMode>(mode)};
  const Quantized columns{data, scale, static_cast<ScaleLayout>(layout), padded_rows};
  return quantize_columns(view_of(input, sizes), format, nullptr, columns, device_of(0));
}

MXFP8_EXPORT int mxfp8_cuda_dequantize_raw(const void* data, const uint8_t* scale,
                                           const int64_t* sizes, int element, int layout,
                                           int output_type, int unroll, void* output) {
  return dequantize(view_of(data, sizes), scale, static_cast<ScaleLayout>(layout),
                    static_cast<ElementType>(element), static_cast<InputType>(output_type), output,
                    device_of(unroll));
}
