"""Random arguments of methods, as Python source, chosen by the name of the parameter and the container."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from fuzzing import structures
from fuzzing.structures import Node, Tensor

JUNK = ("None", "-1", "7", "'no'", "1.5", "[]", "()", "object()", "t([5, 5])", "{'q': 1}", "True", "'a'", "slice(0, 1)")
DTYPES = ("torch.float32", "torch.float64", "torch.int64", "torch.bool", "torch.float16")


class Arguments:
    """Values for the parameters of one call on ``x``; operands that are containers get variables of their own."""

    def __init__(self, rng: random.Random, x: Node) -> None:
        self.rng = rng
        self.x = x
        self.operands: dict[str, Node] = {}
        self.paths = list(structures.paths(x))
        self.junk: list[tuple[str, str]] = []

    def value(self, method: str, name: str) -> str | None:
        """The source of an argument; ``None`` where no good value is known."""
        if self.rng.random() < 0.04:
            self.junk.append((name, self.rng.choice(JUNK)))
            return self.junk[-1][1]
        maker: Callable[[], str] | None = getattr(self, f"{method}__{name}", None) or getattr(self, f"p_{name}", None)
        made: Any = None if maker is None else maker()
        if isinstance(made, list):  # of variable positional arguments, which ours takes by name too
            made = made[0] if len(made) == 1 else f"({', '.join(made)},)" if made else None
        return made

    def several(self, method: str, name: str) -> list[str] | None:
        """The sources of variable positional arguments."""
        maker = getattr(self, f"{method}__{name}", None) or getattr(self, f"v_{name}", None)
        return None if maker is None else maker()

    # pieces ----------------------------------------------------------------------------------------------------------

    def pick(self, *choices: Any) -> str:
        return str(self.rng.choice(choices))

    def operand(self, node: Node) -> str:
        name = "yzuvw"[len(self.operands) % 5]
        self.operands[name] = node
        return name

    def similar(self, change: float = 0.25) -> Node:
        """A container like ``x``, sometimes with fewer or more entries, another batch size or dtype."""
        node = structures.like(self.x, self.rng.choice((1, 2, 3)))
        if node.kind == "class" or self.rng.random() > change:
            return node
        kind = self.rng.choice(("less", "more", "dense"))
        if kind == "less" and self.paths:
            return structures.without(node, self.rng.choice(self.paths))
        if kind == "more" and node.kind == "dense":
            return structures.replace(node, entries={**node.entries, "k": Tensor(node.batch)})
        return node

    def shape(self) -> tuple[int, ...]:
        return self.x.batch

    def p_dim(self) -> str:
        dims = len(self.x.batch)
        if self.rng.random() < 0.85 and dims:
            return str(self.rng.randrange(-dims, dims))
        return str(self.rng.randrange(-dims - 2, dims + 2))

    p_dim0 = p_dim1 = p_axis0 = p_axis1 = p_start_dim = p_end_dim = p_dim

    def reduced(self) -> str:
        if self.rng.random() < 0.7:
            return self.p_dim()
        return self.pick("None", "'feature'", f"({self.p_dim()},)", f"({self.p_dim()}, {self.p_dim()})", "()")

    sum__dim = mean__dim = prod__dim = nansum__dim = nanmean__dim = std__dim = var__dim = reduced
    amax__dim = amin__dim = max__dim = min__dim = logsumexp__dim = quantile__dim = reduced

    def all__dim(self) -> str:
        return self.pick("None", self.p_dim())

    any__dim = all__dim

    def key(self) -> str:
        if self.paths and self.rng.random() < 0.8:
            path = self.rng.choice(self.paths)
            return repr(path[0]) if len(path) == 1 else repr(path)
        return self.pick("'k'", "'a'", "('a', 'b')", "('k', 'l')", "('n', 'k')", "()", "1", "('a',)", "(('a',), 'b')")

    p_key = p_old_key = p_mask_key = key

    def new_key(self) -> str:
        return self.pick("'k'", "('k', 'l')", "'a'", self.key())

    p_new_key = p_out_key = new_key

    def v_keys(self) -> list[str]:
        return [self.key() for _ in range(self.rng.choice((0, 1, 1, 2)))]

    def v_key_sets(self) -> list[str]:
        return [f"[{', '.join(self.v_keys())}]" for _ in range(self.rng.choice((1, 2)))]

    def p_keys(self) -> str:
        return f"[{', '.join(self.v_keys())}]"

    p_keys_to_update = p_keys

    def flag(self) -> str:
        return self.pick("True", "False")

    p_keepdim = p_inplace = p_strict = p_safe = p_recurse = p_include_nested = p_leaves_only = p_sort = flag
    p_retain_none = p_convert_tensors = p_tolist_first = p_convert_nodes = p_count_duplicates = flag
    p_nested_keys = p_filter_empty = p_named = p_call_on_nested = p_clone = p_update_batch_size = p_ignore_lock = flag
    p_requires_grad = p_keep_compliant_size = p_set_to_none = p_keep_entries = p_reproduce_struct = flag
    p_return_indices = p_non_blocking = p_propagate_lock = p_empty_lazy = p_as_tensordict = p_flatten = flag
    p_auto_batch_size = p_canonical = p_keep_vars = p_storage = p_lazy = p_set_item = flag

    def p_sorted(self) -> str:
        return self.pick("True", "False", f"[{', '.join(repr(p[0]) for p in self.paths[:2])}]")

    def p_reduce(self) -> str:
        return self.pick("None", "True", "False", "False")

    def number(self) -> str:
        return self.pick("1", "2", "0.5", "True", "0", "-1", "3.0")

    p_fill_value = p_padding = p_alpha = number

    def masked_fill__value(self) -> str:
        return self.number()

    fill___value = masked_fill_value = masked_fill__value = pad__value = masked_fill___value = masked_fill__value

    def p_other(self) -> str:
        kind = self.rng.choices(("number", "td", "tensor", "scalar"), (4, 6, 3, 1))[0]
        if kind == "number":
            return self.number()
        if kind == "td":
            return self.operand(self.similar())
        if kind == "scalar":
            return "t([], start=2)"
        batch = self.shape()
        choices = [batch, (1,) * len(batch), batch[-1:], batch[:1], (2, *batch)]
        return f"t({list(self.rng.choice(choices))}, start=1)"

    p_end = p_other1 = p_other2 = p_other

    def p_weight(self) -> str:
        return self.pick("0.5", "0.5", self.p_other())

    def p_min(self) -> str:
        return self.pick("0", "1", "None", self.p_other())

    p_max = p_min

    def addcmul__value(self) -> str:
        return self.pick("1", "2", "0.5")

    addcdiv__value = addcmul___value = addcdiv___value = addcmul__value

    def p_default(self) -> str:
        return self.pick("None", "0", "1.0", "'intersection'", "'x'", "t([])")

    def get__default(self) -> str:
        return self.pick("None", "0", "'x'")

    pop__default = get_at__default = get_non_tensor__default = get__default

    def split_keys__default(self) -> str:
        return self.pick("None", "0")

    def p_dtype(self) -> str:
        return self.pick(*DTYPES)

    p_dst_type = p_dtype

    def p_device(self) -> str:
        return self.pick("'cpu'", "None", "torch.device('cpu')")

    def p_index(self) -> str:
        batch = self.shape()

        def part(n: int) -> str:
            some = [self.rng.randrange(n) for _ in range(self.rng.choice((1, 2)))]
            mask = [self.rng.random() < 0.5 for _ in range(n)]
            return self.pick(
                0, n - 1, -1, ":", "0:2", "::2", "1:", some, f"torch.tensor({some})", f"torch.tensor({mask})", mask,
                f"range({n})", "None", "...", f"np.array({some})",
            )  # fmt: skip

        parts = [part(n) for n in batch[: self.rng.randrange(len(batch) + 1)]] or [self.pick("None", "...", "()", "0")]
        while parts.count("...") > 1:
            parts.remove("...")
        if self.rng.random() < 0.9:
            return f"I[{', '.join(parts)}]"
        self.junk.append(("index", self.pick(*JUNK)))
        return self.junk[-1][1]

    p_idx = p_index

    def gather__index(self) -> str:
        batch = self.shape()
        return f"torch.zeros({list(batch)}, dtype=torch.int64)" if batch else "torch.tensor([0])"

    def p_mask(self) -> str:
        batch = self.shape()
        return f"b({list(self.rng.choice((batch, batch, batch[:1], (*batch, 1))))})"

    p_condition = p_mask

    def where__other(self) -> str:
        return self.pick("0", self.operand(self.similar()), "t([])")

    def p_item(self) -> str:
        batch = list(self.shape())
        kinds = ("tensor", "tensor", "wrong", "number", "td", "dict", "text", "list", "array", "value")
        kind = self.rng.choice(kinds)
        return {
            "tensor": f"t({batch + self.rng.choice(([], [2]))}, start=3)",
            "wrong": f"t({[*batch[:-1], 7]})",
            "number": self.number(),
            "td": f"TensorDict({{'q': t({batch})}}, batch_size={batch[: self.rng.randrange(len(batch) + 1)]})",
            "dict": f"{{'q': t({batch}), 's': {{'r': 1.0}}}}",
            "text": "'text'",
            "list": self.pick("['u', 'v', 'w']", "[1, 2, 3]", "[1.0, 2.0]", "['u', 'v']"),
            "array": f"np.ones({batch})",
            "value": "NonTensorData('v')",
        }[kind]

    def existing(self) -> str:
        """A value that fits the chosen entry more often than not."""
        return self.pick(f"t({list(self.shape())}, start=9)", "1.0", self.p_item())

    set___item = existing
    set_at___value = existing

    def setdefault__default(self) -> str:
        return self.p_item()

    set_non_tensor__value = p_item

    def p_input_dict_or_td(self) -> str:
        kind = self.rng.choices(("similar", "dict", "nested", "empty"), (6, 2, 1, 1))[0]
        if kind == "similar":
            return self.operand(self.similar(0.4))
        if kind == "dict":
            return f"{{{self.new_key()}: {self.p_item()}}}"
        return "{'n': {'q': 1.0}}" if kind == "nested" else "{}"

    p_tensordict = p_input_dict_or_td

    def p_fn(self) -> str:
        return self.pick(
            "lambda a, *o: a + 1", "lambda a, *o: a.clone()", "lambda a, *o: a.sum()", "lambda a, *o: None",
            "lambda a, *o: a.unsqueeze(-1)", "lambda *a: a[-1]",
        )  # fmt: skip

    def named_apply__fn(self) -> str:
        return self.pick("lambda n, a, *o: a + 1", "lambda n, a, *o: a if 'a' in n else None", "lambda n, *a: a[-1]")

    def v_others(self) -> list[str]:
        return [self.operand(self.similar(0.3))] if self.rng.random() < 0.4 else []

    def p_batch_size(self) -> str:
        batch = list(self.shape())
        return self.pick(batch, batch[:1], [], [*batch, 2])

    def names(self) -> list[str]:
        return [self.pick("'x'", "'y'", "'w'", "None") for _ in self.shape()]

    def p_names(self) -> str:
        return f"[{', '.join(self.names())}]"

    def v_names(self) -> list[str]:
        return self.names()

    def p_size(self) -> str:
        batch = list(self.shape())
        return self.pick(
            batch, [2, *batch], [-1, *batch[1:]], [*batch, 2], [-1], [1, *batch], batch[:-1], [*batch[:-1], 1, -1]
        )

    p_shape = p_size

    def v_size(self) -> list[str]:
        return [self.p_size()] if self.rng.random() < 0.7 else self.p_size()[1:-1].split(", ") if self.shape() else []

    v_shape = expand__args = v_size

    def flat(self) -> list[str]:
        batch = list(self.shape())
        total = 1
        for n in batch:
            total *= n
        return [self.pick([-1], [total], batch, [1, *batch], [*batch, 1], [-1, *batch[-1:]], self.p_size())]

    view__shape = reshape__shape = flat

    def permute__args(self) -> list[str]:
        dims = list(range(len(self.shape())))
        self.rng.shuffle(dims)
        return [str(dims)] if self.rng.random() < 0.5 or not dims else [str(d) for d in dims]

    def p_dims(self) -> str:
        return self.pick(f"[{self.p_dim()}]", self.p_dim(), f"({self.p_dim()}, {self.p_dim()})")

    def v_dims(self) -> list[str]:
        return [self.p_dims()] if self.rng.random() < 0.6 else [self.p_dim(), self.p_dim()]

    def tile__dims(self) -> list[str]:
        return self.repeat__repeats()

    def squeeze__args(self) -> list[str]:
        return [] if self.rng.random() < 0.3 else [self.p_dim()]

    def unsqueeze__args(self) -> list[str]:
        return [self.p_dim()]

    def repeat__repeats(self) -> list[str]:
        dims = max(len(self.shape()), 1)
        counts = [self.pick(1, 2, 3) for _ in range(dims)]
        return [f"({', '.join(counts)},)"] if self.rng.random() < 0.5 else counts

    def p_repeats(self) -> str:
        return self.pick("2", "1", "0", f"torch.tensor({[1] * (self.shape() or (1,))[0]})")

    def p_split_size(self) -> str:
        batch = self.shape() or (3,)
        return self.pick(1, 2, batch[0], [1, batch[0] - 1], [batch[0]])

    def p_indices_or_sections(self) -> str:
        return self.pick(1, 2, 3, [1], (1, 2))

    def p_chunks(self) -> str:
        return self.pick(1, 2, 3, 5)

    def p_start(self) -> str:
        return self.pick(0, 0, 1, -1)

    def p_length(self) -> str:
        return self.pick(1, 1, 2, 0)

    def p_unflattened_size(self) -> str:
        n = (self.shape() or (1,))[0]
        return self.pick((1, n), (n, 1), (-1, 1), (1, -1, 1))

    def p_source(self) -> str:
        return self.pick(self.p_dim(), f"({self.p_dim()},)")

    p_destination = p_source

    def p_shifts(self) -> str:
        return self.pick(1, -1, 2)

    def p_k(self) -> str:
        return self.pick(0, 1, 2, 3)

    def p_separator(self) -> str:
        return self.pick("'.'", "','", "'_'", "'a'")

    def p_interpolation(self) -> str:
        return self.pick("'linear'", "'lower'", "'nearest'")

    def p_q(self) -> str:
        return self.pick("0.5", "0.25", "t([2]) / 4")

    def p_correction(self) -> str:
        return self.pick(0, 1)

    def p_pad_size(self) -> str:
        return self.pick("[0, 1]", "[1, 1]", "[0, 1, 1, 0]", "(0, 0)", "[1]")

    def p_shape_of_tensor(self) -> str:
        return str(list(self.shape()))

    def p_data(self) -> str:
        return self.pick("1.0", "[1, 2]", self.operand(self.similar()))

    def p_mapping(self) -> str:
        return f"{{{self.key()}: {self.new_key()}}}"

    def p_layout(self) -> str:
        return "torch.strided"

    def pack__layout(self) -> str:
        return "x.pack()[1]"

    def p_key_transform(self) -> str:
        return "lambda key: 'new_' + key"

    def p_prefix(self) -> str:
        return "'p.'"

    def p_batch_dims(self) -> str:
        return self.pick(0, 1, 2, "None")

    def v_mapping(self) -> list[str]:
        return []

    def p_is_leaf(self) -> str:
        return self.pick("is_leaf_nontensor", "default_is_leaf", "None")

    def p_input_dict(self) -> str:
        batch = list(self.shape())
        return self.pick(
            f"{{'a': t({batch}), 'b': {{'c': t({batch})}}}}", "{'a': 1.0, 's': 'text'}", "{'a': [1, 2], 'b': None}"
        )

    def p_input(self) -> str:
        return f"[x, {self.operand(self.similar(0.15))}]"

    def from_list__input(self) -> str:
        return self.pick("[{'a': 1.0}, {'a': 2.0}]", "[{'a': t([2])}, {'a': t([3])}]", "[{'a': 1}, {'b': 2}]")

    def from_any__obj(self) -> str:
        return self.pick(self.p_input_dict(), "({'a': 1},)", "[1.0, 2.0]", "{'a': [{'b': 1}, {'b': 2}]}")

    def from_tuple__obj(self) -> str:
        return self.pick("(t([2]), {'a': t([2])})", "(1.0, (2.0,))")

    def from_pytree__pytree(self) -> str:
        return self.pick("{'a': [t([2]), t([2])]}", "({'a': t([3])}, t([3]))")
