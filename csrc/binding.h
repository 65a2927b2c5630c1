// What the bindings of all native libraries share: names and dtypes to enums, the shape rules of
// the outputs, and refusals. Calls that are not plainly valid are refused by the one validation,
// which is in Python (formats.check_*): this file only recognises the valid ones.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "mxfp8.h"

// In torch 2.13 and newer: weak, so null in older ones.
extern "C" __attribute__((weak, visibility("default"))) const char*
torch_exception_get_what_without_backtrace();

namespace mxfp8::binding {

using torch::stable::Tensor;

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

inline const Dtypes& dtypes() {
  static const Dtypes kDtypes;
  return kDtypes;
}

inline std::optional<InputType> input_type(Dtype dtype) {
  const Dtypes& d = dtypes();
  if (dtype == d.bf16) return InputType::kBf16;
  if (dtype == d.fp16) return InputType::kFp16;
  if (dtype == d.fp32) return InputType::kFp32;
  return std::nullopt;
}

inline std::optional<ElementType> element_type(Dtype dtype) {
  if (dtype == dtypes().e4m3) return ElementType::kE4m3;
  if (dtype == dtypes().e5m2) return ElementType::kE5m2;
  return std::nullopt;
}

inline std::optional<ScalingMode> scaling_mode(const std::string& name) {
  if (name == "rceil") return ScalingMode::kRceil;
  if (name == "floor") return ScalingMode::kFloor;
  if (name == "ceil") return ScalingMode::kCeil;
  if (name == "even") return ScalingMode::kEven;
  return std::nullopt;
}

inline std::optional<ScaleLayout> scale_layout(const std::string& name) {
  if (name == "linear") return ScaleLayout::kLinear;
  if (name == "swizzled_32_4_4") return ScaleLayout::kSwizzled32x4x4;
  if (name == "swizzled_8x4") return ScaleLayout::kSwizzled8x4;
  return std::nullopt;
}

// What the shim says of a tensor, asked for once. An undefined tensor, which is what None becomes
// beside a tensor that chose the kernel, has a dtype that no operation takes.
struct Argument {
  explicit Argument(const Tensor& tensor) {
    if (!tensor.defined()) return;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor.get(), &dim));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_numel(tensor.get(), &numel));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor.get(), &sizes));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor.get(), &strides));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &device_type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &device_index));
  }
  // Sizes and strides counted from the last dimension, which is 1.
  int64_t size(int64_t from_end) const { return dim < from_end ? 1 : sizes[dim - from_end]; }
  int64_t stride(int64_t from_end) const { return dim < from_end ? 0 : strides[dim - from_end]; }
  int64_t batch_dimensions() const { return dim > 2 ? dim - 2 : 0; }

  int64_t dim = 0, numel = 0;
  Dtype dtype = -1;
  int32_t device_type = -1, device_index = -1;
  int64_t *sizes = nullptr, *strides = nullptr;
};

// Why an allocation failed; older torches print it and do not tell.
inline std::string allocation_error(int32_t device_type) {
  const auto tell = torch_exception_get_what_without_backtrace;
  if (tell) return tell();
  const std::string place = device_type == aoti_torch_device_type_cuda() ? "CUDA " : "";
  return place + "out of memory, or its size overflows";
}

// A new contiguous tensor [*first `batch` sizes of `like`, rows, columns] on its device, without
// rows if they are < 0.
inline Tensor allocate(const Argument& like, int64_t batch, int64_t rows, int64_t columns,
                       Dtype dtype) {
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
  if (aoti_torch_empty_strided(dim, sizes, strides, dtype, like.device_type, like.device_index,
                               &handle) != AOTI_TORCH_SUCCESS) {
    // Serving engines look for torch's words in it, such as "CUDA out of memory".
    throw std::runtime_error(
        "a result of " + std::to_string(sizes[dim - 1]) +
        " columns could not be allocated: " + allocation_error(like.device_type));
  }
  return Tensor(handle);
}

// Throws the sentence of mxfp8::_refuse_<operation>; pybind turns invalid_argument into ValueError.
template <class... Arguments>
[[noreturn]] void refuse(const char* operation, const Arguments&... arguments) {
  StableIValue stack[] = {torch::stable::detail::from(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(operation, "", stack, TORCH_ABI_VERSION));
  const std::string sentence = torch::stable::detail::to<std::string>(stack[0]);
  if (sentence.empty()) {
    throw std::runtime_error(std::string(operation) + ": the native library and the checks differ");
  }
  throw std::invalid_argument(sentence);
}

// Data and scale of one direction of a quantization.
struct Outputs {
  Outputs(const Argument& input, int64_t rows, int64_t columns, ScaleLayout layout_, Dtype element)
      : layout(layout_), padded_columns(columns) {
    const int64_t batch = input.batch_dimensions();
    const bool one_dimensional = input.dim < 2;
    const bool flat_scale = one_dimensional && layout == ScaleLayout::kLinear;
    data = allocate(input, batch, one_dimensional ? -1 : rows, columns, element);
    scale = allocate(input, batch, flat_scale ? -1 : round_up(rows, tile_rows(layout)),
                     round_up(columns / kBlockSize, tile_columns(layout)), dtypes().e8m0);
  }
  Tensor data{nullptr}, scale{nullptr};
  ScaleLayout layout;
  int64_t padded_columns;
};

// The options of a quantization; `valid` says whether they and the input's dtype are.
struct Request {
  Request(const Argument& argument, std::optional<Dtype> dtype, const std::string& mode_name,
          const std::string& layout_name, std::optional<int64_t> alignment_)
      : element_dtype(dtype.value_or(dtypes().e4m3)), alignment(alignment_) {
    const auto input_ = input_type(argument.dtype);
    const auto element_ = element_type(element_dtype);
    const auto mode_ = scaling_mode(mode_name);
    const auto layout_ = scale_layout(layout_name);
    valid = input_ && element_ && mode_ && layout_ &&
            (!alignment || (*alignment > 0 && *alignment % kBlockSize == 0));
    if (!valid) return;
    input = *input_;
    element = *element_;
    mode = *mode_;
    layout = *layout_;
  }
  bool accepts(int64_t size) const { return alignment || size % kBlockSize == 0; }
  int64_t padded(int64_t size) const { return round_up(size, alignment.value_or(kBlockSize)); }

  Dtype element_dtype;
  std::optional<int64_t> alignment;
  bool valid = false;
  InputType input{};
  ElementType element{};
  ScalingMode mode{};
  ScaleLayout layout{};
};

// Whether `scale` is [*leading `batch` sizes of `like`, rows, columns].
inline bool has_shape(const Argument& scale, const Argument& like, int64_t batch, int64_t rows,
                      int64_t columns) {
  if (scale.dim != batch + 2 || scale.size(2) != rows || scale.size(1) != columns) return false;
  for (int64_t d = 0; d < batch; ++d) {
    if (scale.sizes[d] != like.sizes[d]) return false;
  }
  return true;
}

// Whether the scales of a `dequantize` call belong to its data, whose last size is a multiple
// of 32.
inline bool scale_fits(const Argument& scale, const Argument& data, ScaleLayout layout) {
  const int64_t columns = round_up(data.size(1) / kBlockSize, tile_columns(layout));
  if (data.dim == 1 && layout == ScaleLayout::kLinear) {
    return scale.dim == 1 && scale.size(1) == columns;
  }
  return has_shape(scale, data, data.batch_dimensions(), round_up(data.size(2), tile_rows(layout)),
                   columns);
}

}  // namespace mxfp8::binding
