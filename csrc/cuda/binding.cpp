// torch's stable ABI to the kernels.
#include "binding.h"

#include <dlfcn.h>

#include <tuple>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "launch.h"

#define MXFP8_STRING(...) #__VA_ARGS__
#define MXFP8_EXPANDED_STRING(...) MXFP8_STRING(__VA_ARGS__)
#define MXFP8_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace mxfp8;
using namespace mxfp8::binding;

// The architectures that were compiled, as in "80_89_90"; PTX is there for the last.
constexpr char kArchs[] = MXFP8_EXPANDED_STRING(MXFP8_CUDA_ARCHS);

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorInvalidConfiguration) {
    throw std::runtime_error(
        "the mxfp8 CUDA kernels take fewer than 2**31 rows and 2**31 pieces of work, and this "
        "tensor has more: split it");
  }
  cudaGetLastError();  // reported here, so the next call must not report it again
  throw std::runtime_error(std::string(what) + " failed: " + cudaGetErrorName(error) + " (" +
                           cudaGetErrorString(error) + ")");
}

// Looked up when first needed: a torch without CUDA has no libtorch_cuda, and the library loads
// there.
cudaStream_t current_stream(int32_t device_index) {
  using Function = AOTITorchError (*)(int32_t, void**);
  static const Function kFunction = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    void* symbol = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
    if (!symbol) throw std::runtime_error("this torch has no CUDA: libtorch_cuda.so is not loaded");
    return reinterpret_cast<Function>(symbol);
  }();
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(kFunction(device_index, &stream));
  return static_cast<cudaStream_t>(stream);
}

// Asks for attributes only, which makes no context.
std::vector<cuda::Device> all_devices() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  std::vector<cuda::Device> devices(count);
  for (int index = 0; index < count; ++index) {
    const auto attribute = [index](cudaDeviceAttr name) {
      int value = 0;
      check(cudaDeviceGetAttribute(&value, name, index), "cudaDeviceGetAttribute");
      return value;
    };
    const int capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                           attribute(cudaDevAttrComputeCapabilityMinor);
    devices[index] = {nullptr, attribute(cudaDevAttrMultiProcessorCount),
                      cuda::waits_for_previous_kernel(kArchs, capability)};
  }
  return devices;
}

