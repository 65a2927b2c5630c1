// Compilation, caching and launches of device_kernels.h. Host code only: an ordinary C++ compiler
// builds it.
#include "core.h"

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "mxfp8.h"

// The assembler finds both files on the include path.
asm(R"(
.pushsection .rodata
mxfp8_kernels_begin: .incbin "xpu/device_kernels.h"
mxfp8_kernels_end: .byte 0
mxfp8_header_begin: .incbin "mxfp8.h"
mxfp8_header_end: .byte 0
.popsection
)");

extern "C" {
extern const char mxfp8_kernels_begin[], mxfp8_kernels_end[], mxfp8_header_begin[],
    mxfp8_header_end[];
}

namespace {

namespace syclex = sycl::ext::oneapi::experimental;

constexpr int kTypes = 3, kElementTypes = 2, kLayouts = 3, kModes = 4;
constexpr const char* kTypeNames[kTypes] = {"bf16", "fp16", "fp32"};
constexpr int kTypeSizes[kTypes] = {2, 2, 4};
constexpr const char* kElementNames[kElementTypes] = {"e4m3", "e5m2"};

constexpr int64_t kGroup = 256;               // work-items of a work-group
constexpr int64_t kBlocks = kGroup * 4 / 32;  // blocks that it takes in one turn
constexpr int64_t kMaxGroups = 1 << 16;  // keeps every id inside int; each group takes more turns

enum class Direction { kQuantize, kDequantize };

struct Compiled {
  sycl::context context;
  std::vector<sycl::kernel> kernels;  // by kernel_index

  explicit Compiled(const sycl::context& target) : context(target) {
    auto source = syclex::create_kernel_bundle_from_source(
        context, syclex::source_language::sycl, std::string(mxfp8_kernels_begin, mxfp8_kernels_end),
        syclex::properties{
            syclex::include_files{"mxfp8.h", std::string(mxfp8_header_begin, mxfp8_header_end)}});
    std::vector<std::string> options{"-std=c++17", "-fno-fast-math", "-ffp-contract=off"};
#if __LIBSYCL_MAJOR_VERSION < 9
    // The 2025 runtimes look for device libraries that their wheels do not hold.
    options.push_back("-fno-sycl-device-lib=all");
#endif
    auto bundle = syclex::build(source, syclex::properties{syclex::build_options{options}});
    for (const char* direction : {"quantize_", "dequantize_"}) {
      for (const char* type : kTypeNames) {
        for (const char* element : kElementNames) {
          kernels.push_back(
              bundle.ext_oneapi_get_kernel(std::string(direction) + type + "_" + element));
        }
      }
    }
  }

  sycl::kernel& kernel(Direction direction, int type, int element) {
    return kernels[(static_cast<int>(direction) * kTypes + type) * kElementTypes + element];
  }
};

Compiled& compiled_for(const sycl::context& context) {
  static std::mutex mutex;
  // Never destroyed: SYCL objects must not outlive the runtime, whose end is not ours to order. A
  // deque keeps its elements where they are.
  static auto& cache = *new std::deque<Compiled>();
  const std::lock_guard<std::mutex> lock(mutex);
  for (Compiled& known : cache) {
    if (known.context == context) return known;
  }
  return cache.emplace_back(context);
}

template <class... Arguments>
void launch(sycl::queue& queue, const sycl::kernel& kernel, int64_t tasks, Arguments... arguments) {
  const auto groups = static_cast<size_t>(std::min((tasks + kBlocks - 1) / kBlocks, kMaxGroups));
  [[maybe_unused]] sycl::event event = queue.submit([&](sycl::handler& handler) {
    handler.set_args(arguments...);
    handler.parallel_for(sycl::nd_range<1>(groups * kGroup, kGroup), kernel);
  });
#if defined(MXFP8_XPU_WAIT)  // for tensors whose memory is not freed in the order of the queue
  event.wait_and_throw();
#endif
}

int is_aligned(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

template <class Body>
const char* guarded(Body body) {
  static thread_local std::string message;
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "an exception of unknown type";
  }
  return message.c_str();
}

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

const char* mxfp8_xpu_prepare(void* queue) {
  return guarded([&] { compiled_for(static_cast<sycl::queue*>(queue)->get_context()); });
}

const char* mxfp8_xpu_quantize(void* queue, int input_type, int element_type, int mode, int layout,
                               const void* input, void* data, void* scale, int64_t batch,
                               int64_t rows, int64_t columns, int64_t padded_columns,
                               int64_t batch_stride, int64_t row_stride) {
  return guarded([&] {
    require(input_type >= 0 && input_type < kTypes && element_type >= 0 &&
                element_type < kElementTypes && mode >= 0 && mode < kModes && layout >= 0 &&
                layout < kLayouts,
            "an enumeration is out of range");
    require(padded_columns >= columns && padded_columns % mxfp8::kBlockSize == 0,
            "padded_columns must be a multiple of 32 that holds the columns");
    require(is_aligned(data, 4), "data must be aligned to 4 bytes");
    const auto scale_layout = static_cast<mxfp8::ScaleLayout>(layout);
    const int64_t blocks = padded_columns / mxfp8::kBlockSize;
    const int64_t grid_rows = mxfp8::round_up(rows, mxfp8::tile_rows(scale_layout));
    const int64_t grid_blocks = mxfp8::round_up(blocks, mxfp8::tile_columns(scale_layout));
    const int64_t tasks = batch * grid_rows * grid_blocks;
    if (tasks == 0) return;
    const int aligned = is_aligned(input, 4 * kTypeSizes[input_type]) && row_stride % 4 == 0 &&
                        batch_stride % 4 == 0;
    auto& target = *static_cast<sycl::queue*>(queue);
    Compiled& compiled = compiled_for(target.get_context());
    launch(target, compiled.kernel(Direction::kQuantize, input_type, element_type), tasks, input,
           data, scale, batch_stride, row_stride, rows, columns, blocks, grid_rows, grid_blocks,
           tasks, mode, layout, aligned);
  });
}

const char* mxfp8_xpu_dequantize(void* queue, int element_type, int output_type, int layout,
                                 const void* data, const void* scale, void* output, int64_t batch,
                                 int64_t rows, int64_t columns) {
  return guarded([&] {
    require(output_type >= 0 && output_type < kTypes && element_type >= 0 &&
                element_type < kElementTypes && layout >= 0 && layout < kLayouts,
            "an enumeration is out of range");
    require(columns % mxfp8::kBlockSize == 0, "columns must be a multiple of 32");
    require(is_aligned(output, 4 * kTypeSizes[output_type]),
            "output must be aligned to 4 elements");
    const auto scale_layout = static_cast<mxfp8::ScaleLayout>(layout);
    const int64_t blocks = columns / mxfp8::kBlockSize;
    const int64_t grid_rows = mxfp8::round_up(rows, mxfp8::tile_rows(scale_layout));
    const int64_t grid_blocks = mxfp8::round_up(blocks, mxfp8::tile_columns(scale_layout));
    const int64_t tasks = batch * rows * blocks;
    if (tasks == 0) return;
    auto& target = *static_cast<sycl::queue*>(queue);
    Compiled& compiled = compiled_for(target.get_context());
    launch(target, compiled.kernel(Direction::kDequantize, output_type, element_type), tasks, data,
           scale, output, rows, blocks, grid_rows, grid_blocks, tasks, layout, is_aligned(data, 4));
  });
}
