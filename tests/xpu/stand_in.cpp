// Intel's OpenCL CPU device in the place of an Intel GPU: a queue on it, and the torch function
// that returns the current XPU queue, which a CPU build of torch lacks.
#include <cstdint>
#include <sycl/sycl.hpp>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* stand_in_queue() {
  static auto& queue = *new sycl::queue(sycl::cpu_selector_v, sycl::property::queue::in_order{});
  return &queue;
}

// Another context on the same device.
EXPORT void* stand_in_new_queue() {
  const sycl::device device(sycl::cpu_selector_v);
  return new sycl::queue(sycl::context(device), device, sycl::property::queue::in_order{});
}

EXPORT void stand_in_wait(void* queue) { static_cast<sycl::queue*>(queue)->wait_and_throw(); }

EXPORT int stand_in_reads_host_memory() {
  return static_cast<sycl::queue*>(stand_in_queue())
      ->get_device()
      .has(sycl::aspect::usm_system_allocations);
}

EXPORT int32_t aoti_torch_get_current_xpu_stream(int32_t, void** queue) {
  *queue = stand_in_queue();
  return 0;
}
