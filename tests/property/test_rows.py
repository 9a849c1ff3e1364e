"""Laws of containers, row by row: where an operation puts the positions of a batch, it puts its rows."""

from __future__ import annotations

import pickle

import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import TensorDict, cat, lazy_stack, stack
from tensordict_core.testing import assert_rows, contents, map_rows, positions, rows
from tensordict_core.testing.strategies import batch_sizes, containers, indices, tensordicts


@given(st.data())
def test_indexing_selects_rows_and_leaves_them_as_they_are(data):
    td = data.draw(containers())
    index = data.draw(indices(td.batch_size))
    assert_rows(td[index], rows(td), positions(td.batch_size)[index])


@given(st.data())
def test_an_indexed_write_changes_those_rows_and_no_others(data):
    td = data.draw(containers(min_dims=1))
    index = data.draw(indices(td.batch_size))
    numbers = positions(td.batch_size)[index].reshape(-1).tolist()
    if len(set(numbers)) < len(numbers):
        return  # which of two writes to one row wins is not said
    before = rows(td)
    td[index] = (td[index] * 2).clone()
    doubled = map_rows(lambda x: x * 2, before)
    assert_rows(td, [doubled[i] if i in numbers else before[i] for i in range(len(before))])


@given(st.data())
def test_index_then_stack_gives_back(data):
    td = data.draw(containers(min_dims=1))
    dim = data.draw(st.integers(0, td.batch_dims - 1))
    if td.batch_size[dim]:
        parts = [td[(slice(None),) * dim + (i,)] for i in range(td.batch_size[dim])]
        assert_rows(stack(parts, dim), rows(td), positions(td.batch_size))
        assert_rows(lazy_stack(parts, dim), rows(td), positions(td.batch_size))


@given(st.data())
def test_split_then_cat_gives_back(data):
    td = data.draw(containers(min_dims=1))
    dim = data.draw(st.integers(0, td.batch_dims - 1))
    parts = td.split(data.draw(st.integers(1, 3)), dim)
    assert_rows(cat(parts, dim), rows(td), positions(td.batch_size))


@given(containers())
def test_apply_composes(td):
    assert_rows(td.apply(lambda x: x * 2).apply(lambda x: x + 1), rows(td.apply(lambda x: x * 2 + 1)))


@given(st.data())
def test_flatten_and_unflatten_are_inverse(data):
    td = data.draw(containers(min_dims=1))
    start = data.draw(st.integers(0, td.batch_dims - 1))
    end = data.draw(st.integers(start, td.batch_dims - 1))
    flat = td.flatten(start, end)
    assert_rows(flat, rows(td), positions(td.batch_size).flatten(start, end))
    assert_rows(flat.unflatten(start, td.batch_size[start : end + 1]), rows(td), positions(td.batch_size))


@given(st.data())
def test_permutations_are_undone_by_their_inverse(data):
    td = data.draw(containers(min_dims=1))
    order = data.draw(st.permutations(range(td.batch_dims)))
    moved = td.permute(order)
    assert_rows(moved, rows(td), positions(td.batch_size).permute(order))
    inverse = sorted(range(len(order)), key=order.__getitem__)
    assert_rows(moved.permute(inverse), rows(td), positions(td.batch_size))


@given(st.data())
def test_expand_repeats_rows(data):
    td = data.draw(containers(min_dims=1))
    front = data.draw(st.lists(st.integers(1, 3), max_size=2))
    size = [*front, *(data.draw(st.integers(1, 3)) if n == 1 else n for n in td.batch_size)]
    assert_rows(td.expand(size), rows(td), positions(td.batch_size).expand(size))


@given(containers(), st.sampled_from([torch.neg, torch.abs, lambda x: x + 1, lambda x: x * 2 - x]))
def test_an_operation_on_a_tensordict_is_the_operation_on_each_leaf(td, operation):
    expected = map_rows(operation, rows(td))
    assert_rows(operation(td), expected)


@given(tensordicts(min_dims=1, values=False))
def test_a_sum_over_the_batch_is_the_sum_of_each_leaf(td):
    for dim in range(td.batch_dims):
        result = td.sum(dim=dim)
        for path, leaf in contents(td).items():
            assert torch.equal(result[path], leaf.sum(dim=dim))


@given(tensordicts())
def test_keys_flattened_and_unflattened_are_the_same_tree(td):
    back = td.flatten_keys("/").unflatten_keys("/")
    assert back.batch_size == td.batch_size
    assert set(contents(back)) == set(contents(td))
    assert_rows(back, rows(td))


@given(containers())
def test_a_pickle_is_the_same_tree(td):
    assert_rows(pickle.loads(pickle.dumps(td)), rows(td), positions(td.batch_size))


@given(batch_sizes(), st.data())
def test_rows_that_are_written_one_by_one_make_the_whole(size, data):
    source = data.draw(tensordicts(size, values=False))
    target = TensorDict({}, batch_size=size)
    order = data.draw(st.permutations(range(size.numel())))
    for i in order:
        place = tuple(int(n) for n in torch.unravel_index(torch.tensor(i), size)) if size else ()
        target[place] = source[place]
    if size.numel():
        assert_rows(target, rows(source))
