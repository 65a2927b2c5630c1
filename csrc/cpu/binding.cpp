// torch's stable ABI to the kernels. Calls that are not plainly valid are refused by the one
// validation, which is in Python (formats.check_*): this file only recognises the valid ones.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "operations.h"

namespace {

using namespace mxfp8;
using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

// Dtypes are codes of the shim: turning them into ScalarType would refuse some with words of its
// own.
using Dtype = int32_t;

struct Dtypes {
  Dtype bf16 = aoti_torch_dtype_bfloat16();
  Dtype fp16 = aoti_torch_dtype_float16();
  Dtype fp32 = aoti_torch_dtype_float32();
  Dtype e4m3 = aoti_torch_dtype_float8_e4m3fn();
  Dtype e5m2 = aoti_torch_dtype_float8_e5m2();
  Dtype e8m0 = torch_dtype_float8_e8m0fnu();
};

const Dtypes& dtypes() {
  static const Dtypes kDtypes;
  return kDtypes;
}

std::optional<InputType> input_type(Dtype dtype) {
  const Dtypes& d = dtypes();
  if (dtype == d.bf16) return InputType::kBf16;
  if (dtype == d.fp16) return InputType::kFp16;
  if (dtype == d.fp32) return InputType::kFp32;
  return std::nullopt;
}

std::optional<ElementType> element_type(Dtype dtype) {
  if (dtype == dtypes().e4m3) return ElementType::kE4m3;
  if (dtype == dtypes().e5m2) return ElementType::kE5m2;
  return std::nullopt;
}

std::optional<ScalingMode> scaling_mode(const std::string& name) {
  if (name == "rceil") return ScalingMode::kRceil;
  if (name == "floor") return ScalingMode::kFloor;
  if (name == "ceil") return ScalingMode::kCeil;
  if (name == "even") return ScalingMode::kEven;
  return std::nullopt;
}

std::optional<ScaleLayout> scale_layout(const std::string& name) {
  if (name == "linear") return ScaleLayout::kLinear;
  if (name == "swizzled_32_4_4") return ScaleLayout::kSwizzled32x4x4;
  if (name == "swizzled_8x4") return ScaleLayout::kSwizzled8x4;
  return std::nullopt;
}

// What the shim says of a tensor, asked for once.
struct Argument {
  explicit Argument(const Tensor& tensor) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor.get(), &dim));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(tensor.get(), &numel));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &strides));
  }
  int64_t size(int64_t from_end) const { return dim < from_end ? 1 : sizes[dim - from_end]; }

  // Of a tensor with at least one dimension.
  cpu::View view(const Tensor& tensor, int element_size) const {
    cpu::View v{};
    v.data = tensor.data_ptr();
    v.columns = size(1);
    v.column_stride = v.columns == 1 ? 1 : strides[dim - 1];
    v.rows = size(2);
    v.row_stride = dim < 2 ? 0 : strides[dim - 2];
    v.batch_dimensions = dim > 2 ? dim - 2 : 0;
    v.batch_sizes = sizes;
    v.batch_strides = strides;
    v.batches = 1;
    for (int64_t d = 0; d < v.batch_dimensions; ++d) v.batches *= sizes[d];
    v.element_size = element_size;
    return v;
  }

  int64_t dim, numel;
  Dtype dtype;
  int64_t *sizes, *strides;
};

