#include "columns.cuh"

namespace mxfp8::cuda {

template cudaError_t quantize_tiles<InputType::kBf16, ElementType::kE4m3>(const View&, ScalingMode,
                                                                          const Quantized*,
                                                                          const Quantized&,
                                                                          const Device&);
template cudaError_t quantize_tiles<InputType::kBf16, ElementType::kE5m2>(const View&, ScalingMode,
                                                                          const Quantized*,
                                                                          const Quantized&,
                                                                          const Device&);

}  // namespace mxfp8::cuda