// Makes the tensor's device current while a kernel is launched, and says what launches need of it.
class DeviceScope {
 public:
  explicit DeviceScope(const Argument& argument) : device(), previous_(argument.device_index) {
    static const std::vector<cuda::Device> kDevices = all_devices();
    device = kDevices.at(argument.device_index);
    device.stream = current_stream(argument.device_index);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cuda::Device device;

 private:
  // Goes back even where the constructor throws.
  struct Previous {
    explicit Previous(int index) {
      int current = 0;
      check(cudaGetDevice(&current), "cudaGetDevice");
      if (current == index) return;
      check(cudaSetDevice(index), "cudaSetDevice");
      device = current;
    }
    ~Previous() {
      if (device >= 0) cudaSetDevice(device);
    }
    int device = -1;
  };

  Previous previous_;
};

// Batch dimensions as one dimension with one stride, if their strides allow it.
bool collapse_batch(const Argument& a, cuda::View* view) {
  view->batch = 1;
  view->batch_stride = 0;
  for (int64_t d = a.batch_dimensions() - 1; d >= 0; --d) {
    if (a.sizes[d] == 1) continue;
    if (view->batch == 1) {
      view->batch_stride = a.strides[d];
    } else if (a.strides[d] != view->batch_stride * view->batch) {
      return false;
    }
    view->batch *= a.sizes[d];
  }
  return true;
}

// A tensor as the kernels see it: as it is if its last dimension is dense, as its transpose if the
// last but one is and `may_transpose`, else as a contiguous copy.
struct Source {
  Source(const Tensor& tensor, const Argument& argument, bool may_transpose)
      : owner(tensor), view{} {
    view.data = tensor.data_ptr();
    const bool collapses = collapse_batch(argument, &view);
    if (collapses && (argument.size(1) == 1 || argument.stride(1) == 1)) {
      set(argument.size(2), argument.size(1), argument.stride(2));
    } else if (collapses && may_transpose && argument.dim > 1 && argument.stride(2) == 1) {
      set(argument.size(1), argument.size(2), argument.stride(1));
      transposed = true;
    } else {
      owner = torch::stable::contiguous(tensor);
      const Argument copy(owner);
      view.data = owner.data_ptr();
      collapse_batch(copy, &view);
      set(copy.size(2), copy.size(1), copy.size(1));
    }
  }
  void set(int64_t rows, int64_t columns, int64_t row_stride) {
    view.rows = rows;
    view.columns = columns;
    view.row_stride = rows == 1 ? columns : row_stride;
  }
  Tensor owner;
  cuda::View view;
  bool transposed = false;
};

cuda::Format format_of(const Request& r) { return {r.input, r.element, r.mode}; }

cuda::Quantized target_of(const Outputs& o) {
  return {static_cast<uint8_t*>(o.data.data_ptr()), static_cast<uint8_t*>(o.scale.data_ptr()),
          o.layout, o.padded_columns};
}

// One direction: along the source's rows, or along its columns.
void launch_one(const Argument& argument, const Source& source, const Request& request,
                const Outputs& outputs, bool along_columns) {
  const DeviceScope scope(argument);
  const cuda::Quantized target = target_of(outputs);
  check(along_columns
            ? cuda::quantize_columns(source.view, format_of(request), nullptr, target, scope.device)
            : cuda::quantize(source.view, format_of(request), target, scope.device),
        "the launch of the mxfp8 CUDA kernel");
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
    const Source source(input, argument, true);
    launch_one(argument, source, request, outputs, source.transposed);
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
    const Source source(input, argument, true);
    launch_one(argument, source, request, outputs, !source.transposed);
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
    const Source source(input, argument, true);
    const DeviceScope scope(argument);
    const cuda::Quantized first = target_of(source.transposed ? columns : rows);
    const cuda::Quantized second = target_of(source.transposed ? rows : columns);
    check(cuda::quantize_columns(source.view, format_of(request), &first, second, scope.device),
          "the launch of the mxfp8 CUDA kernel");
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
      codes.device_index != scales.device_index || !scale_fits(scales, codes, *layout)) {
    refuse("mxfp8::_refuse_dequantize", data, scale, dtype, layout_name);
  }
  Tensor result = allocate(codes, codes.batch_dimensions(), codes.dim < 2 ? -1 : codes.size(2),
                           codes.size(1), output_dtype);
  if (codes.numel > 0) {
    const Source source(data, codes, false);
    const Tensor dense = torch::stable::contiguous(scale);
    const DeviceScope scope(codes);
    check(cuda::dequantize(source.view, static_cast<const uint8_t*>(dense.data_ptr()), *layout,
                           *element, *output, result.data_ptr(), scope.device),
          "the launch of the mxfp8 CUDA kernel");
  }
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mxfp8, CUDA, m) {
  m.impl("quantize_cuda", TORCH_BOX(&quantize));
  m.impl("quantize_columnwise_cuda", TORCH_BOX(&quantize_columnwise));
  m.impl("quantize_both_cuda", TORCH_BOX(&quantize_both));
  m.impl("dequantize_cuda", TORCH_BOX(&dequantize));
}

// The same kernels for the dispatcher ops, for when no other backend may be chosen on any device.
MXFP8_EXPORT void mxfp8_register_cuda_dispatcher() {
  using torch::stable::detail::StableLibrary;
  static StableLibrary library(StableLibrary::Kind::IMPL, "mxfp8", "CUDA", __FILE__, __LINE__);
  static const bool registered = [] {
    library.impl("quantize", TORCH_BOX(&quantize));
    library.impl("quantize_columnwise", TORCH_BOX(&quantize_columnwise));
    library.impl("quantize_both", TORCH_BOX(&quantize_both));
    library.impl("dequantize", TORCH_BOX(&dequantize));
    return true;
  }();
  static_cast<void>(registered);
}

MXFP8_EXPORT const char* mxfp8_cuda_archs() { return kArchs; }

// Versions of CUDA as 1000 * major + 10 * minor, 0 where there is none; no context is made.
MXFP8_EXPORT int mxfp8_cuda_driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}
MXFP8_EXPORT int mxfp8_cuda_runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

// For benchmarks/tune_cuda.py: 0, 0 and -1 give every choice back to the launch code.
MXFP8_EXPORT void mxfp8_cuda_tune(int unroll, int threads, int overlap) {
  cuda::tuning() = {unroll, threads, overlap};
}
