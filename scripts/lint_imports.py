"""Checks the floors of the package: a file imports only from lower floors, optional packages lazily.

    python scripts/lint_imports.py [PACKAGE_DIRECTORY]

Backends never import one another. Packages that may be missing are imported inside functions only,
but for packages and files named ``*_kernels``, which are themselves imported on first use.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# First matching prefix decides; names are relative to the package.
FLOORS = (
    ("_version", 0),
    ("_copies", 0),
    ("_vmap", 0),
    ("formats", 0),
    ("errors", 0),
    ("reference", 1),
    ("platform", 1),
    ("native", 1),
    ("testing", 1),
    ("ops", 2),
    ("backends", 3),
    ("dispatch", 4),
    ("", 5),
)
OPTIONAL = {
    "compressed_tensors",
    "cutlass",
    "flashinfer",
    "intel_extension_for_pytorch",
    "matplotlib",
    "rich",
    "safetensors",
    "sglang",
    "torchao",
    "triton",
    "vllm",
    "vllm_xpu_kernels",
}
PACKAGE = "mxfp8_ops"


def floor(module: str) -> int:
    return next(
        level
        for prefix, level in FLOORS
        if not prefix or module == prefix or module.startswith(prefix + ".")
    )


def module_name(path: Path, package: Path) -> str:
    parts = list(path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Absolute names that an import statement of ``module`` refers to."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            here = [PACKAGE, *module.split(".")] if module else [PACKAGE]
            here = here if is_package else here[:-1]
            here = here[: len(here) - node.level + 1]
            base = ".".join([*here, base] if base else here)
        yield from (f"{base}.{alias.name}" for alias in node.names)


def is_sibling(module: str, target: str) -> bool:
    """Whether they belong to different backends; files of one backend share their first word."""
    if not (module.startswith("backends.") and target.startswith("backends.")):
        return False
    first, second = (name.split(".")[1].split("_")[0] for name in (module, target))
    return first != second


def problems(package: Path) -> list[str]:
    modules = {module_name(p, package): p for p in package.rglob("*.py")}
    found = []
    for module, path in sorted(modules.items()):
        tree = ast.parse(path.read_text(), str(path))
        top_level = {id(n) for n in tree.body}
        for node in ast.walk(tree):
            for name in imported(node, module, path.name == "__init__.py"):
                where = f"{path}:{node.lineno}"
                root, _, rest = name.partition(".")
                lazy = id(node) not in top_level
                if root in OPTIONAL and not lazy and "_kernels" not in module:
                    found.append(f"{where}: {root} may be missing; import it inside a function")
                if root != PACKAGE:
                    continue
                target = rest if rest in modules else rest.rpartition(".")[0]
                if target in ("", module) or module == "":
                    continue
                if floor(target) > floor(module):
                    found.append(f"{where}: {module} imports {target} from a higher floor")
                if is_sibling(module, target):
                    found.append(f"{where}: backend {module} imports its sibling {target}")
    return found


def main() -> int:
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / PACKAGE
    found = problems(package)
    print("\n".join(found) or f"imports of {package.name} keep to their floors")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