// A new contiguous tensor [*first `batch` sizes of `like`, rows, columns], without rows if it is <
// 0.
Tensor allocate(const Argument& like, int64_t batch, int64_t rows, int64_t columns, Dtype dtype) {
  constexpr int64_t kMaxDimensions = 64;
  int64_t sizes[kMaxDimensions], strides[kMaxDimensions];
  if (batch + 2 > kMaxDimensions) throw std::invalid_argument("tensors have at most 64 dimensions");
  int64_t dim = 0;
  for (; dim < batch; ++dim) sizes[dim] = like.sizes[dim];
  if (rows >= 0) sizes[dim++] = rows;
  sizes[dim++] = columns;
  int64_t stride = 1;
  for (int64_t d = dim - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dim, sizes, strides, dtype,
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

void run(const cpu::Work& work) {
  if (work.units <= work.grain) {
    work.run(0, work.units);
    return;
  }
  torch::stable::parallel_for(0, work.units, work.grain,
                              [&work](int64_t begin, int64_t end) { work.run(begin, end); });
}

// Throws the sentence of mxfp8::_refuse_<operation>; pybind turns invalid_argument into ValueError.
template <class... Arguments>
[[noreturn]] void refuse(const char* operation, const Arguments&... arguments) {
  StableIValue stack[] = {from(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(operation, "", stack, TORCH_ABI_VERSION));
  const std::string sentence = to<std::string>(stack[0]);
  if (sentence.empty()) {
    throw std::runtime_error(std::string(operation) + ": the native library and the checks differ");
  }
  throw std::invalid_argument(sentence);
}

// Data and scale of one direction. `rows` < 0 for a one-dimensional result with linear scales.
struct Outputs {
  Outputs(const Argument& input, int64_t rows, int64_t columns, ScaleLayout layout, Dtype element) {
    const int64_t batch = input.dim > 2 ? input.dim - 2 : 0;
    const bool one_dimensional = input.dim < 2;
    const int64_t scale_columns = round_up(columns / kBlockSize, tile_columns(layout));
    const int64_t scale_rows = round_up(rows, tile_rows(layout));
    const bool flat_scale = one_dimensional && layout == ScaleLayout::kLinear;
    data = allocate(input, batch, one_dimensional ? -1 : rows, columns, element);
    scale = allocate(input, batch, flat_scale ? -1 : scale_rows, scale_columns, dtypes().e8m0);
    quantized = {static_cast<uint8_t*>(data.data_ptr()), static_cast<uint8_t*>(scale.data_ptr()),
                 layout, columns};
  }
  Tensor data{nullptr}, scale{nullptr};
  cpu::Quantized quantized;
};

struct Request {
  Request(const Argument& argument, std::optional<Dtype> dtype, const std::string& mode_name,
          const std::string& layout_name, std::optional<int64_t> alignment_)
      : element_dtype(dtype.value_or(dtypes().e4m3)), alignment(alignment_) {
    const auto input = input_type(argument.dtype);
    const auto element = element_type(element_dtype);
    const auto mode = scaling_mode(mode_name);
    const auto layout_ = scale_layout(layout_name);
    valid = input && element && mode && layout_ &&
            (!alignment || (*alignment > 0 && *alignment % kBlockSize == 0));
    if (!valid) return;
    format = {*input, *element, *mode};
    layout = *layout_;
    element_size = *input == InputType::kFp32 ? 4 : 2;
  }
  bool accepts(int64_t size) const { return alignment || size % kBlockSize == 0; }
  int64_t padded(int64_t size) const { return round_up(size, alignment.value_or(kBlockSize)); }

  Dtype element_dtype;
  std::optional<int64_t> alignment;
  bool valid = false;
  cpu::Format format{};
  ScaleLayout layout{};
  int element_size = 0;
};

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
    cpu::quantize(argument.view(input, request.element_size), request.format, outputs.quantized,
                  run);
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
    cpu::View view = argument.view(input, request.element_size).transposed();
    cpu::quantize(view, request.format, outputs.quantized, run);
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
    cpu::quantize_both(argument.view(input, request.element_size), request.format, rows.quantized,
                       columns.quantized, run);
  }
  return {std::move(rows.data), std::move(rows.scale), std::move(columns.data),
          std::move(columns.scale)};
}

bool on_cpu(const Tensor& tensor) {
  int32_t type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  return type == aoti_torch_device_type_cpu();
}

// Whether `scale` is [*leading `batch` sizes of `like`, rows, columns].
bool has_shape(const Argument& scale, const Argument& like, int64_t batch, int64_t rows,
               int64_t columns) {
  if (scale.dim != batch + 2 || scale.size(2) != rows || scale.size(1) != columns) return false;
  for (int64_t d = 0; d < batch; ++d) {
    if (scale.sizes[d] != like.sizes[d]) return false;
  }
  return true;
}

Tensor dequantize(const Tensor& data, const Tensor& scale, std::optional<Dtype> dtype,
                  const std::string& layout_name) {
  if (!data.defined() || !scale.defined()) {
    refuse("mxfp8::_refuse_dequantize", data, scale, dtype, layout_name);
  }
  const Argument codes(data), scales(scale);
  const Dtype output_dtype = dtype.value_or(dtypes().bf16);
  const auto element = element_type(codes.dtype);
  const auto output = input_type(output_dtype);
  const auto layout = scale_layout(layout_name);
  bool valid = element && output && layout && scales.dtype == dtypes().e8m0 && codes.dim > 0 &&
               codes.size(1) % kBlockSize == 0 && on_cpu(data) && on_cpu(scale);
  if (valid) {
    const int64_t columns = round_up(codes.size(1) / kBlockSize, tile_columns(*layout));
    valid = codes.dim == 1 && *layout == ScaleLayout::kLinear
                ? scales.dim == 1 && scales.size(1) == columns
                : has_shape(scales, codes, codes.dim > 2 ? codes.dim - 2 : 0,
                            round_up(codes.size(2), tile_rows(*layout)), columns);
  }
  if (!valid) refuse("mxfp8::_refuse_dequantize", data, scale, dtype, layout_name);
  Tensor result = allocate(codes, codes.dim > 2 ? codes.dim - 2 : 0,
                           codes.dim < 2 ? -1 : codes.size(2), codes.size(1), output_dtype);
  if (codes.numel > 0) {
    run(cpu::Dequantize(codes.view(data, 1), scales.view(scale, 1), *element, *layout, *output,
                        result.data_ptr()));
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
  Tensor result = allocate(scales, scales.dim > 2 ? scales.dim - 2 : 0,
                           flat ? -1 : round_up(scales.size(2), tile_rows(*layout)),
                           round_up(scales.size(1), tile_columns(*layout)), scales.dtype);
  if (scales.numel > 0) {
    run(cpu::SwizzleScale(scales.view(scale, 1), *layout,
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
    run(cpu::UnswizzleScale(scales.view(scale, 1), rows, columns, *layout,
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
