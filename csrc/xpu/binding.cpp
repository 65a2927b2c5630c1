// torch's stable ABI to the launcher. Calls that are not plainly valid are refused by the one
// validation, which is in Python (formats.check_*): this file only recognises the valid ones.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core.h"
#include "mxfp8.h"

// The key of the kernels. Tests build a second library for CPU tensors, on Intel's OpenCL CPU
// device.
#if !defined(MXFP8_XPU_KEY)
#define MXFP8_XPU_KEY XPU
#endif

// From libtorch_xpu: the sycl::queue of the current stream. Its header exists for XPU builds only.
extern "C" AOTITorchError aoti_torch_get_current_xpu_stream(int32_t device_index, void** queue);

namespace {

using namespace mxfp8;
using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

// Dtypes are codes of the shim: a ScalarType would refuse some of them with words of its own.
using Dtype = int32_t;
using Sizes = std::vector<int64_t>;

// Place of `value` among `values`, in the order of the enumerations of mxfp8.h, or -1.
template <class T, size_t kCount>
int place(const T& value, const std::array<T, kCount>& values) {
  const auto found = std::find(values.begin(), values.end(), value);
  return found == values.end() ? -1 : static_cast<int>(found - values.begin());
}

int type_of(Dtype dtype) {
  return place<Dtype, 3>(
      dtype, {aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16(), aoti_torch_dtype_float32()});
}

int element_of(Dtype dtype) {
  return place<Dtype, 2>(dtype, {aoti_torch_dtype_float8_e4m3fn(), aoti_torch_dtype_float8_e5m2()});
}

int mode_of(const std::string& name) {
  return place<std::string, 4>(name, {"rceil", "floor", "ceil", "even"});
}

int layout_of(const std::string& name) {
  return place<std::string, 3>(name, {"linear", "swizzled_32_4_4", "swizzled_8x4"});
}

Dtype dtype_of(const Tensor& tensor) {
  Dtype dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

std::pair<int32_t, int32_t> device_of(const Tensor& tensor) {
  int32_t type, index;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &index));
  return {type, index};
}

// An explicit queue and explicit device indices: no device has to be made the current one.
void* queue_of(int32_t device_index) {
  void* queue = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_xpu_stream(device_index, &queue));
  return queue;
}

// A new contiguous tensor on the device of `like`.
Tensor allocate(const Tensor& like, const Sizes& sizes, Dtype dtype) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  const auto [type, index] = device_of(like);
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(sizes.size(), sizes.data(), strides.data(), dtype,
                                                  type, index, &handle));
  return Tensor(handle);
}

// A tensor as matrices of contiguous rows, which lie row_stride apart, the matrices batch_stride.
struct Matrices {
  explicit Matrices(const Tensor& tensor) {
    const auto s = tensor.sizes();
    const auto t = tensor.strides();
    sizes.assign(s.begin(), s.end());
    const Sizes strides(t.begin(), t.end());
    const size_t dim = sizes.size();
    if (dim < 1) return;
    columns = sizes[dim - 1];
    is_direct = columns <= 1 || strides[dim - 1] == 1;
    row_stride = columns;
    if (dim >= 2) {
      rows = sizes[dim - 2];
      row_stride = strides[dim - 2];
    }
    // Batch dimensions that one stride walks through.
    int64_t expected = 0;
    for (size_t d = dim - std::min<size_t>(dim, 2); d-- > 0;) {
      if (sizes[d] == 1) continue;
      if (batch == 1)
        batch_stride = strides[d];
      else
        is_direct = is_direct && strides[d] == expected;
      expected = strides[d] * sizes[d];
      batch *= sizes[d];
    }
  }
  bool is_empty() const { return batch * rows * columns == 0; }

  // Sizes of the scales: those of the batch, then rows and columns of whole tiles.
  Sizes scale_sizes(int64_t padded_columns, ScaleLayout layout) const {
    const int64_t blocks = padded_columns / kBlockSize;
    if (sizes.size() == 1 && layout == ScaleLayout::kLinear) return {blocks};
    Sizes result(sizes.begin(), sizes.end() - std::min<size_t>(sizes.size(), 2));
    result.push_back(round_up(rows, tile_rows(layout)));
    result.push_back(round_up(blocks, tile_columns(layout)));
    return result;
  }

  Sizes sizes;
  int64_t batch = 1, rows = 1, columns = 0, batch_stride = 0, row_stride = 0;
  bool is_direct = false;
};

