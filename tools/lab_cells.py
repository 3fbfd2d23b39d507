"""The last two cells of every lab: how to keep and hand in the work, and a cell that saves and restores it.

Authors never write them. Solutions do not have them.
"""

from tools.percent import Cell

HAND_IN = """\
## Keep your work and hand it in

**Keep it.** In JupyterLab and VS Code, *Ctrl+S* is enough. Colab forgets everything when it disconnects. Choose *save
to Drive* or *download* in the cell below, and run it. Next time, open the lab in the folder `ampedu` of your Drive
(*File → Open notebook → Google Drive*), run the first code cell, and choose *restore from Drive*: your progress is
back. From a zip, *upload* does it. Nothing is overwritten; earlier versions stay as numbered copies.

**Hand it in.** Hand in one file, this notebook, under the name `{stem}.ipynb`. If it is called
`Copy of {stem}.ipynb` or `{stem} (1).ipynb`, rename it. Leave the check cells as they are.

- JupyterLab: *Ctrl+S*; then right-click the file in the file browser → *Download*. After `make learn`, it is
  `work/labs/{stem}.ipynb` in the folder of the course.
- Colab: *File → Download → Download .ipynb*."""

# The form field has a name that no lab uses: a check takes the last assignment of every name that an answer needs.
KEEP = """\
# @title Keep your work: choose, then run this cell. It does nothing until you choose.
keep_my_work = "nothing"  # @param ["nothing", "save to Drive", "download", "restore from Drive", "upload"]
if keep_my_work != "nothing":
    from ampedu.keep import keep

    keep("{stem}", keep_my_work)"""


def closing(stem: str) -> list[Cell]:
    """The last two cells of the lab `stem`."""
    return [Cell("markdown", HAND_IN.format(stem=stem), 0), Cell("code", KEEP.format(stem=stem), 0, ("setup",))]
