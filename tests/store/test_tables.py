"""pandas, Parquet, CSV, JSON and MDS, to tensordicts and back."""

from __future__ import annotations

import json
import os
import stat
import sys
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tensordict_core import TensorDict
from tensordict_store import from_pandas, iter_parquet, to_parquet
from tensordict_store.staging import staged


@pytest.fixture
def td():
    return TensorDict({"a": torch.arange(3), "n": {"x": torch.tensor([0.5, 1.0, 2.0])}, "s": ["u", "v", "w"]}, [3])


class TestPandas:
    def test_columns_become_entries_by_their_kind(self):
        frame = pd.DataFrame(
            {
                "i": [1, 2],
                "f": [1.0, None],
                "b": [True, False],
                "s": ["u", "v"],
                "kind": pd.Categorical(["y", "x"]),
                "day": pd.to_datetime(["1970-01-01", "1970-01-02"]),
                "gap": pd.to_timedelta([1, 2]),
                "null": pd.array([1, None], dtype="Int64"),
                "maybe": pd.array([True, None], dtype="boolean"),
                7: [1, 2],
            }
        )
        td = TensorDict.from_pandas(frame)
        assert td.batch_size == (2,) and td["i"].tolist() == [1, 2] and td["f"].isnan().tolist() == [False, True]
        assert td["b"].dtype == torch.bool and td[1]["s"] == "v" and td["kind"].tolist() == [1, 0]
        assert td["day"].tolist() == [0, 86_400 * 10**9] and td["gap"].tolist() == [1, 2]
        assert td["null"][0] == 1 and td["null"].isnan()[1] and td[0]["maybe"] is True and td["7"].tolist() == [1, 2]

    def test_a_frame_and_its_tensordict_do_not_share_memory(self):
        frame = pd.DataFrame({"a": [1, 2]})
        TensorDict.from_pandas(frame)["a"].zero_()
        assert frame["a"].tolist() == [1, 2]

    def test_names_are_split_and_joined(self, td):
        frame = td.to_pandas(separator=".")
        assert list(frame.columns) == ["a", "n.x", "s"] and frame["s"].tolist() == ["u", "v", "w"]
        again = TensorDict.from_pandas(frame, separator=".", dtype=torch.float32)
        assert again["n", "x"].tolist() == [0.5, 1.0, 2.0] and again["a"].dtype == torch.float32
        with pytest.raises(ValueError, match="pass separator"):
            td.to_pandas()

    def test_options_set_the_batch_size(self):
        frame = pd.DataFrame({"a": [1, 2, 3]})
        assert from_pandas(frame, batch_size=[]).batch_size == ()
        assert from_pandas(frame, auto_batch_size=True).batch_size == (3,)
        assert from_pandas(frame, device="cpu").device == torch.device("cpu")
        with pytest.raises(TypeError, match="both set the batch size"):
            from_pandas(frame, auto_batch_size=True, batch_size=[3])
        with pytest.raises(RuntimeError):
            from_pandas(frame, batch_size=[4])
        with pytest.raises(TypeError, match=r"takes a pandas.DataFrame"):
            from_pandas({"a": [1]})

    def test_values_that_are_not_columns_are_refused(self):
        with pytest.raises(ValueError, match=r"key 'a' has the shape \[3, 2\]"):
            TensorDict({"a": torch.zeros(3, 2)}, [3]).to_pandas()
        with pytest.raises(TypeError, match="bfloat16"):
            TensorDict({"a": torch.zeros(3, dtype=torch.bfloat16)}, [3]).to_pandas()


