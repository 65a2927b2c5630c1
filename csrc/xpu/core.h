// The kernels on any SYCL queue: no torch. Pointers are device pointers of the queue's context;
// launches are asynchronous. Every function returns null, or why it failed; the text lives until
// the thread's next call.
#pragma once

#include <cstdint>

#if !defined(MXFP8_XPU_API)
#define MXFP8_XPU_API extern "C" __attribute__((visibility("default")))
#endif

// Compiles the kernels for the queue's context, unless done before: seconds, once per context.
MXFP8_XPU_API const char* mxfp8_xpu_prepare(void* queue);

// input: batch matrices of rows x columns elements, strides in elements, the last dimension
// contiguous. data: [batch, rows, padded_columns], 4-byte aligned. scale: in the layout, padding
// included. The four enumerations are those of mxfp8.h.
MXFP8_XPU_API const char* mxfp8_xpu_quantize(void* queue, int input_type, int element_type,
                                             int mode, int layout, const void* input, void* data,
                                             void* scale, int64_t batch, int64_t rows,
                                             int64_t columns, int64_t padded_columns,
                                             int64_t batch_stride, int64_t row_stride);

// data: [batch, rows, columns], contiguous, any alignment. output: the same, aligned to 4 elements.
MXFP8_XPU_API const char* mxfp8_xpu_dequantize(void* queue, int element_type, int output_type,
                                               int layout, const void* data, const void* scale,
                                               void* output, int64_t batch, int64_t rows,
                                               int64_t columns);
