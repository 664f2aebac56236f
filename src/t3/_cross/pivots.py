"""Pivots of one cut of the modes in two, and the cross interpolation that they make.

Cutting the modes in two sides turns a tensor into a matrix whose rows are indices of one side and
whose columns are indices of the other. With r pivot rows I and columns J,

    f(a, b)  is about  f(a, J) f(I, J)^-1 f(I, b),

exact where a is in I or b in J. A pivot is added where the residual of this is large among the
rows and columns looked at, which is Gaussian elimination with (partial) complete pivoting.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Cut:
    """The pivots of one cut.

    Attributes:
        side: of each mode, whether it is among the rows' modes.
        rows: ``(r, d)`` indices of which the rows' modes count.
        columns: ``(r, d)`` indices of which the other modes count.
    """

    side: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    @property
    def rank(self) -> int:
        return len(self.rows)

    def pairs(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Full indices of every row with every column, ``(rows * columns, d)``."""
        joined = np.where(self.side, rows[:, None], columns[None])
        return joined.reshape(-1, len(self.side))

    def add(self, rows: np.ndarray, columns: np.ndarray) -> None:
        self.rows = np.concatenate([self.rows, np.where(self.side, rows, 0)])
        self.columns = np.concatenate([self.columns, np.where(self.side, 0, columns)])


def product(first: np.ndarray, mode: int, values: np.ndarray) -> np.ndarray:
    """Every index of `first` with every value of one mode, ``(len(first) * len(values), d)``."""
    joined = np.repeat(first, len(values), axis=0)
    joined[:, mode] = np.tile(values, len(first))
    return joined


def without(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The rows that are not among the known ones, each once."""
    seen = {row.tobytes() for row in np.ascontiguousarray(known)}
    keep = []
    for number, row in enumerate(np.ascontiguousarray(rows)):
        word = row.tobytes()
        if word not in seen:
            seen.add(word)
            keep.append(number)
    return rows[keep]


def eliminate(matrix: np.ndarray, most: int, threshold: float) -> tuple[list[int], list[int]]:
    """Up to `most` pivots of Gaussian elimination with complete pivoting, above the threshold."""
    matrix = np.array(matrix)
    rows: list[int] = []
    columns: list[int] = []
    while matrix.size and len(rows) < most:
        row, column = np.unravel_index(np.argmax(np.abs(matrix)), matrix.shape)
        pivot = matrix[row, column]
        if not abs(pivot) > threshold:
            break
        rows.append(int(row))
        columns.append(int(column))
        matrix -= np.outer(matrix[:, column] / pivot, matrix[row])
        matrix[row], matrix[:, column] = 0, 0
    return rows, columns


def interpolation(columns_of_rows: np.ndarray, pivots: np.ndarray) -> np.ndarray:
    """``f(rows, J) f(I, J)^-1``: how each row is made of the pivot rows."""
    return np.linalg.lstsq(pivots.T, columns_of_rows.T, rcond=1e-14)[0].T
