"""What a run of several processes can end with."""


class DistributedError(RuntimeError):
    """A run did not end well; the message says which rank failed, where and how.

    rank: the rank that failed first, None where no rank is to blame. output: {rank: what it printed}.
    """

    def __init__(self, message: str, rank: int | None = None, output: dict[int, str] | None = None):
        super().__init__(message)
        self.rank = rank
        self.output = output or {}


class DistributedTimeout(DistributedError):
    """A run was stopped because it took too long; the message says where each rank was."""
