"""The exception of checkpoint conversion."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, converted or written; the text names the file and what to do."""
