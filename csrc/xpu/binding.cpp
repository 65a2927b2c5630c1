// torch's stable ABI to the launcher. Calls that are not plainly valid are refused by the one
// validation, which is in Python (formats.check_*): this file only recognises the valid ones.
#include "binding.h"

#include <tuple>
#include <utility>

#include "core.h"

// The key of the kernels. Tests build a second library for CPU tensors, on Intel's OpenCL CPU
// device.
#if !defined(MXFP8_XPU_KEY)
#define MXFP8_XPU_KEY XPU
#endif

// From libtorch_xpu: the sycl::queue of the current stream. Its header exists for XPU builds only.
extern "C" AOTITorchError aoti_torch_get_current_xpu_stream(int32_t device_index, void** queue);

namespace {

using namespace mxfp8;
using namespace mxfp8::binding;

// An explicit queue and explicit device indices: no device has to be made the current one.
void* queue_of(int32_t device_index) {
  void* queue = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_xpu_stream(device_index, &queue));
  return queue;
}

// A tensor as matrices of contiguous rows, which lie row_stride apart, the matrices batch_stride.
struct Matrices {
  explicit Matrices(const Argument& a)
      : rows(a.size(2)),
        columns(a.size(1)),
        row_stride(a.dim < 2 ? columns : a.stride(2)),
        is_direct(columns <= 1 || a.stride(1) == 1) {
    // Batch dimensions that one stride walks through.
    int64_t expected = 0;
    for (int64_t d = a.batch_dimensions(); d-- > 0;) {
      if (a.sizes[d] == 1) continue;
      if (batch == 1)
        batch_stride = a.strides[d];
      else
        is_direct = is_direct && a.strides[d] == expected;
      expected = a.strides[d] * a.sizes[d];
      batch *= a.sizes[d];
    }
  }

  int64_t batch = 1, rows, columns, batch_stride = 0, row_stride;
  bool is_direct;
};

void require_launched(const char* error) {
  if (error != nullptr)
    throw std::runtime_error(std::string("the launch of a SYCL kernel failed: ") + error);
}

std::tuple<Tensor, Tensor> quantize(const Tensor& input, std::optional<Dtype> dtype,
                                    const std::string& mode, const std::string& layout,
                                    std::optional<int64_t> alignment) {
  const Argument argument(input);
  const Request request(argument, dtype, mode, layout, alignment);
  if (!request.valid || argument.dim < 1 || !request.accepts(argument.size(1))) {
    refuse("mxfp8::_refuse_quantize", input, dtype, mode, layout, alignment);
  }
  Outputs outputs(argument, argument.size(2), request.padded(argument.size(1)), request.layout,
                  request.element_dtype);
  if (argument.numel > 0) {
    Matrices view(argument);
    const Tensor source = view.is_direct ? input : torch::stable::contiguous(input);
    if (!view.is_direct) view = Matrices(Argument(source));
    require_launched(mxfp8_xpu_quantize(
        queue_of(argument.device_index), static_cast<int>(request.input),
        static_cast<int>(request.element), static_cast<int>(request.mode),
        static_cast<int>(request.layout), source.data_ptr(), outputs.data.data_ptr(),
        outputs.scale.data_ptr(), view.batch, view.rows, view.columns, outputs.padded_columns,
        view.batch_stride, view.row_stride));
  }
  return {std::move(outputs.data), std::move(outputs.scale)};
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
      codes.device_index != scales.device_index || !scale_fits(scales, codes, *layout)) {
    refuse("mxfp8::_refuse_dequantize", data, scale, dtype, layout_name);
  }
  Tensor result = allocate(codes, codes.batch_dimensions(), codes.dim < 2 ? -1 : codes.size(2),
                           codes.size(1), output_dtype);
  if (codes.numel > 0) {
    const Matrices view(codes);
    const Tensor dense = torch::stable::contiguous(data), bytes = torch::stable::contiguous(scale);
    require_launched(mxfp8_xpu_dequantize(queue_of(codes.device_index), static_cast<int>(*element),
                                          static_cast<int>(*output), static_cast<int>(*layout),
                                          dense.data_ptr(), bytes.data_ptr(), result.data_ptr(),
                                          view.batch, view.rows, view.columns));
  }
  return result;
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
