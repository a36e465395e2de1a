from typing_extensions import Buffer

def divide(
    payload: Buffer, output_max: int, frames_max: int
) -> list[tuple[int, bool]] | None: ...
