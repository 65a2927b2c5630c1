// torch's stable ABI to the kernels. Calls that are not plainly valid are refused by the one
// validation, which is in Python (formats.check_*): this file only recognises the valid ones.
#include "binding.h"

#include <tuple>
#include <utility>

#include "operations.h"

namespace {

using namespace mxfp8;
using namespace mxfp8::binding;

// Of a tensor with at least one dimension.
cpu::View view_of(const Tensor& tensor, const Argument& a, int element_size) {
  cpu::View v{};
  v.data = tensor.data_ptr();
  v.columns = a.size(1);
  v.column_stride = v.columns == 1 ? 1 : a.stride(1);
  v.rows = a.size(2);
  v.row_stride = a.stride(2);
  v.batch_dimensions = a.batch_dimensions();
  v.batch_sizes = a.sizes;
  v.batch_strides = a.strides;
  v.batches = 1;
  for (int64_t d = 0; d < v.batch_dimensions; ++d) v.batches *= a.sizes[d];
  v.element_size = element_size;
  return v;
}

cpu::View input_of(const Tensor& tensor, const Argument& a, const Request& r) {
  return view_of(tensor, a, r.input == InputType::kFp32 ? 4 : 2);
}

cpu::Format format_of(const Request& r) { return {r.input, r.element, r.mode}; }

cpu::Quantized target_of(const Outputs& o) {
  return {static_cast<uint8_t*>(o.data.data_ptr()), static_cast<uint8_t*>(o.scale.data_ptr()),
          o.layout, o.padded_columns};
}

void run(const cpu::Work& work) {
  if (work.units <= work.grain) {
    work.run(0, work.units);
    return;
  }
  torch::stable::parallel_for(0, work.units, work.grain,
                              [&work](int64_t begin, int64_t end) { work.run(begin, end); });
}

using Pair = std::tuple<Tensor, Tensor>;

Pair quantize(const Tensor& input, std::optional<Dtype> dtype, const std::string& mode,
              const std::string& layout, std::optional<int64_t> alignment) {
  const Argument argument(input);
  const Request request(argument, dtype, mode, layout, alignment);
  if (!request.valid || argument.dim < 1 || !request.accepts(argument.size(1))) {
    refuse("mxfp8::_refuse_quantize", input, dtype, mode, layout, alignment);
  }
  Outputs outputs(argument, argument.size(2), request.padded(argument.size(1)), request.layout,
                  request.element_dtype);
  if (argument.numel > 0) {
    cpu::quantize(input_of(input, argument, request), format_of(request), target_of(outputs), run);
  }
  return {std::move(outputs.data), std::move(outputs.scale)};
}

Pair quantize_columnwise(const Tensor& input, std::optional<Dtype> dtype, const std::string& mode,
                         const std::string& layout, std::optional<int64_t> alignment) {
  const Argument argument(input);
  const Request request(argument, dtype, mode, layout, alignment);
  if (!request.valid || argument.dim < 2 || !request.accepts(argument.size(2))) {
    refuse("mxfp8::_refuse_quantize_columnwise", input, dtype, mode, layout, alignment);
  }
  Outputs outputs(argument, argument.size(1), request.padded(argument.size(2)), request.layout,
                  request.element_dtype);
  if (argument.numel > 0) {
    cpu::quantize(input_of(input, argument, request).transposed(), format_of(request),
                  target_of(outputs), run);
  }
  return {std::move(outputs.data), std::move(outputs.scale)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> quantize_both(const Tensor& input,
                                                         std::optional<Dtype> dtype,
                                                         const std::string& mode,
                                                         const std::string& layout,
                                                         std::optional<std::string> layout_t,
                                                         std::optional<int64_t> alignment) {
  const Argument argument(input);
  const Request request(argument, dtype, mode, layout, alignment);
  const auto transposed_layout = scale_layout(layout_t ? *layout_t : layout);
  if (!request.valid || !transposed_layout || argument.dim < 2 ||
      !request.accepts(argument.size(1)) || !request.accepts(argument.size(2))) {
    refuse("mxfp8::_refuse_quantize_both", input, dtype, mode, layout, layout_t, alignment);
  }
  Outputs rows(argument, argument.size(2), request.padded(argument.size(1)), request.layout,
               request.element_dtype);
  Outputs columns(argument, argument.size(1), request.padded(argument.size(2)), *transposed_layout,
                  request.element_dtype);
  if (argument.numel > 0) {
    cpu::quantize_both(input_of(input, argument, request), format_of(request), target_of(rows),
                       target_of(columns), run);
  }
  return {std::move(rows.data), std::move(rows.scale), std::move(columns.data),
          std::move(columns.scale)};
}

Tensor dequantize(const Tensor& data, const Tensor& scale, std::optional<Dtype> dtype,
                  const std::string& layout_name) {
  const Argument codes(data), scales(scale);
  const Dtype output_dtype = dtype.value_or(dtypes().bf16);
  const auto element = element_type(codes.dtype);
  const auto output = input_type(output_dtype);
  const auto layout = scale_layout(layout_name);
  if (!element || !output || !layout || scales.dtype != dtypes().e8m0 || codes.dim < 1 ||
      codes.size(1) % kBlockSize != 0 || codes.device_type != scales.device_type ||
      !scale_fits(scales, codes, *layout)) {
    refuse("mxfp8::_refuse_dequantize", data, scale, dtype, layout_name);
  }
  Tensor result = allocate(codes, codes.batch_dimensions(), codes.dim < 2 ? -1 : codes.size(2),
                           codes.size(1), output_dtype);
  if (codes.numel > 0) {
    run(cpu::Dequantize(view_of(data, codes, 1), view_of(scale, scales, 1), *element, *layout,
                        *output, result.data_ptr()));
  }
  return result;
}

Tensor swizzle_scale(const Tensor& scale, const std::string& layout_name) {
  const Argument scales(scale);
  const auto layout = scale_layout(layout_name);
  if (!layout || scales.dtype != dtypes().e8m0 || scales.dim < 1) {
    refuse("mxfp8::_refuse_swizzle_scale", scale, layout_name);
  }
  const bool flat = scales.dim < 2 && *layout == ScaleLayout::kLinear;
  Tensor result = allocate(scales, scales.batch_dimensions(),
                           flat ? -1 : round_up(scales.size(2), tile_rows(*layout)),
                           round_up(scales.size(1), tile_columns(*layout)), scales.dtype);
  if (scales.numel > 0) {
    run(cpu::SwizzleScale(view_of(scale, scales, 1), *layout,
                          static_cast<uint8_t*>(result.data_ptr())));
  }
  return result;
}

Tensor unswizzle_scale(const Tensor& scale, int64_t rows, int64_t columns,
                       const std::string& layout_name) {
  const Argument scales(scale);
  const auto layout = scale_layout(layout_name);
  const bool valid = layout && scales.dtype == dtypes().e8m0 && scales.dim >= 2 && rows >= 0 &&
                     columns >= 0 &&
                     has_shape(scales, scales, scales.dim - 2, round_up(rows, tile_rows(*layout)),
                               round_up(columns, tile_columns(*layout)));
  if (!valid) refuse("mxfp8::_refuse_unswizzle_scale", scale, rows, columns, layout_name);
  Tensor result = allocate(scales, scales.dim - 2, rows, columns, scales.dtype);
  if (scales.numel > 0) {
    run(cpu::UnswizzleScale(view_of(scale, scales, 1), rows, columns, *layout,
                            static_cast<uint8_t*>(result.data_ptr())));
  }
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mxfp8, CPU, m) {
  m.impl("quantize_cpu", TORCH_BOX(&quantize));
  m.impl("quantize_columnwise_cpu", TORCH_BOX(&quantize_columnwise));
  m.impl("quantize_both_cpu", TORCH_BOX(&quantize_both));
  m.impl("dequantize_cpu", TORCH_BOX(&dequantize));
  m.impl("swizzle_scale_cpu", TORCH_BOX(&swizzle_scale));
  m.impl("unswizzle_scale_cpu", TORCH_BOX(&unswizzle_scale));
}

// The same kernels for the dispatcher ops, for when nothing but the native backend may be chosen on
// CPU.
extern "C" __attribute__((visibility("default"))) void mxfp8_register_dispatcher() {
  using torch::stable::detail::StableLibrary;
  static StableLibrary library(StableLibrary::Kind::IMPL, "mxfp8", "CPU", __FILE__, __LINE__);
  static const bool registered = [] {
    library.impl("quantize", TORCH_BOX(&quantize));
    library.impl("quantize_columnwise", TORCH_BOX(&quantize_columnwise));
    library.impl("quantize_both", TORCH_BOX(&quantize_both));
    library.impl("dequantize", TORCH_BOX(&dequantize));
    library.impl("swizzle_scale", TORCH_BOX(&swizzle_scale));
    library.impl("unswizzle_scale", TORCH_BOX(&unswizzle_scale));
    return true;
  }();
  static_cast<void>(registered);
}
