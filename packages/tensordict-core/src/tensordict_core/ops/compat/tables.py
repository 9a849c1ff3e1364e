"""Tables: the methods that ``tensordict-store`` implements for pandas, Parquet, CSV, JSON and MDS.

Each is typed and documented here and calls `satellite` in one line. The examples run if ``tensordict-store`` is
installed.
"""

from __future__ import annotations

from typing import Any

from tensordict_core.base.node import Node
from tensordict_core.ops.compat.implemented import implemented_by
from tensordict_core.ops.compat.options import StrPath


class TableStubs(Node):
    """``to_pandas``, ``from_pandas`` and their siblings."""

    __slots__ = ()

    @implemented_by("tensordict_store")
    def to_pandas(self, *, separator: str | None = None) -> Any:
        """Return a ``pandas.DataFrame`` with a column for each leaf, which has one value for each row.

        Args:
            separator: The string with which nested keys are joined to names of columns.

        Raises:
            ImportError: ``tensordict-store`` or pandas is not installed.
            ValueError: There is a nested tensordict and no separator, or a tensor does not have exactly one value for
                each row.

        >>> TensorDict({"a": torch.arange(2), "n": {"x": torch.zeros(2)}}, [2]).to_pandas(separator=".").shape
        (2, 2)
        """

    @classmethod
    @implemented_by("tensordict_store")
    def from_pandas(
        cls,
        dataframe: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
        separator: str | None = None,
        dtype: Any = None,
    ) -> Any:
        """Return a tensordict with an entry for each column of a ``pandas.DataFrame``.

        Args:
            dataframe: The frame. Numbers and bools become tensors, categories their codes, dates ``int64`` with
                nanoseconds, other values non-tensor data, one for each row.
            auto_batch_size: Whether the batch size is the longest that all entries share.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            device: The device of the tensors.
            batch_size: The batch size; by default the number of rows.
            separator: The string at which names of columns are split into nested keys.
            dtype: The dtype of numbers and bools; by default their own.

        Raises:
            ImportError: ``tensordict-store`` or pandas is not installed.

        >>> import pandas
        >>> TensorDict.from_pandas(pandas.DataFrame({"a.b": [1, 2]}), separator=".")["a", "b"]
        tensor([1, 2])
        """

    @implemented_by("tensordict_store")
    def to_parquet(self, path: StrPath, *, separator: str | None = None, **kwargs: Any) -> None:
        """Write a Parquet file with a column for each entry.

        Args:
            path: The file; an existing file is replaced atomically.
            separator: The string with which nested keys are joined to names of columns; by default nested tensordicts
                are structs.
            **kwargs: The other arguments of ``pyarrow.parquet.ParquetWriter``, such as ``compression``.

        Raises:
            ImportError: ``tensordict-store`` or pyarrow is not installed.
            TypeError: Arrow has no type for an entry; the error names its key.
            ValueError: The tensordict does not have exactly one batch dimension.

        >>> TensorDict({"a": torch.zeros(2, 3)}, [2]).to_parquet("a.parquet")
        >>> TensorDict.from_parquet("a.parquet")["a"].shape
        torch.Size([2, 3])
        """

    @classmethod
    @implemented_by("tensordict_store")
    def from_parquet(
        cls,
        path: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
        separator: str | None = None,
        dtype: Any = None,
        columns: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Read a Parquet file, with an entry for each column.

        Args:
            path: The file. Structs become nested tensordicts, lists of numbers jagged nested tensors, strings
                non-tensor data, one for each row.
            auto_batch_size: Whether the batch size is the longest that all entries share.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            device: The device of the tensors.
            batch_size: The batch size; by default the number of rows.
            separator: The string at which names of columns are split into nested keys.
            dtype: The dtype of numbers and bools; by default their own.
            columns: The columns to read, by default all; nested keys name fields of structs.
            **kwargs: The other arguments of ``pyarrow.parquet.read_table``.

        Raises:
            ImportError: ``tensordict-store`` or pyarrow is not installed.
            FileNotFoundError: There is no file.

        >>> TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2]).to_parquet("ab.parquet")
        >>> list(TensorDict.from_parquet("ab.parquet", columns=["b"]).keys())
        ['b']
        """

    @implemented_by("tensordict_store")
    def to_csv(self, path: StrPath, *, separator: str | None = None, **kwargs: Any) -> None:
        """Write a CSV file with a column for each leaf, which has one value for each row.

        Args:
            path: The file; an existing file is replaced atomically.
            separator: The string with which nested keys are joined to names of columns.
            **kwargs: The other arguments of ``pandas.DataFrame.to_csv``.

        Raises:
            ImportError: ``tensordict-store`` or pandas is not installed.
            ValueError: There is a nested tensordict and no separator, or a tensor does not have exactly one value for
                each row.

        >>> TensorDict({"a": torch.arange(2)}, [2]).to_csv("a.csv")
        >>> TensorDict.from_csv("a.csv")["a"]
        tensor([0, 1])
        """

    @classmethod
    @implemented_by("tensordict_store")
    def from_csv(
        cls,
        path: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
        separator: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Read a CSV file, with an entry for each column; options are those of ``from_pandas``.

        Args:
            path: The file.
            auto_batch_size: Whether the batch size is the longest that all entries share.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            device: The device of the tensors.
            batch_size: The batch size; by default the number of rows.
            separator: The string at which names of columns are split into nested keys.
            dtype: The dtype of numbers and bools; by default their own.
            **kwargs: The other arguments of ``pandas.read_csv``.

        Raises:
            ImportError: ``tensordict-store`` or pandas is not installed.
            FileNotFoundError: There is no file.

        >>> TensorDict({"n": {"a": torch.arange(2)}}, [2]).to_csv("na.csv", separator=".")
        >>> TensorDict.from_csv("na.csv", separator=".", dtype=torch.float32)["n", "a"]
        tensor([0., 1.])
        """

    @implemented_by("tensordict_store")
    def to_json(self, path: StrPath, *, separator: str | None = None, lines: bool = False, **kwargs: Any) -> None:
        """Write a JSON file of records, one for each row.

        Args:
            path: The file; an existing file is replaced atomically.
            separator: The string with which nested keys are joined to names of fields; by default nested tensordicts
                are objects.
            lines: Whether each record is a line of its own, instead of an array of all.
            **kwargs: Options of ``json.dumps``, such as ``indent``.

        Raises:
            ImportError: ``tensordict-store`` is not installed.
            ValueError: The tensordict does not have exactly one batch dimension, or a number is infinite.

        >>> from pathlib import Path
        >>> TensorDict({"a": torch.arange(2)}, [2]).to_json("a.json")
        >>> Path("a.json").read_text()
        '[{"a":0},{"a":1}]'
        """

    @classmethod
    @implemented_by("tensordict_store")
    def from_json(
        cls,
        path: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
        separator: str | None = None,
        dtype: Any = None,
        lines: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Read a JSON file of records, with an entry for each field; objects become nested tensordicts.

        Args:
            path: The file.
            auto_batch_size: Whether the batch size is the longest that all entries share.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            device: The device of the tensors.
            batch_size: The batch size; by default the number of records.
            separator: The string at which names of fields are split into nested keys.
            dtype: The dtype of numbers and bools; by default their own.
            lines: Whether each line is a record, instead of an array of all.
            **kwargs: Options of ``json.loads``.

        Raises:
            ImportError: ``tensordict-store`` is not installed.
            ValueError: The file is not JSON, or records differ in their fields.

        >>> TensorDict({"n": {"a": torch.ones(2)}}, [2]).to_json("n.json", lines=True)
        >>> TensorDict.from_json("n.json", lines=True)["n", "a"]
        tensor([1., 1.], dtype=torch.float64)
        """

    @implemented_by("tensordict_store")
    def to_mds(
        self,
        *,
        columns: dict[str, str] | None = None,
        out: Any = None,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        writer: Any = None,
        finish_writer: bool | None = None,
        **kwargs: Any,
    ) -> None:
        """Write the rows as the samples of an MDS dataset of MosaicML Streaming.

        Args:
            columns: The encoding of each column, by default that of the first sample.
            out: The folder, a remote location, or a pair of both.
            keep_local: Whether the local copy stays after an upload.
            compression: The compression, as ``"name"`` or ``"name:level"``.
            hashes: The hash algorithms of the shards.
            size_limit: The size of a shard in bytes.
            writer: An open ``streaming.MDSWriter`` that takes the samples, in place of ``out``.
            finish_writer: Whether ``writer`` is finished; by default if the tensordict has batch dimensions.
            **kwargs: Other arguments of ``streaming.MDSWriter``.

        Raises:
            ImportError: ``tensordict-store`` or mosaicml-streaming is not installed.
            ValueError: There is no sample, or neither ``out`` nor ``writer``.

        >>> TensorDict({"a": torch.arange(2)}, [2]).to_mds()
        Traceback (most recent call last):
        ...
        ValueError: to_mds() has no place to write; pass out or writer
        """
