class ContentError(ValueError):
    """A mistake in the content, with the file and the line that hold it."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}")
        self.file, self.line = file, line
