// The C entries of csrc/cpu behind pipes, to be built and run for other processors than this one.
//
// A request is numbers of 64 bits and bytes: operation, count of arguments and they, sizes of the
// inputs and of the outputs (four each, 0 where there is none), then the inputs. The answer is
// the outputs, which were filled with 0xFF; the program ends with 3 where bytes behind one changed.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
const char* mxfp8_cpu_isa();
void mxfp8_cpu_quantize_raw(const void*, int64_t, int64_t, int64_t, int64_t, int, int, int, int,
                            int64_t, uint8_t*, uint8_t*);
void mxfp8_cpu_quantize_both_raw(const void*, int64_t, int64_t, int64_t, int64_t, int, int, int,
                                 int, int, int64_t, int64_t, uint8_t*, uint8_t*, uint8_t*,
                                 uint8_t*);
void mxfp8_cpu_dequantize_raw(const uint8_t*, const uint8_t*, int64_t, int64_t, int, int, int,
                              void*);
void mxfp8_cpu_swizzle_raw(const uint8_t*, int64_t, int64_t, int64_t, int64_t, int, uint8_t*);
void mxfp8_cpu_unswizzle_raw(const uint8_t*, int64_t, int64_t, int, uint8_t*);
}

namespace {

constexpr size_t kBehind = 64;
constexpr int kBuffers = 4;

bool read(void* to, size_t size) { return std::fread(to, 1, size, stdin) == size; }

bool call(int64_t operation, const std::vector<int64_t>& a, std::vector<uint8_t>* in,
          std::vector<uint8_t>* out) {
  const auto i = [&a](size_t k) { return static_cast<int>(a.at(k)); };
  const auto o = [out](int k) { return out[k].data(); };
  switch (operation) {
    case 0:
      mxfp8_cpu_quantize_raw(in[0].data(), a.at(0), a.at(1), a.at(2), a.at(3), i(4), i(5), i(6),
                             i(7), a.at(8), o(0), o(1));
      return true;
    case 1:
      mxfp8_cpu_quantize_both_raw(in[0].data(), a.at(0), a.at(1), a.at(2), a.at(3), i(4), i(5),
                                  i(6), i(7), i(8), a.at(9), a.at(10), o(0), o(1), o(2), o(3));
      return true;
    case 2:
      mxfp8_cpu_dequantize_raw(in[0].data(), in[1].data(), a.at(0), a.at(1), i(2), i(3), i(4),
                               o(0));
      return true;
    case 3:
      mxfp8_cpu_swizzle_raw(in[0].data(), a.at(0), a.at(1), a.at(2), a.at(3), i(4), o(0));
      return true;
    case 4:
      mxfp8_cpu_unswizzle_raw(in[0].data(), a.at(0), a.at(1), i(2), o(0));
      return true;
  }
  return false;
}

}  // namespace

int main() {
  std::fprintf(stderr, "%s\n", mxfp8_cpu_isa());
  int64_t head[2];
  while (read(head, sizeof head)) {
    std::vector<int64_t> arguments(static_cast<size_t>(head[1]));
    int64_t sizes[2 * kBuffers];
    if (!read(arguments.data(), arguments.size() * 8) || !read(sizes, sizeof sizes)) return 2;
    std::vector<uint8_t> in[kBuffers], out[kBuffers];
    for (int k = 0; k < kBuffers; ++k) {
      in[k].resize(static_cast<size_t>(sizes[k]));
      out[k].assign(static_cast<size_t>(sizes[kBuffers + k]) + kBehind, 0xFF);
      if (!read(in[k].data(), in[k].size())) return 2;
    }
    if (!call(head[0], arguments, in, out)) return 2;
    for (const auto& buffer : out) {
      for (size_t k = buffer.size() - kBehind; k < buffer.size(); ++k) {
        if (buffer[k] != 0xFF) return 3;
      }
      std::fwrite(buffer.data(), 1, buffer.size() - kBehind, stdout);
    }
    std::fflush(stdout);
  }
  return 0;
}
