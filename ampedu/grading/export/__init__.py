"""From results to the files of Canvas, Moodle and Gradescope. What was not graded stays blank, never 0."""


class ExportError(ValueError):
    """An export cannot be made; the text names the file or column and the cure."""
