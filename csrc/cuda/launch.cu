#include "launch.h"

namespace mxfp8::cuda {

template <InputType kInput, ElementType kElement>
cudaError_t quantize_rows(const View&, ScalingMode, const Quantized&, const Device&);
template <InputType kInput, ElementType kElement>
cudaError_t quantize_tiles(const View&, ScalingMode, const Quantized*, const Quantized&,
                           const Device&);

Tuning& tuning() {
  static Tuning instance;
  return instance;
}

namespace {

template <ElementType kElement>
cudaError_t rows_of(const View& input, const Format& format, const Quantized& output,
                    const Device& device) {
  switch (format.input) {
    case InputType::kBf16:
      return quantize_rows<InputType::kBf16, kElement>(input, format.mode, output, device);
    case InputType::kFp16:
      return quantize_rows<InputType::kFp16, kElement>(input, format.mode, output, device);
    default:
      return quantize_rows<InputType::kFp32, kElement>(input, format.mode, output, device);
  }
}

template <ElementType kElement>
cudaError_t tiles_of(const View& input, const Format& format, const Quantized* rows,
                     const Quantized& columns, const Device& device) {
  switch (format.input) {
    case InputType::kBf16:
      return quantize_tiles<InputType::kBf16, kElement>(input, format.mode, rows, columns, device);
    case InputType::kFp16:
      return quantize_tiles<InputType::kFp16, kElement>(input, format.mode, rows, columns, device);
    default:
      return quantize_tiles<InputType::kFp32, kElement>(input, format.mode, rows, columns, device);
  }
}

}  // namespace

cudaError_t quantize(const View& input, const Format& format, const Quantized& output,
                     const Device& device) {
  return format.element == ElementType::kE4m3
             ? rows_of<ElementType::kE4m3>(input, format, output, device)
             : rows_of<ElementType::kE5m2>(input, format, output, device);
}

cudaError_t quantize_columns(const View& input, const Format& format, const Quantized* rows,
                             const Quantized& columns, const Device& device) {
  return format.element == ElementType::kE4m3
             ? tiles_of<ElementType::kE4m3>(input, format, rows, columns, device)
             : tiles_of<ElementType::kE5m2>(input, format, rows, columns, device);
}

}  // namespace mxfp8::cuda
