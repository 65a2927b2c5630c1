"""Spreading files over the processes of torchrun."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from .errors import CheckpointError

# The slowest rank's files may take hours longer than the fastest one's.
_PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Group:
    """The processes that convert together; one alone is rank 0 of 1."""

    rank: int
    size: int

    def share(self, files: Sequence[str]) -> list[str]:
        """The files of this rank."""
        return list(files[self.rank :: self.size])

    def barrier(self) -> None:
        """Wait for all ranks; CheckpointError where one of them has gone."""
        if self.size > 1:
            import torch.distributed

            try:
                torch.distributed.barrier()
            except RuntimeError:  # the connection to a process that gave up
                raise CheckpointError(
                    f"rank {self.rank} stops because another rank has failed; its message says why"
                ) from None


def is_first() -> bool:
    """Whether this process is the one that talks to the user."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def joined() -> Iterator[Group]:
    """The group that torchrun's environment describes."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Group(0, 1)
        return
    import torch.distributed

    started = not torch.distributed.is_initialized()
    if started:
        try:
            torch.distributed.init_process_group("gloo", timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"WORLD_SIZE is {size}, but the ranks do not find one another: {error}"
            ) from None
    try:
        yield Group(torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        if started:
            torch.distributed.destroy_process_group()
