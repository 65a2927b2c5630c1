"""Drop-ins for the MXFP8 functions that serving engines call today.

One module per consumer, named after it: ``vllm``, ``sglang`` and ``flashinfer``. Each function has the
name, the signature and the return conventions of the one it stands for, and calls ``torch.ops.mxfp8``:
it runs on every device, traces under ``torch.compile(fullgraph=True)``, and has an exact fake. None of
the modules imports the package it is named after.

Common to all of them:

- Bytes are those of docs/numerics.md, so they are the originals' on ordinary finite data. Where the
  originals differ from one another (zero blocks, tiny blocks, NaN, infinity) they follow that page;
  docs/migrating.md lists what changes.
- Scale bytes come as ``torch.uint8``, except from ``vllm.xpu_mxfp8_quantize``. Where scales are an
  argument, ``torch.uint8`` and ``torch.float8_e8m0fnu`` both mean bytes; values are never converted.
- K must be a multiple of 32, as in the originals; a larger ``alignment`` pads from there.
- ``M = 0`` gives empty results. Any strides are accepted, results are contiguous.
- Arguments that choose a kernel of another library are accepted and choose nothing here.
- Bad input raises ``ValueError`` or ``TypeError`` with what was wrong and what is allowed.

Inductor has no CPU code for a view of ``float8_e8m0fnu``: a graph compiled for the CPU may return the
bytes or pass them to an op, but not do arithmetic on them.
"""
