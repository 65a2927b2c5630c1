// Plain C entries on raw pointers for the tests, which put guard pages around inputs and outputs.
// One thread.
#include "operations.h"

using namespace mxfp8;
using namespace mxfp8::cpu;

#define MXFP8_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

void run_all(const Work& work) { work.run(0, work.units); }

View matrix_view(const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                 int64_t column_stride, int element_size) {
  return {data, rows, columns, row_stride, column_stride, 1, 0, nullptr, nullptr, element_size};
}

}  // namespace

MXFP8_EXPORT const char* mxfp8_cpu_isa() { return kernels().name; }

MXFP8_EXPORT int mxfp8_cpu_set_isa(const char* name) { return set_kernels(name) ? 1 : 0; }

// Strides in elements; formats by the values of the enums of mxfp8.h.
MXFP8_EXPORT void mxfp8_cpu_quantize_raw(const void* input, int64_t rows, int64_t columns,
                                         int64_t row_stride, int64_t column_stride, int input_type,
                                         int element, int mode, int layout, int64_t padded_columns,
                                         uint8_t* data, uint8_t* scale) {
  const Format format{static_cast<InputType>(input_type), static_cast<ElementType>(element),
                      static_cast<ScalingMode>(mode)};
  const View view = matrix_view(input, rows, columns, row_stride, column_stride,
                                format.input == InputType::kFp32 ? 4 : 2);
  quantize(view, format, Quantized{data, scale, static_cast<ScaleLayout>(layout), padded_columns},
           run_all);
}

MXFP8_EXPORT void mxfp8_cpu_quantize_both_raw(const void* input, int64_t rows, int64_t columns,
                                              int64_t row_stride, int64_t column_stride,
                                              int input_type, int element, int mode, int layout,
                                              int layout_t, int64_t padded_rows,
                                              int64_t padded_columns, uint8_t* data, uint8_t* scale,
                                              uint8_t* data_t, uint8_t* scale_t) {
  const Format format{static_cast<InputType>(input_type), static_cast<ElementType>(element),
                      static_cast<ScalingMode>(mode)};
  const View view = matrix_view(input, rows, columns, row_stride, column_stride,
                                format.input == InputType::kFp32 ? 4 : 2);
  quantize_both(
      view, format, Quantized{data, scale, static_cast<ScaleLayout>(layout), padded_columns},
      Quantized{data_t, scale_t, static_cast<ScaleLayout>(layout_t), padded_rows}, run_all);
}

MXFP8_EXPORT void mxfp8_cpu_dequantize_raw(const uint8_t* data, const uint8_t* scale, int64_t rows,
                                           int64_t columns, int element, int layout,
                                           int output_type, void* output) {
  const ScaleLayout scale_layout = static_cast<ScaleLayout>(layout);
  const int64_t scale_rows = round_up(rows, tile_rows(scale_layout));
  const int64_t scale_columns = round_up(columns / kBlockSize, tile_columns(scale_layout));
  run_all(Dequantize(matrix_view(data, rows, columns, columns, 1, 1),
                     matrix_view(scale, scale_rows, scale_columns, scale_columns, 1, 1),
                     static_cast<ElementType>(element), scale_layout,
                     static_cast<InputType>(output_type), output));
}

MXFP8_EXPORT void mxfp8_cpu_swizzle_raw(const uint8_t* linear, int64_t rows, int64_t columns,
                                        int64_t row_stride, int64_t column_stride, int layout,
                                        uint8_t* output) {
  run_all(SwizzleScale(matrix_view(linear, rows, columns, row_stride, column_stride, 1),
                       static_cast<ScaleLayout>(layout), output));
}

MXFP8_EXPORT void mxfp8_cpu_unswizzle_raw(const uint8_t* stored, int64_t rows, int64_t columns,
                                          int layout, uint8_t* output) {
  const ScaleLayout scale_layout = static_cast<ScaleLayout>(layout);
  const int64_t stored_rows = round_up(rows, tile_rows(scale_layout));
  const int64_t stored_columns = round_up(columns, tile_columns(scale_layout));
  run_all(UnswizzleScale(matrix_view(stored, stored_rows, stored_columns, stored_columns, 1, 1),
                         rows, columns, scale_layout, output));
}
