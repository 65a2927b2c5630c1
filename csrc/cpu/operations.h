// The choice of work for an operation, shared by the torch binding and the plain C entries.
#pragma once

#include "kernels.h"

namespace mxfp8::cpu {

// Calls f(work) once or twice; each work writes all of its outputs.
template <class F>
void quantize(const View& input, const Format& format, const Quantized& output, const F& f) {
  if (input.column_stride == 1) {
    f(QuantizeRows(input, format, output));
  } else if (input.row_stride == 1) {
    f(QuantizeTiles(input.transposed(), format, Quantized{}, output));
  } else {
    f(QuantizeTiles(input, format, output, Quantized{}));
  }
}

template <class F>
void quantize_both(const View& input, const Format& format, const Quantized& rows,
                   const Quantized& columns, const F& f) {
  if (input.column_stride != 1 && input.row_stride == 1) {
    f(QuantizeTiles(input.transposed(), format, columns, rows));
  } else {
    f(QuantizeTiles(input, format, rows, columns));
  }
}

}  // namespace mxfp8::cpu
