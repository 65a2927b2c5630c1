"""The GPU backends give the reference's bytes on a real device, eager, in graphs and compiled."""

import pytest
import torch
from cases import run_python

import mxfp8_ops
from mxfp8_ops import dispatch, formats, ops, reference, testing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA or ROCm device"),
]

LAYOUTS = tuple(formats.SCALE_LAYOUTS)
ELEMENTS = tuple(formats.ELEMENT_FORMATS)


@pytest.fixture(params=["triton", "cuda"])
def backend(request):
    device = torch.device("cuda", torch.cuda.current_device())
    reason = dispatch.unavailable_reason(dispatch.BACKENDS[request.param], device)
    if reason is not None:
        pytest.skip(f"{request.param}: {reason}")
    return request.param


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Outputs of backends that allocate in Python start as 0xFF; the caching allocator's do too."""
    allocate = ops.allocate_quantized

    def allocate_poisoned(*args):
        outputs = allocate(*args)
        if not torch.compiler.is_compiling():
            for output in outputs:
                if output.device.type == "cuda":
                    output.view(torch.uint8).fill_(0xFF)
        return outputs

    monkeypatch.setattr(ops, "allocate_quantized", allocate_poisoned)
    if torch.cuda.is_available():
        torch.full((1 << 26,), 0xFF, dtype=torch.uint8, device="cuda")


def op(name, backend):
    if name not in dispatch.BACKENDS[backend].launchers:
        pytest.skip(f"{backend} has no {name}")
    return ops.OPERATIONS[name].op(backend)


