"""A papermill engine that cannot deadlock on widget cells: `papermill --engine ampedu`.

Imported only where papermill is.
"""

from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine
from papermill.log import logger
from papermill.utils import merge_kwargs, remove_args


class Engine(NBClientEngine):
    """papermill's own engine, without nbclient's imitation of the front end's Output widget.

    nbclient sends on the shell channel while another task waits for a reply on the same socket; now and then the
    wake-up is lost and the run hangs for good, whatever its timeouts. With an empty registry of widgets it never sends,
    and what is drawn inside `interact` lands in the cell's outputs, where readers without a kernel see it.
    """

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man,
        kernel_name,
        log_output=False,
        stdout_file=None,
        stderr_file=None,
        start_timeout=60,
        execution_timeout=None,
        **kwargs,
    ):
        """Execute the notebook of `nb_man`; timeouts are in seconds, `execution_timeout` is per cell (default 600)."""
        kwargs = remove_args(["input_path", "timeout", "startup_timeout"], **kwargs)
        settings = merge_kwargs(
            kwargs,
            timeout=execution_timeout or 600,
            startup_timeout=start_timeout,
            kernel_name=kernel_name,
            log=logger,
            log_output=log_output,
            stdout_file=stdout_file,
            stderr_file=stderr_file,
        )
        client = PapermillNotebookClient(nb_man, **settings)
        client.widget_registry = {}  # the constructor ignores this argument
        return client.execute()