// Throws the sentence of mxfp8::_refuse_<operation>; Python receives a ValueError.
template <class... Arguments>
[[noreturn]] void refuse(const char* operation, const Arguments&... arguments) {
  StableIValue stack[] = {from(arguments)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(operation, "", stack, TORCH_ABI_VERSION));
  const std::string sentence = to<std::string>(stack[0]);
  if (sentence.empty()) throw std::runtime_error("the native xpu library and the checks differ");
  throw std::invalid_argument(sentence);
}

void require_launched(const char* error) {
  if (error != nullptr)
    throw std::runtime_error(std::string("the launch of a SYCL kernel failed: ") + error);
}

std::tuple<Tensor, Tensor> quantize(const Tensor& input, std::optional<Dtype> dtype,
                                    const std::string& scaling_mode,
                                    const std::string& scale_layout,
                                    std::optional<int64_t> alignment) {
  const Dtype element_dtype = dtype.value_or(aoti_torch_dtype_float8_e4m3fn());
  const int type = type_of(dtype_of(input)), element = element_of(element_dtype);
  const int mode = mode_of(scaling_mode), layout = layout_of(scale_layout);
  Matrices view(input);
  const int64_t multiple = alignment.value_or(kBlockSize);
  const bool is_valid = type >= 0 && element >= 0 && mode >= 0 && layout >= 0 &&
                        !view.sizes.empty() && multiple > 0 && multiple % kBlockSize == 0 &&
                        (alignment || view.columns % kBlockSize == 0);
  if (!is_valid) {
    refuse("mxfp8::_refuse_quantize", input, dtype, scaling_mode, scale_layout, alignment);
  }
  const int64_t padded = round_up(view.columns, multiple);
  Sizes data_sizes = view.sizes;
  data_sizes.back() = padded;
  Tensor data = allocate(input, data_sizes, element_dtype);
  Tensor scale = allocate(input, view.scale_sizes(padded, static_cast<ScaleLayout>(layout)),
                          torch_dtype_float8_e8m0fnu());
  if (!view.is_empty()) {
    const Tensor source = view.is_direct ? input : torch::stable::contiguous(input);
    if (!view.is_direct) view = Matrices(source);
    require_launched(mxfp8_xpu_quantize(queue_of(device_of(input).second), type, element, mode,
                                        layout, source.data_ptr(), data.data_ptr(),
                                        scale.data_ptr(), view.batch, view.rows, view.columns,
                                        padded, view.batch_stride, view.row_stride));
  }
  return {std::move(data), std::move(scale)};
}

Tensor dequantize(const Tensor& data, const Tensor& scale, std::optional<Dtype> dtype,
                  const std::string& scale_layout) {
  const Dtype output_dtype = dtype.value_or(aoti_torch_dtype_bfloat16());
  const int element = element_of(dtype_of(data)), type = type_of(output_dtype);
  const int layout = layout_of(scale_layout);
  const Matrices view(data);
  const bool is_valid =
      element >= 0 && type >= 0 && layout >= 0 && !view.sizes.empty() &&
      dtype_of(scale) == torch_dtype_float8_e8m0fnu() && view.columns % kBlockSize == 0 &&
      device_of(data) == device_of(scale) &&
      Matrices(scale).sizes == view.scale_sizes(view.columns, static_cast<ScaleLayout>(layout));
  if (!is_valid) refuse("mxfp8::_refuse_dequantize", data, scale, dtype, scale_layout);
  Tensor output = allocate(data, view.sizes, output_dtype);
  if (!view.is_empty()) {
    const Tensor codes = torch::stable::contiguous(data), bytes = torch::stable::contiguous(scale);
    require_launched(mxfp8_xpu_dequantize(queue_of(device_of(data).second), element, type, layout,
                                          codes.data_ptr(), bytes.data_ptr(), output.data_ptr(),
                                          view.batch, view.rows, view.columns));
  }
  return output;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mxfp8, MXFP8_XPU_KEY, m) {
  m.impl("quantize_xpu", TORCH_BOX(&quantize));
  m.impl("dequantize_xpu", TORCH_BOX(&dequantize));
}

// Compiles the kernels for a device: null, or why they cannot be compiled.
MXFP8_XPU_API const char* mxfp8_xpu_prepare_device(int device_index) {
  static thread_local std::string message;
  try {
    return mxfp8_xpu_prepare(queue_of(device_index));
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}