class TestParquet:
    def test_nested_entries_and_features_come_back(self, td, tmp_path):
        td["image"] = torch.randn(3, 2, 4)
        td.to_parquet(tmp_path / "a.parquet")
        again = TensorDict.from_parquet(tmp_path / "a.parquet")
        assert torch.equal(again["image"], td["image"]) and again["n", "x"].tolist() == [0.5, 1.0, 2.0]
        assert again["s"] == ["u", "v", "w"]

    def test_columns_are_chosen_by_nested_key(self, td, tmp_path):
        td.to_parquet(tmp_path / "a.parquet")
        assert set(TensorDict.from_parquet(tmp_path / "a.parquet", columns=[("n", "x")]).keys(True, True)) == {
            ("n", "x")
        }
        td.to_parquet(tmp_path / "b.parquet", separator="/")
        assert pq.read_schema(tmp_path / "b.parquet").names == ["a", "n/x", "s"]
        part = TensorDict.from_parquet(tmp_path / "b.parquet", separator="/", columns=[("n", "x")])
        assert list(part.keys(True, True)) == [("n", "x")]

    def test_a_field_of_a_struct_is_chosen_by_a_name_with_dots_that_no_column_has(self, tmp_path):
        nested = {"x": torch.arange(2), "y": torch.zeros(2)}
        td = TensorDict({"n": nested, "m": {"deep": {"x": torch.ones(2)}}, "flat.x": torch.arange(2.0)}, [2])
        td.to_parquet(tmp_path / "a.parquet")
        names = ["n.x", "m.deep.x", "flat.x"]
        for place in (tmp_path / "a.parquet", tmp_path):  # a file, and a folder of files
            part = TensorDict.from_parquet(place, columns=names)
            assert set(part.keys(True, True)) == {("n", "x"), ("m", "deep", "x"), "flat.x"}
            assert part["n", "x"].tolist() == [0, 1] and part["flat.x"].tolist() == [0.0, 1.0]
        [batch] = iter_parquet(tmp_path / "a.parquet", columns=names)
        assert set(batch.keys(True, True)) == set(part.keys(True, True))
        with pytest.raises(KeyError, match="absent"):
            TensorDict.from_parquet(tmp_path / "a.parquet", columns=["n.absent"])

    def test_null_numbers_are_nan_and_times_are_nanoseconds(self, tmp_path):
        table = pa.table(
            {
                "i": pa.array([1, None]),
                "b": pa.array([None, True]),
                "t": pa.array([1, None], pa.timestamp("s")),
                "d": pa.array([1, 2], pa.timestamp("ms")),
            }
        )
        pq.write_table(table, tmp_path / "a.parquet")
        td = TensorDict.from_parquet(tmp_path / "a.parquet")
        assert td["i"][0] == 1 and td["i"].isnan()[1] and td["b"] == [None, True]
        assert td["d"].tolist() == [10**6, 2 * 10**6] and td["t"].isnan()[1]

    def test_batches_are_written_and_read_one_at_a_time(self, tmp_path):
        seen = []

        def batches():
            for start in range(0, 10, 4):
                seen.append(start)
                yield TensorDict({"a": torch.arange(start, min(start + 4, 10))}, [min(4, 10 - start)])

        to_parquet(batches(), tmp_path / "a.parquet")
        assert seen == [0, 4, 8]
        read = [batch["a"].tolist() for batch in iter_parquet(tmp_path / "a.parquet", rows=3)]
        assert [row for batch in read for row in batch] == list(range(10)) and max(map(len, read)) == 3

    def test_a_dataset_is_written_by_slices(self, tmp_path):
        class Rows:
            def __len__(self):
                return 5

            def __getitem__(self, rows):
                return TensorDict({"a": torch.arange(5)[rows]}, [len(range(5)[rows])])

        to_parquet(Rows(), tmp_path / "a.parquet", rows=2)
        assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 3
        assert TensorDict.from_parquet(tmp_path / "a.parquet")["a"].tolist() == [0, 1, 2, 3, 4]

    def test_an_error_leaves_the_earlier_file(self, td, tmp_path):
        path = tmp_path / "a.parquet"
        td.to_parquet(path)
        before = path.read_bytes()
        with pytest.raises(TypeError, match="bfloat16"):
            to_parquet([td, td.clone().set("a", torch.zeros(3, dtype=torch.bfloat16))], path)
        with pytest.raises(ValueError, match="no batch"):
            to_parquet([], path)
        assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.parquet"]


