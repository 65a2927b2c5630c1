"""Where a conversion writes, and what it remembers until it is complete."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .plan import Plan
from .report import TensorReport
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
        finished = self.finished()
        if finished is not None and not overwrite:
            return finished
        is_folder = self.plan.source.config is not None
        used = (
            any(self.root.iterdir()) if is_folder and self.root.is_dir() else self.output.exists()
        )
        try:
            if overwrite:
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

    def finished(self) -> dict[str, Any] | None:
        """The report, if it is of this very conversion and all its files are there."""
        if not self.report.exists() or not all(
            self.path(f).exists() for f in self.plan.source.files
        ):
            return None
        report = self.read_report()
        return report if report.get("fingerprint") == self.plan.fingerprint() else None

    def read_report(self) -> dict[str, Any]:
        """The report of the complete conversion."""
        return read_report(self.report)

    def _record(self, file: str) -> Path:
        return self.state / f"{file}.json"

    def state_of(self, file: str) -> list[TensorReport] | None:
        """What was reported of a file, None where it is not finished."""
        record = self._record(file)
        if not record.exists() or not self.path(file).exists():
            return None
        try:
            content = json.loads(record.read_text())
        except (OSError, ValueError):
            return None
        if content["fingerprint"] != self.plan.fingerprint():
            raise CheckpointError(
                f"{self.output} holds an unfinished conversion of other files or with other options; "
                "--overwrite starts again"
            )
        return [TensorReport(**row) for row in content["tensors"]]

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
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist: this is no finished conversion of mxfp8_ops"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
