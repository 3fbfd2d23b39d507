"""The one way to show a result: as IPython does where one of its shells runs, as plain text everywhere else."""

import sys


def in_ipython() -> bool:
    """Whether this code runs in an IPython shell."""
    module = sys.modules.get("IPython")
    return module is not None and module.get_ipython() is not None


def display(item) -> None:
    """Display an object in a notebook; print its repr elsewhere."""
    if in_ipython():
        from IPython.display import display as display_in_notebook

        display_in_notebook(item)
    else:
        print(item)


def display_bundle(data: dict, metadata: dict) -> None:
    """Display a dictionary of MIME types in a notebook; print its text/plain elsewhere."""
    if in_ipython():
        from IPython.display import display as display_in_notebook

        display_in_notebook(data, metadata=metadata, raw=True)
    else:
        print(data["text/plain"])