class TestText:
    def test_csv_is_read_back(self, td, tmp_path):
        td.to_csv(tmp_path / "a.csv", separator=".")
        assert (tmp_path / "a.csv").read_text().splitlines()[0] == "a,n.x,s"
        again = TensorDict.from_csv(tmp_path / "a.csv", separator=".")
        assert again["a"].tolist() == [0, 1, 2] and again["n", "x"].tolist() == [0.5, 1.0, 2.0] and again[2]["s"] == "w"
        assert list(TensorDict.from_csv(tmp_path / "a.csv", usecols=["a"]).keys()) == ["a"]

    @pytest.mark.parametrize("lines", [False, True])
    def test_json_keeps_nesting_features_and_kinds_of_numbers(self, td, tmp_path, lines):
        td["v"] = torch.tensor([[0.0, float("nan")]] * 3)
        td["flag"] = torch.tensor([True, False, True])
        td.to_json(tmp_path / "a.json", lines=lines)
        again = TensorDict.from_json(tmp_path / "a.json", lines=lines)
        assert again["a"].dtype == torch.int64 and again["n", "x"].tolist() == [0.5, 1.0, 2.0]
        assert again["flag"].dtype == torch.bool and again["s"] == ["u", "v", "w"]
        assert again["v"] == [[0.0, None]] * 3  # a list with a null is a value

    def test_json_of_whole_floats_stays_floating_point(self, tmp_path):
        TensorDict({"x": torch.zeros(2), "m": torch.ones(2, 2)}, [2]).to_json(tmp_path / "a.json")
        td = TensorDict.from_json(tmp_path / "a.json")
        assert td["x"].dtype == td["m"].dtype == torch.float64 and td["m"].shape == (2, 2)
        with open(tmp_path / "a.json") as file:
            assert (TensorDict.from_json(file) == td).all() and not file.closed

    def test_json_names_are_joined_and_split(self, td, tmp_path):
        td.to_json(tmp_path / "a.json", separator=".", indent=1)
        assert json.loads((tmp_path / "a.json").read_text())[0] == {"a": 0, "n.x": 0.5, "s": "u"}
        assert TensorDict.from_json(tmp_path / "a.json", separator=".")["n", "x"].shape == (3,)

    def test_a_field_that_a_record_lacks_is_null(self, tmp_path):
        path = tmp_path / "a.json"
        path.write_text('{"a": 1, "s": "u\u2028v", "n": {"x": 1}}\r\n\n{"b": 2, "n": {}}\n', encoding="utf-8")
        td = TensorDict.from_json(path, lines=True)
        assert list(td.keys()) == ["a", "s", "n", "b"] and td["s"] == ["u\u2028v", None]
        for key, row in ("a", 1), (("n", "x"), 1), ("b", 0):
            assert td[key].dtype is torch.float64 and td[key].isnan().tolist() == [row == 0, row == 1]

    def test_columns_as_pandas_writes_them_are_read(self, tmp_path):
        path = tmp_path / "a.json"
        for text in '{"a": {"0": 1, "1": 2}, "s": {"0": "u", "1": "v"}}', '{"a": [1, 2], "s": ["u", "v"]}':
            path.write_text(text)
            td = TensorDict.from_json(path)
            assert td["a"].tolist() == [1, 2] and td["s"] == ["u", "v"] and td.batch_size == (2,)

    def test_values_that_are_not_records_are_refused(self, tmp_path):
        path = tmp_path / "a.json"
        for text, match in (
            ('[{"a": 1}, 3]', "record 1 is a int"),
            ('{"a": 1}', "neither an array of objects nor an object of columns"),
            ('{"a": [1], "b": [1, 2]}', "neither an array of objects nor an object of columns"),
            ("[1", "Expecting"),
        ):
            path.write_text(text)
            with pytest.raises(ValueError, match=match):
                TensorDict.from_json(path)
        path.write_text('[{"a": 1, "big": 123456789012345678901}, {"a": null, "big": 1}]')
        td = TensorDict.from_json(path)
        assert td["a"].isnan()[1] and td["big"] == [123456789012345678901, 1]

    def test_numbers_that_json_cannot_hold_are_refused_and_nothing_is_written(self, tmp_path):
        with pytest.raises(ValueError, match="infinite"):
            TensorDict({"a": torch.tensor([float("inf")])}, [1]).to_json(tmp_path / "a.json")
        with pytest.raises(ValueError, match="records have one dimension"):
            TensorDict({"a": torch.zeros(1, 1)}, [1, 1]).to_json(tmp_path / "a.json")
        assert not os.listdir(tmp_path)


class TestMds:
    def test_rows_are_the_samples_of_a_writer(self, monkeypatch):
        made = []

        class Writer:
            def __init__(self, **options):
                made.append(options)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                made.append("finished")

            def write(self, sample):
                made.append(sample)

        monkeypatch.setitem(sys.modules, "streaming", types.SimpleNamespace(MDSWriter=Writer))
        td = TensorDict({"a": torch.arange(2), "v": torch.zeros(2, 3), "s": ["x", "y"]}, [2])
        td.to_mds(out="folder", compression="zstd")
        options, first, second, end = made
        assert options["columns"] == {"a": "int", "v": "ndarray", "s": "str"} and options["compression"] == "zstd"
        assert first["a"] == 0 and first["s"] == "x" and isinstance(second["v"], np.ndarray) and end == "finished"

    def test_values_that_are_not_samples_are_refused(self):
        with pytest.raises(TypeError, match="nested tensordict"):
            TensorDict({"n": {"a": torch.zeros(1)}}, [1]).to_mds(out="folder")
        with pytest.raises(ValueError, match="no place to write"):
            TensorDict({"a": torch.zeros(1)}, [1]).to_mds()
        with pytest.raises(ValueError, match="empty"):
            TensorDict({}, [1]).to_mds(out="folder")

    def test_a_given_writer_warns_before_it_is_finished(self):
        class Writer:
            finished = 0

            def write(self, sample): ...

            def finish(self):
                self.finished += 1

        writer, td = Writer(), TensorDict({"a": torch.zeros(1)}, [1])
        with pytest.warns(FutureWarning, match="finish_writer"):
            td.to_mds(writer=writer)
        td.to_mds(writer=writer, finish_writer=False)
        td[0].to_mds(writer=writer)
        assert writer.finished == 1


def test_a_replaced_file_keeps_its_mode_and_links(tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    TensorDict({"a": torch.arange(1)}, [1]).to_csv(link)
    assert link.is_symlink() and real.read_text() == "a\n0\n" and stat.S_IMODE(real.stat().st_mode) == 0o600
    with pytest.raises(OSError, match="not a regular file"), staged(tmp_path):
        raise AssertionError("the block runs")


def test_a_number_is_no_path_of_a_json_file():
    with pytest.raises(TypeError, match="PathLike"):
        TensorDict.from_json(0)  # the descriptor of the standard input, which would be closed
