"""``mxfp8-ops verify`` passes here, and finds and names what is wrong."""

from __future__ import annotations

import json
import re

import pytest
import torch
from cases import CPU_BACKENDS, check_python

from mxfp8_ops import dispatch, reference, testing
from mxfp8_ops.backends import Backend
from mxfp8_ops.cli import main
from mxfp8_ops.errors import BackendUnavailableError
from mxfp8_ops.ops import OPERATIONS
from mxfp8_ops.verification import cases, compare, deviations, graphs, runner
from mxfp8_ops.verification.runner import Check
from mxfp8_ops.verification.subject import DISPATCHER, NotApplicable, Subject, subjects

CPU = torch.device("cpu")
ALL = runner.make_checks(quick=True)


@pytest.fixture
def few(monkeypatch):
    """Ragged shapes and strides only."""
    chosen = [c for c in ALL if c.name in ("shapes, alignment", "strides, offsets", "CUDA graphs")]
    monkeypatch.setattr(runner, "make_checks", lambda *args: chosen)


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Replace a launcher of the torch backend; reports go to a folder of the test."""
    monkeypatch.chdir(tmp_path)

    def replace(operation, launcher):
        monkeypatch.setitem(dispatch.BACKENDS["torch"].launchers, operation, launcher)

    return replace


def verify(*arguments):
    return main(["verify", "--device", "cpu", *arguments])


def test_every_backend_of_the_cpu_passes_and_the_report_is_complete(tmp_path, capsys):
    report = tmp_path / "report.json"
    assert verify("--quick", "--report", str(report)) == 0
    text = capsys.readouterr().out
    assert "no difference" in text
    record = json.loads(report.read_text())
    assert record["passed"] is True
    assert record["machine"]["torch"]["torch version"] == torch.__version__
    by_backend = {r["backend"] for r in record["results"]}
    assert by_backend == {*CPU_BACKENDS, DISPATCHER}
    for result in record["results"]:
        assert result["failed"] == 0
        if result["check"] != "CUDA graphs":
            assert result["done"] > 0, result
    assert all(r["blocks"] for r in record["results"] if r["check"] == "adversarial blocks")


def test_one_scale_byte_of_one_block_is_found_and_named(broken, few, capsys, tmp_path):
    def flip(input, **options):
        data, scale = reference.quantize(input, **options)
        if tuple(input.shape) == (130, 96) and options.get("scale_layout", "linear") == "linear":
            scale.view(torch.uint8)[77, 2] ^= 1
        return data, scale

    broken("quantize", flip)
    assert verify("--backend", "torch", "--backend", DISPATCHER) == 1
    text = capsys.readouterr().out
    assert "FAILED: cpu torch, shapes, alignment" in text
    assert "block 2 of row 77" in text
    expected, got = (re.search(rf"{w} scale: (..)", text)[1] for w in ("expected", "got"))
    assert int(expected, 16) ^ int(got, 16) == 1
    assert re.search(r"input bits: ([0-9a-f]{4} ){31}[0-9a-f]{4}\n", text)
    assert re.search(r"got data: ([0-9a-f]{2} ){31}[0-9a-f]{2}\n", text)
    assert "differing blocks: 1 of 390" in text
    record = json.loads((tmp_path / "mxfp8-ops-verify.json").read_text())
    failed = [r for r in record["results"] if r["failed"]]
    assert {(r["backend"], r["check"], r["failed"]) for r in failed} >= {
        ("torch", "shapes, alignment", 3)
    }
    assert failed[0]["failures"][0]["difference"]["what"] == "block 2 of row 77"


@pytest.mark.parametrize(
    "error", [RuntimeError("illegal instruction"), BackendUnavailableError("torch", "no compiler")]
)
def test_a_kernel_that_raises_is_a_failure_and_the_run_goes_on(broken, few, capsys, error):
    def fail(input, **options):
        if input.shape[-1] == 4096:
            raise error
        return reference.quantize(input, **options)

    broken("quantize", fail)
    assert verify("--backend", "torch", "--json") == 1
    record = json.loads(capsys.readouterr().out)
    results = {r["check"]: r for r in record["results"]}
    failure = results["shapes, alignment"]["failures"][0]
    assert type(error).__name__ in failure["exception"]
    assert str(error) in failure["exception"]
    assert any("in fail" in line for line in failure["traceback"])
    assert results["shapes, alignment"]["done"] > results["shapes, alignment"]["failed"] > 0
    assert results["strides, offsets"]["done"] > 0
    assert results["strides, offsets"]["failed"] == 0


@pytest.mark.parametrize(
    ("operation", "spoil", "words"),
    [
        ("quantize", lambda d, s: (d.view(torch.uint8), s), "dtype of result 0 is torch.uint8"),
        ("quantize", lambda d, s: (d, s[:-1]), "shape of result 1"),
        ("quantize", lambda d, s: (d.mT.contiguous().mT, s), "stride of result 0"),
        ("quantize", lambda d, s: (d, s, s), "3 results, expected 2"),
    ],
)
def test_wrong_shapes_types_and_strides_are_named(broken, operation, spoil, words):
    broken(operation, lambda x, **options: spoil(*reference.quantize(x, **options)))
    case = cases.Case("quantize", (torch.randn(7, 64),), {"scale_layout": "linear"})
    # As a kernel without fake or check would return it: straight from the launcher.
    backend = dispatch.BACKENDS["torch"]
    result = backend.launchers[operation](*case.arguments(CPU), **case.options)
    found = Subject(CPU, "torch").compare_result(case, result, case.expected, backend)
    assert words in found.difference.what


def test_an_unwritten_padding_byte_is_found():
    case = cases.Case("quantize", (torch.randn(3, 64),), {"scale_layout": "swizzled_8x4"})
    data, scale = (t.clone() for t in case.expected)
    scale.view(torch.uint8)[7, 3] = 0xFF
    backend = dispatch.BACKENDS["torch"]
    found = Subject(CPU, "torch").compare_result(case, (data, scale), case.expected, backend)
    assert "padding at (7, 3)" in found.difference.what


@pytest.mark.parametrize("operation", ["quantize_columnwise", "quantize_both"])
def test_a_block_of_the_transpose_is_named(broken, operation):
    x = torch.randn(64, 96)
    case = cases.Case(operation, (x,), {"scale_layout": "swizzled_32_4_4"})
    results = [t.clone() for t in case.expected]
    results[-2].view(torch.uint8)[95, 40] ^= 0x80
    backend = dispatch.BACKENDS["torch"]
    found = Subject(CPU, "torch").compare_result(case, results, case.expected, backend)
    assert found.difference.what == "block 1 of row 95 of the transposed input"
    expected = [f"{v:.9g}" for v in x[32:, 95].tolist()]
    assert found.difference.details["input"] == expected


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_a_wrong_number_of_dequantize_is_named(layout):
    data, scale = reference.quantize(torch.randn(130, 64), scale_layout=layout)
    case = cases.Case("dequantize", (data, scale), {"scale_layout": layout})
    values = case.expected[0].clone()
    values[99, 33] *= 2
    backend = dispatch.BACKENDS["torch"]
    found = Subject(CPU, "torch").compare_result(case, values, case.expected, backend)
    assert found.difference.what == "block 1 of row 99"
    linear = reference.quantize(torch.zeros(1, 32))[1]
    assert len(found.difference.details["input scale"]) == 2 * linear.element_size()


def test_every_deviating_backend_has_its_blocks_described():
    deviating = {b.name for b in dispatch.BACKENDS.values() if b.deviation}
    assert deviating == set(deviations.documented())


def test_documented_deviations_are_counted_and_others_fail(monkeypatch):
    x = testing.adversarial_blocks(torch.bfloat16, 64)
    values = x.float()
    amax = values.abs().amax(-1)
    flushed = (amax > 0) & (amax <= 448 * 2.0**-127)
    not_finite = ~values.isfinite().all(-1)
    case = cases.Case("quantize", (x,))
    data, scale = (t.clone() for t in case.expected)
    data.view(torch.uint8)[flushed] &= 0x80
    data.view(torch.uint8)[not_finite] = 0x7E
    backend = Backend("cute_dsl", (), {}, lambda device: None, deviation="as described")
    subject = Subject(CPU, DISPATCHER)
    found = subject.compare_result(case, (data, scale), case.expected, backend)
    assert found.difference is None
    assert 0 < found.deviating <= int((flushed | not_finite).sum())
    assert subject.compare_result(
        case, (data, scale), case.expected, dispatch.BACKENDS["torch"]
    ).difference
    ordinary = int((~flushed & ~not_finite & (amax > 0)).nonzero()[0])
    data.view(torch.uint8)[ordinary, 0] ^= 1
    found = subject.compare_result(case, (data, scale), case.expected, backend)
    assert found.difference.what == f"block 0 of row {ordinary}"


def test_xpu_vllm_may_floor_scales_and_nothing_else():
    values = torch.stack([torch.full((32,), v) for v in (0.0, 1e-3, 1.0, float("nan"))])
    scale = reference.quantize(values)[1].view(torch.uint8).flatten()
    allowed = deviations.may_differ("xpu_vllm", values, scale, torch.float8_e4m3fn)
    assert allowed.tolist() == [True, True, False, True]


def test_a_call_outside_a_backends_domain_is_skipped(monkeypatch):
    only_rceil = Backend(
        "cute_dsl",
        (),
        {"quantize": reference.quantize},
        lambda device: None,
        lambda operation, *args, **options: "only rceil" if "scaling_mode" in options else None,
    )
    monkeypatch.setitem(dispatch.BACKENDS, "cute_dsl", only_rceil)
    case = cases.Case("quantize", (torch.randn(2, 32),), {"scaling_mode": "floor"})
    subject = Subject(CPU, "cute_dsl")
    [result] = runner.run([subject], [Check("c", "", (case, case))], lambda step: None)
    assert result.done == 0
    assert list(result.skipped.values()) == [2]
    assert "only rceil" in next(iter(result.skipped))
    dequantize = cases.Case("dequantize", reference.quantize(torch.randn(2, 32)))
    [result] = runner.run([subject], [Check("c", "", (dequantize,))], lambda step: None)
    assert result.skipped == {"cute_dsl has no dequantize": 1}


def test_nothing_runs_on_a_device_that_is_lost():
    def lose(subject):
        raise torch.AcceleratorError("an illegal memory access was encountered")

    steps = (graphs.Step("a", lose), graphs.Step("b", lose))
    [result] = runner.run([Subject(CPU, "torch")], [Check("c", "", steps)], lambda step: None)
    assert (result.done, result.failed) == (1, 1)
    assert list(result.skipped.values()) == [1]


def test_unknown_free_memory_is_no_failure(monkeypatch):
    def refuse(device):
        raise RuntimeError("The device (Intel(R) Arc(TM) Graphics) doesn't support querying it")

    monkeypatch.setattr(torch.xpu, "mem_get_info", refuse)
    with pytest.raises(NotApplicable, match="free memory of xpu:0 is not known"):
        graphs._require_memory(torch.device("xpu", 0))


def test_without_a_compiler_torch_compile_is_not_run_and_the_reason_kept(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no C++ compiler")

    graphs.compile_error.cache_clear()
    monkeypatch.setattr(torch, "compile", fail)
    step = graphs.compile_step("linear", False, (7,))
    [result] = runner.run([Subject(CPU, "torch")], [Check("c", "", (step,))], lambda step: None)
    graphs.compile_error.cache_clear()
    assert "no C++ compiler" in next(iter(result.skipped))


def test_a_forced_backend_that_cannot_serve_is_a_reason(monkeypatch):
    monkeypatch.setattr(dispatch, "_routes", {})
    monkeypatch.setattr(dispatch, "SETTINGS", dispatch.Settings("cuda", False))
    found, left_out = subjects([CPU], [DISPATCHER])
    assert not found
    assert "cuda" in left_out[0][2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "cuda:99"], "cuda:99"),
        (["--device", "nonsense"], "got 'nonsense'"),
        (["--backend", "nonsense"], "must be one of cute_dsl, "),
        (["--seed", "-1"], "got -1"),
        (["--report", "/no/such/folder/r.json"], "existing folder"),
    ],
)
def test_wrong_arguments_are_2(arguments, words, capsys):
    assert main(["verify", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_named_backend_that_is_not_there_is_1(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert verify("--backend", "cuda") == 1
    text = capsys.readouterr().out
    assert "not available on any of the devices: cuda" in text
    assert "it runs on cuda tensors" in text


def test_checks_cover_every_operation_type_mode_and_layout():
    steps = [s for c in ALL for s in c.steps if isinstance(s, cases.Case)]
    assert {s.operation for s in steps} == set(OPERATIONS)
    fakes = {s.label.split()[2] for c in ALL for s in c.steps if s.label.startswith("fake of")}
    assert fakes == set(OPERATIONS)
    quantize = [s for s in steps if s.operation == "quantize" and "scaling_mode" in s.options]
    seen = {
        (
            s.tensors[0].dtype,
            s.options["dtype"],
            s.options["scaling_mode"],
            s.options["scale_layout"],
        )
        for s in quantize
        if "scale_layout" in s.options
    }
    assert len(seen) == 3 * 2 * 4 * 3
    for dtype in (torch.bfloat16, torch.float16):
        patterns = set()
        for case in cases.patterns(False, 0):
            if case.tensors[0].dtype == dtype:
                patterns |= set(case.tensors[0].view(torch.int16).flatten().tolist())
                break
        assert len(patterns) == 1 << 16


def test_hex_of_numbers_and_bytes():
    assert compare.hex_words(torch.tensor([-1.0, 0.0], dtype=torch.bfloat16)) == ["bf80", "0000"]
    assert compare.hex_words(torch.tensor([-1.0])) == ["bf800000"]
    assert compare.hex_bytes(torch.tensor([255, 0], dtype=torch.uint8)) == "ff 00"


def test_it_runs_with_torch_alone():
    output = check_python(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('rich', 'triton', 'matplotlib', 'numpy', 'safetensors'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from mxfp8_ops.verification import runner\n"
        "make = runner.make_checks\n"
        "runner.make_checks = lambda *a: [c for c in make(True) if c.name in\n"
        "                                 ('shapes, alignment', 'dequantize')]\n"
        "from mxfp8_ops.cli import main\n"
        "print(main(['verify', '--device', 'cpu', '--backend', 'torch']))\n"
    )
    assert "no difference" in output
    assert output.splitlines()[-1] == "0"