@pytest.mark.parametrize("scaling_mode", formats.SCALING_MODES)
@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("input_dtype", formats.INPUT_DTYPES)
def test_adversarial_blocks(backend, input_dtype, dtype, scaling_mode):
    x = testing.adversarial_blocks(input_dtype, random=1 << 15)
    if input_dtype != torch.float32:
        x = torch.cat([x, testing.all_patterns_as_maxima(input_dtype)])
    x = x[: x.shape[0] // 4 * 4].reshape(-1, 128)
    options = {"dtype": dtype, "scaling_mode": scaling_mode}
    for layout in LAYOUTS:
        expected = reference.quantize(x, scale_layout=layout, **options)
        actual = op("quantize", backend)(x.cuda(), scale_layout=layout, **options)
        testing.assert_same_bytes(actual, expected, f"CPU reference, {layout}")
    on_gpu = reference.quantize(x.cuda(), scale_layout=layout, **options)
    testing.assert_same_bytes(actual, on_gpu, "reference on the GPU")


def test_none_for_a_tensor(backend):
    data, scale = reference.quantize(torch.zeros(2, 32, device="cuda"))
    for name, pair in (("data", (None, scale)), ("scale", (data, None))):
        with pytest.raises(ValueError, match=f"{name} must be a torch.Tensor, got None"):
            op("dequantize", backend)(*pair)


def inputs():
    generator = torch.Generator().manual_seed(0)

    def make(*shape):
        x = torch.randn(shape, generator=generator) * 100
        x.view(-1)[:: 37 * 32] = float("nan")
        return x.cuda()

    yield make(130, 96), None
    yield make(1, 4096), None
    yield make(96), None
    yield make(3, 40), 128
    yield make(33), 64
    yield make(2, 3, 150, 64), None
    yield make(2, 9, 72), 32
    yield make(300, 256)[:, 64:160], None
    yield make(10, 99)[:, 1:97], None
    yield make(6 * 64 + 3)[3:].view(6, 64), None
    yield make(6, 128)[:, ::2], None
    yield make(64, 32).t(), None
    yield make(1, 64).expand(5, 64), None
    yield make(3, 8, 64)[:, 1:6], None
    yield make(2, 3, 4, 32).transpose(0, 1), None
    yield make(257, 2880), None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("input_dtype", formats.INPUT_DTYPES)
def test_shapes_strides_and_padding(backend, input_dtype, layout):
    for values, alignment in inputs():
        x = values.to(input_dtype)  # keeps the strides of dense tensors only
        for candidate in (x, values) if input_dtype == torch.float32 else (x,):
            options = {"scale_layout": layout, "alignment": alignment}
            expected = reference.quantize(candidate.cpu(), **options)
            actual = op("quantize", backend)(candidate, **options)
            testing.assert_same_bytes(actual, expected, f"{tuple(x.shape)} {candidate.stride()}")


@pytest.mark.parametrize("shape", [(256, 320), (10, 128), (2, 3, 64, 96)])
def test_strided_16_bit_rows(backend, shape):
    wide = torch.randn(*shape[:-1], shape[-1] + 40).to("cuda", torch.bfloat16)
    for start in (0, 8, 3):
        x = wide[..., start : start + shape[-1]]
        for layout in LAYOUTS:
            actual = op("quantize", backend)(x, scale_layout=layout)
            testing.assert_same_bytes(
                actual, reference.quantize(x.cpu(), scale_layout=layout), f"{start} {layout}"
            )


@pytest.mark.parametrize("scaling_mode", formats.SCALING_MODES)
@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("input_dtype", formats.INPUT_DTYPES)
def test_columnwise_and_both(backend, input_dtype, dtype, scaling_mode):
    x = testing.adversarial_blocks(input_dtype, random=1 << 10)
    x = x[:1920].reshape(-1, 192)
    options = {"dtype": dtype, "scaling_mode": scaling_mode}
    expected = reference.quantize_both(x, **options)
    testing.assert_same_bytes(op("quantize_both", backend)(x.cuda(), **options), expected)
    actual = op("quantize_columnwise", backend)(x.cuda(), **options)
    testing.assert_same_bytes(actual, expected[2:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columnwise_shapes(backend, layout):
    for values, alignment in inputs():
        if values.dim() < 2:
            continue
        x = values.to(torch.bfloat16)
        options = {"scale_layout": layout, "alignment": alignment or 32}
        expected = reference.quantize_both(x.cpu(), scale_layout_t="swizzled_32_4_4", **options)
        actual = op("quantize_both", backend)(x, scale_layout_t="swizzled_32_4_4", **options)
        testing.assert_same_bytes(actual, expected, f"both {tuple(x.shape)}")
        expected = reference.quantize_columnwise(x.cpu(), **options)
        actual = op("quantize_columnwise", backend)(x, **options)
        testing.assert_same_bytes(actual, expected, f"columnwise {tuple(x.shape)}")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", formats.OUTPUT_DTYPES)
@pytest.mark.parametrize("element", ELEMENTS)
def test_dequantize_every_byte_and_code(backend, element, dtype, layout):
    byte = torch.arange(256, dtype=torch.uint8).reshape(256, 1).repeat(1, 8)
    data = torch.arange(256, dtype=torch.uint8).repeat(256, 1).view(element)
    scale = reference.swizzle_scale(byte.view(formats.SCALE_DTYPE), layout)
    options = {"dtype": dtype, "scale_layout": layout}
    actual = op("dequantize", backend)(data.cuda(), scale.cuda(), **options)
    testing.assert_same_bytes(actual, reference.dequantize(data, scale, **options))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cuda_graph_replays_with_changed_input(backend, layout):
    call = op("quantize", backend)
    x = torch.randn(200, 512, device="cuda", dtype=torch.bfloat16)
    call(x, scale_layout=layout)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call(x, scale_layout=layout)
    for seed in range(3):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        for output in outputs:
            output.view(torch.uint8).fill_(0xFF)
        graph.replay()
        torch.cuda.synchronize()
        expected = reference.quantize(x.cpu(), scale_layout=layout)
        testing.assert_same_bytes(outputs, expected, f"replay {seed}")


def test_side_stream(backend):
    stream = torch.cuda.Stream()
    x = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a launch on another stream would read x before this fill
        x.fill_(3.5)
        actual = op("quantize", backend)(x)
    stream.synchronize()
    testing.assert_same_bytes(actual, reference.quantize(x.cpu()))


def test_no_host_synchronisation(backend):
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
    call, back = op("quantize", backend), op("dequantize", backend)
    back(*call(x))
    torch.cuda.set_sync_debug_mode("error")
    try:
        back(*call(x))
        op("quantize_both", backend)(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune"])
def test_inductor(backend, mode):
    call, back = op("quantize", backend), op("dequantize", backend)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, mode=mode)
    def compiled(x):
        data, scale = call(x * 2, scale_layout="swizzled_32_4_4")
        return data, scale, back(data, scale, scale_layout="swizzled_32_4_4") + 1

    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(96, 128, generator=generator).to("cuda", torch.bfloat16)
        data, scale, y = (t.clone() for t in compiled(x))
        expected = reference.quantize((x * 2).cpu(), scale_layout="swizzled_32_4_4")
        testing.assert_same_bytes((data, scale), expected, f"mode {mode}")
        restored = reference.dequantize(*expected, scale_layout="swizzled_32_4_4")
        assert torch.equal(y.cpu(), restored + 1)


def test_inductor_with_dynamic_shapes(backend):
    call = op("quantize", backend)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: call(x.relu()), fullgraph=True, dynamic=True)
    for rows in (3, 64, 130):
        x = torch.randn(rows, 160, device="cuda", dtype=torch.bfloat16)
        testing.assert_same_bytes(compiled(x), reference.quantize(x.relu().cpu()))


def test_inductor_graph_consumes_scales(backend):
    call = op("quantize", backend)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, mode="reduce-overhead")
    def compiled(x):
        data, scale = call(x)
        return data, scale.view(torch.uint8).to(torch.int32) + 1

    for _ in range(3):
        x = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
        data, exponents = (t.clone() for t in compiled(x))
        expected = reference.quantize(x.cpu())
        testing.assert_same_bytes(data, expected[0])
        assert torch.equal(exponents.cpu(), expected[1].view(torch.uint8).int() + 1)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device_leaves_the_current_one(backend):
    x = torch.randn(64, 256, device="cuda:1", dtype=torch.bfloat16)
    actual = op("quantize", backend)(x)
    assert torch.cuda.current_device() == 0
    assert all(t.device == x.device for t in actual)
    testing.assert_same_bytes(actual, reference.quantize(x.cpu()))


def test_more_than_2_31_elements(backend):
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of free device memory")
    x = torch.zeros((1 << 16) + 8, 1 << 15, device="cuda", dtype=torch.bfloat16)
    tail = torch.randn(8, 1 << 15).bfloat16()
    x[-8:].copy_(tail)
    data, scale = op("quantize", backend)(x)
    expected = reference.quantize(tail)
    testing.assert_same_bytes((data[-8:].clone(), scale[-8:].clone()), expected)
    del data, scale
    _, swizzled = op("quantize", backend)(x, scale_layout="swizzled_8x4")
    swizzled_tail = reference.swizzle_scale(expected[1], "swizzled_8x4")
    testing.assert_same_bytes(swizzled[-8:].clone(), swizzled_tail)


def test_more_than_2_27_rows(backend):
    """A row is a warp's work: the number of the last thread is past 2**32."""
    if torch.cuda.mem_get_info()[0] < 32 << 30:
        pytest.skip("needs 32 GiB of free device memory")
    rows = (1 << 27) + 8
    x = torch.zeros(rows, 1, device="cuda", dtype=torch.bfloat16)
    tail = torch.randn(8, 1).bfloat16()
    x[-8:].copy_(tail)
    data, scale = op("quantize", backend)(x, alignment=32)
    expected = reference.quantize(tail, alignment=32)
    testing.assert_same_bytes((data[-8:].clone(), scale[-8:].clone()), expected)
    wide = data.view(torch.uint8).new_zeros(rows, 64)[:, :32].view(torch.float8_e4m3fn)
    wide.view(torch.uint8)[-8:] = data.view(torch.uint8)[-8:]
    restored = op("dequantize", backend)(wide, scale)
    assert torch.equal(restored[-8:].cpu(), reference.dequantize(*expected))


def test_the_first_call_may_be_captured(backend):
    if backend != "cuda":
        pytest.skip(f"{backend} compiles on its first call")
    done = run_python("""
import torch
from mxfp8_ops import reference, testing
x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    pair = torch.ops.mxfp8.quantize_cuda(x)
    back = torch.ops.mxfp8.dequantize_cuda(*pair)
    four = torch.ops.mxfp8.quantize_both_cuda(x)
graph.replay()
expected = reference.quantize(x.cpu())
testing.assert_same_bytes(pair, expected)
testing.assert_same_bytes(four, reference.quantize_both(x.cpu()))
assert torch.equal(back.cpu(), reference.dequantize(*expected))
""")
    assert done.returncode == 0, done.stderr


def test_dispatcher_serves_the_same_bytes():
    x = torch.randn(130, 256, device="cuda", dtype=torch.bfloat16)
    for layout in LAYOUTS:
        actual = mxfp8_ops.quantize(x, scale_layout=layout)
        testing.assert_same_bytes(actual, reference.quantize(x.cpu(), scale_layout=layout))


def test_triton_warmup_covers_capture(backend):
    if backend != "triton":
        pytest.skip("warmup compiles Triton kernels")
    from mxfp8_ops.backends import triton

    triton.warmup(scale_layouts=("linear",))
    x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = op("quantize", backend)(x)
    graph.replay()
    testing.assert_same_bytes(outputs, reference.quantize(x.cpu()))
