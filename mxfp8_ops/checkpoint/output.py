"""Where a conversion writes, and what it remembers until it is complete."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .plan import Plan
from .report import TensorReport
from .source import INDEX_SUFFIX, QUANTIZED_MARK
from .writer import describe, partial_path, replace_file

REPORT = "mxfp8_report.json"


@dataclass(frozen=True)
class Output:
    """A file or folder in the making.

    Attributes:
        output: what the user named.
        root: the folder of the files.
        report: the report, which exists once the conversion is complete.
        state: folder with a record for each finished file; removed in the end.
        plan: the conversion.
    """

    output: Path
    root: Path
    report: Path
    state: Path
    plan: Plan

    @classmethod
    def of(cls, plan: Plan, output: Path) -> Output:
        """Refuse an output that would touch the input."""
        here, there = plan.path.resolve(), output.resolve()
        if here == there or there.is_relative_to(here) or here.is_relative_to(there):
            raise CheckpointError(
                f"the output {output} must be neither the input {plan.path} nor inside it nor around it"
            )
        if plan.source.config is not None:
            if there.is_file():
                raise CheckpointError(f"{output} is a file; the result of a folder is a folder")
            for name in (*plan.source.files, *plan.source.others):
                if (plan.source.root / name).resolve().is_relative_to(there):
                    raise CheckpointError(
                        f"{plan.source.root / name} is a link into the output {output}, "
                        "which would replace it"
                    )
            return cls(there, there, there / REPORT, there / ".mxfp8_ops", plan)
        if there.is_dir() or there.suffix != ".safetensors":
            raise CheckpointError(
                f"the result of a file is a file: the output must end in .safetensors, got {output}"
            )
        report = there.with_name(f"{there.stem}.{REPORT}")
        return cls(there, there.parent, report, there.with_name(f".{there.name}.mxfp8_ops"), plan)

    def path(self, file: str) -> Path:
        """Where the converted ``file`` goes."""
        return self.root / file if self.plan.source.config is not None else self.output

    def prepare(self, overwrite: bool) -> dict[str, Any] | None:
        """Make the folders; the report where everything is there already, as of this conversion."""
        finished = None if overwrite else self.finished()
        if finished is not None:
            return finished
        is_folder = self.plan.source.config is not None
        used = (
            any(self.root.iterdir()) if is_folder and self.root.is_dir() else self.output.exists()
        )
        try:
            if overwrite:
                self._remove_former()
                shutil.rmtree(self.state, ignore_errors=True)
                self.report.unlink(missing_ok=True)
            elif used and not self.state.is_dir():
                raise CheckpointError(
                    f"{self.output} exists and is not an unfinished conversion of {self.plan.path} with "
                    "these options; --overwrite replaces it"
                )
            self.state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.output} cannot be written: {describe(error)}") from None
        for file in self.plan.source.files:
            self.state_of(file)  # refuses what belongs to another conversion
        return None

    def _written(self) -> set[str]:
        """Names of all files of the result, but for the report."""
        source = self.plan.source
        if source.config is None:
            return {self.output.name}
        names = {*source.files, *source.others, "config.json", *self.plan.target.other_files(())}
        return names | ({source.index} if source.index is not None else set())

    def _remove_former(self) -> None:
        """Remove weights of an earlier conversion that this one does not replace.

        Engines would read them together with the new ones. Weights that no record names are an error.
        """
        if self.plan.source.config is None or not self.root.is_dir():
            return
        former = {p.name.removesuffix(".json") for p in self.state.glob("*.json")}
        if self.report.exists():
            # A report that cannot be read names nothing, but the folder is one of ours.
            former |= {QUANTIZED_MARK, *(p.name for p in self.root.glob(f"*{INDEX_SUFFIX}"))}
            with contextlib.suppress(CheckpointError):
                former |= {str(row["file"]) for row in self.read_report()["tensors"]}
        remaining = sorted(
            p
            for p in self.root.iterdir()
            if p.name.endswith((".safetensors", INDEX_SUFFIX, QUANTIZED_MARK))
            and p.name not in self._written()
        )
        for path in remaining:
            if path.name not in former:
                raise CheckpointError(
                    f"{path} is not of an earlier conversion, and engines would read it together with "
                    "the result; remove it or choose another output"
                )
        for path in remaining:
            path.unlink()

    def finished(self) -> dict[str, Any] | None:
        """The report, if it is of this very conversion and all its files are there and whole."""
        if not self.report.exists():
            return None
        report = self.read_report()
        if report["fingerprint"] != self.plan.fingerprint():
            return None
        whole = all(_size(self.path(f)) == report["sizes"].get(f) for f in self.plan.source.files)
        return report if whole and all((self.root / n).exists() for n in self._written()) else None

    def sizes(self) -> dict[str, int | None]:
        """Bytes of each file of tensors."""
        return {file: _size(self.path(file)) for file in self.plan.source.files}

    def read_report(self) -> dict[str, Any]:
        """The report of the complete conversion."""
        return read_report(self.report)

    def _record(self, file: str) -> Path:
        return self.state / f"{file}.json"

    def state_of(self, file: str) -> list[TensorReport] | None:
        """What was reported of a file, None where it is not finished."""
        record = self._record(file)
        try:
            content = json.loads(record.read_text())
            fingerprint, size = content["fingerprint"], content["size"]
            rows = [TensorReport(**row) for row in content["tensors"]]
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or damaged: done again
            return None
        if fingerprint != self.plan.fingerprint():
            raise CheckpointError(
                f"{self.output} holds an unfinished conversion of other files or with other options; "
                "--overwrite starts again"
            )
        return rows if _size(self.path(file)) == size else None

    def rows_of(self, file: str) -> list[TensorReport]:
        """What was reported of a finished file."""
        rows = self.state_of(file)
        if rows is None:
            raise CheckpointError(f"{self.path(file)} has disappeared during the conversion")
        return rows

    def set_state(self, file: str, rows: list[TensorReport]) -> None:
        """Remember that a file is finished."""
        content = {
            "fingerprint": self.plan.fingerprint(),
            "size": _size(self.path(file)),
            "tensors": [asdict(row) for row in rows],
        }
        replace_file(self._record(file), json.dumps(content).encode())

    def forget_state(self) -> None:
        """Remove what only an unfinished conversion needs."""
        shutil.rmtree(self.state, ignore_errors=True)
        for file in self.plan.source.files:
            partial_path(self.path(file)).unlink(missing_ok=True)


def read_report(path: Path) -> dict[str, Any]:
    """A report that ``convert`` wrote."""
    try:
        report = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist: this is no finished conversion of mxfp8_ops"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    kinds = {"source": str, "fingerprint": dict, "sizes": dict, "tensors": list}
    for key, kind in kinds.items():
        if not isinstance(report, dict) or not isinstance(report.get(key), kind):
            raise CheckpointError(f"{path} is no report of mxfp8_ops: it has no {key!r}")
    return report


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
