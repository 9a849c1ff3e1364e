"""Instances: the field access of a tensorclass.

The keys of an instance are its fields. Values are cast when they are written, and a field that is not set reads as
``None``. All other operations are those of core, applied to the wrapped tensordict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack

from torch import Tensor

from tensordict_class import errors
from tensordict_class.casting import Annotation, Rule, as_annotated, has_classes, with_classes
from tensordict_class.fields import Declaration, default_of, has_no_default, has_setter
from tensordict_class.flags import NO_FLAGS, Flags
from tensordict_class.forward import Forwarding
from tensordict_class.stacks import STACK_MEMBERS, keys_anywhere, stack_member
from tensordict_class.state import loadable_state
from tensordict_core import NO_DEFAULT, NestedKey, TensorDict, get_printoptions, is_non_tensor
from tensordict_core.extension import BuildOptions, Index, TensorCollection, is_compiling, is_tensordict, with_options


class Instance(Forwarding):
    """The methods of instances of a tensorclass; `TensorClass` adds the class definition."""

    __slots__ = ()

    _noun = "tensorclass"

    # another name than the reference's, whose replacements of torch functions would otherwise handle this class
    _is_tensorclass_instance = True

    _rules: ClassVar[Mapping[str, Rule]] = {}
    """The rule that casts a value, by field; the keys are the fields."""
    _declaration: ClassVar[Declaration] = Declaration((), (), (), (), (), frozenset())
    _flags: ClassVar[Flags] = NO_FLAGS
    _casts: ClassVar[bool] = False
    """Whether tensors pass through the rules of the fields, too."""
    _plain: ClassVar[frozenset[str]] = frozenset()
    """The assignable fields that store plain tensors unchanged."""
    _types: ClassVar[Mapping[str, Annotation]] = {}
    """The annotation of each field."""
    _restarts: ClassVar[bool] = False
    """Whether ``__post_init__`` runs on the results of operations."""

    @classmethod
    def _wrap(cls, tensordict: Any) -> Self:
        self = object.__new__(cls)
        object.__setattr__(self, "_tensordict", tensordict)
        if cls._restarts:
            run_post_init(self)
        return self

    @classmethod
    def _check_key(cls, key: str) -> None:
        if key not in cls._rules:
            raise errors.unknown_attribute(cls, key, cls._rules)

    @classmethod
    def _fits(cls, tensordict: Any) -> bool:
        return all(key in cls._rules for key in tensordict._keys())

    # fields ----------------------------------------------------------------------------------------------------------

    def _assign(self, name: str, value: Any) -> None:
        """Store a value in a field; ``None`` unsets it."""
        if value.__class__ is Tensor and not self._casts:
            self._tensordict.set(name, value)
        elif value is None:
            self._unset(name)
        else:
            td = self._tensordict
            td.set(name, self._rules[name](value, td._meta))

    def _unset(self, name: str) -> None:
        if self._tensordict._peek(name) is not None:
            self._tensordict.del_(name)

    if not TYPE_CHECKING:  # for type checkers, these would allow every attribute

        def __getattr__(self, name: str) -> Any:
            """Read a member of the wrapped lazy stack, or raise an error.

            Programs read this method from the class, to call it from their own.
            """
            if is_compiling():  # Dynamo does not trace the other calls
                raise AttributeError(name)
            if name in STACK_MEMBERS and self._tensordict._is_lazy_stack:
                return stack_member(self, name)
            if not hasattr(type(self), name):
                raise errors.unknown_attribute(type(self), name, self._rules)
            return object.__getattribute__(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            cls = type(self)
            if type(value) is Tensor and name in cls._plain:
                self._tensordict.set(name, value)
            elif name in cls._rules:
                if cls._flags.frozen:
                    raise errors.frozen_field(name)
                self._assign(name, value)
            elif has_setter(cls, name):
                if cls._flags.frozen and name[0] != "_":
                    raise errors.frozen_field(name)
                object.__setattr__(self, name, value)
            else:
                raise errors.unknown_attribute(cls, name, cls._rules, is_set=True)

    def __delattr__(self, name: str) -> None:
        if name not in self._rules:
            raise errors.unknown_attribute(type(self), name, self._rules)
        if self._flags.frozen:
            raise errors.frozen_field(name)
        self._tensordict.del_(name)

    def _no_entry(self, key: str) -> KeyError:
        return errors.MissingFieldError(*super()._no_entry(key).args)

    def get(self, key: NestedKey, default: Any = None, **kwargs: Any) -> Any:
        """Return the value of a field like the attribute, or ``default`` if it is not set.

        Args:
            key: A field, or a nested key that starts with one.
            default: The value to return if there is no such entry.
            **kwargs: Options of lazy stacks for entries of different shapes.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        ...     label: str = "origin"
        >>> Point(torch.zeros(2)).get("label")
        'origin'
        """
        value = super().get(key, None, **kwargs)
        if value is None:
            cls = type(self)
            if type(key) is str and key not in self._rules and isinstance(getattr(cls, key, None), property):
                return getattr(self, key)  # metadata, such as the batch size
            return super().get(key, default) if default is NO_DEFAULT else default
        return value._entry_value() if isinstance(value, TensorCollection) else value

    def get_at(self, key: NestedKey, *index: Any, **options: Any) -> Any:
        """Return the part of a field that an index selects; of non-tensor data, its plain values.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass): x: torch.Tensor
        >>> Point(x=torch.arange(3), batch_size=[3]).get_at("x", slice(1, 3))
        tensor([1, 2])
        """
        part = super().get_at(key, *index, **options)
        return part.tolist() if is_non_tensor(part) else part

    def set(  # type: ignore[override]  # core names the second parameter item, and code of tensorclasses names it value
        self, key: NestedKey, value: Any, inplace: bool | None = False, non_blocking: bool = False, **kwargs: Any
    ) -> Self:
        """Store a value in a field like an assignment to the attribute; ``None`` unsets it.

        Args:
            key: A field, or a nested key that starts with one.
            value: The value.
            inplace: Whether it is written into the existing value.
            non_blocking: Whether a move to the instance's device may be asynchronous.
            **kwargs: Accepted for compatibility.

        Raises:
            AttributeError: There is no such field.
            RuntimeError: The shape of the value does not start with the batch size, or the instance is locked.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass): x: torch.Tensor
        >>> Point(torch.zeros(2)).set("x", torch.ones(2)).x
        tensor([1., 1.])
        """
        if type(key) is str:
            rules = self._rules
            if key not in rules:
                locked = self._tensordict.is_locked
                raise errors.unknown_attribute(type(self), key, rules, is_set=True, is_locked=locked)
            if value is None:
                self._unset(key)
            else:
                td = self._tensordict
                td.set(key, rules[key](value, td._meta), inplace, non_blocking=non_blocking)
            return self
        return super().set(key, value, inplace, non_blocking=non_blocking)

    _store: Any = set

    def _storing_all(self, source: Any, *, nested: bool) -> Callable[[], None] | None:
        inner = source._tensordict if isinstance(source, Instance) else source
        if self._casts or not isinstance(inner, TensorCollection | dict):
            return None
        keys = inner if isinstance(inner, dict) else inner._keys()
        if has_classes(self._types, inner.items() if isinstance(inner, dict) else inner._peek_items()):
            return None
        return self._tensordict._storing_all(inner, nested=nested) if self._rules.keys() >= set(keys) else None

    def _plan_set(self, key: str, item: Any, plan: Any, prefix: tuple[str, ...]) -> Any:
        if key not in self._rules:
            raise errors.foreign_keys(type(self), [key], self._rules)
        td, as_node = self._tensordict, isinstance(item, dict) and not self._casts  # set() stores a dictionary as it is
        if (as_node or is_tensordict(item)) and td._peek(key) is None:
            item = as_annotated(self._types[key], item, td._meta)
        if item is not None:
            return td._plan_set(key, item if as_node else self._rules[key](item, td._meta), plan, prefix)
        plan.then(lambda: self._unset(key))
        return None

    def update_(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = True,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[NestedKey] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Write the values of another instance, tensordict or dictionary into the existing fields, in place.

        Args:
            input_dict_or_td: The values.
            clone: Whether values are copied first (writing copies them anyway).
            inplace: Accepted for compatibility: this method always writes in place.
            non_blocking: Whether copies between devices may be asynchronous.
            keys_to_update: The keys to write; by default all.
            **kwargs: More values by name.

        Raises:
            KeyError: The source has a tensor field that is not set here. A non-tensor field that is not set here is
                left out if the source is an instance.
            RuntimeError: Shapes differ.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        >>> Point(torch.zeros(2)).update_({"x": torch.ones(2)}).x
        tensor([1., 1.])
        """
        options: dict[str, Any] = {"non_blocking": non_blocking, "keys_to_update": keys_to_update}
        return super().update_(input_dict_or_td, clone, **options, **kwargs)

    def _plan_write(self, index: Index | None, source: Any, plan: Any, prefix: tuple[str, ...]) -> None:
        if index is not None or not isinstance(source, Instance):
            self._refuse_foreign(source)
            if isinstance(source, dict):  # a tensor keeps its values where the source has none
                own = self._tensordict._peek
                source = {key: value for key, value in source.items() if value is not None or is_non_tensor(own(key))}
        else:
            source = self._without_unset_values(source)
        super()._plan_write(index, source, plan, prefix)

    def _without_unset_values(self, source: Instance) -> Instance:
        """Return the source of an update in place without the non-tensor fields that are not set here.

        Instances in shared memory are made without non-tensor fields, and take the tensors of complete ones.
        """
        own = set(self._keys())
        unset = [key for key in source._keys() if key not in own and is_non_tensor(source._get(key))]
        return source.exclude(*unset) if unset else source

    def _refuse_foreign(self, value: Any) -> None:
        """Raise an error if a value has keys that are not fields, or is of a tensorclass that lacks some of them.

        Tensors and numbers have no keys.
        """
        if isinstance(value, Instance) and not self._rules.keys() <= value._rules.keys():
            raise errors.lacks_fields(type(self), type(value), self._rules.keys() - value._rules.keys())
        keys = value._keys() if isinstance(value, TensorCollection) else value if isinstance(value, dict) else ()
        foreign = [key for key in keys if key not in self._rules]
        if foreign:
            raise errors.foreign_keys(type(self), foreign, self._rules)

    # to and from others ----------------------------------------------------------------------------------------------

    @classmethod
    def _from_tensordict(
        cls, tensordict: Any, non_tensordict: Mapping[str, Any] | None = None, safe: bool = True
    ) -> Self:
        """Wrap a tensordict, as `from_tensordict`; published programs call it."""
        return cls.from_tensordict(tensordict, non_tensordict, safe)

    @classmethod
    def from_tensordict(
        cls, tensordict: Any, non_tensordict: Mapping[str, Any] | None = None, safe: bool = True
    ) -> Self:
        """Make an instance that wraps a tensordict, without copying it; fields without an entry are not set.

        If a field is annotated with a tensorclass and holds a tensordict, the instance wraps a shallow copy, with an
        instance of that class in place of the tensordict.

        Args:
            tensordict: A tensordict of any kind.
            non_tensordict: Values of more fields.
            safe: Whether to check that ``tensordict`` is a tensordict and its keys are fields.

        Raises:
            RuntimeError: ``tensordict`` is not a tensordict.
            ValueError: A key is not a field.
            KeyError: A field is in both arguments.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        >>> Point.from_tensordict(TensorDict({"x": torch.zeros(2)}, [2])).batch_size
        torch.Size([2])
        """
        extra = {} if non_tensordict is None else dict(non_tensordict)
        if safe:
            if not is_tensordict(tensordict):
                raise RuntimeError(
                    f"Expected a TensorDictBase instance but got {type(tensordict)} in {cls.__name__}.from_tensordict; "
                    "use from_dict for a dictionary and to_tensordict() on another tensorclass"
                )
            foreign = {key for key in (*keys_anywhere(tensordict), *extra) if key not in cls._rules}
            if foreign:
                raise errors.foreign_keys(cls, foreign, cls._rules)
        if extra:
            both = [key for key in extra if tensordict._peek(key) is not None]
            if both:
                raise KeyError(f"the fields {both} are in both tensordict and non_tensordict; drop them from one")
            shell = cls._shell(tensordict._clone(False))
            for name, value in extra.items():
                shell._assign(name, value)
            tensordict = shell._tensordict
        self = cls._shell(with_classes(cls._types, tensordict))
        run_post_init(self)
        return self

    @classmethod
    @with_options(BuildOptions, None)
    def from_dict(cls, input_dict: Mapping[Any, Any], **options: Unpack[BuildOptions]) -> Self:
        """Make an instance from a dictionary; fields that it lacks, or that are ``None``, are not set.

        Args:
            input_dict: Values by field; dictionaries among them become tensordicts.
            auto_batch_size: Whether the batch size is the longest shape prefix that all fields share; empty by default.
            batch_size: The batch size, of nested tensordicts too.
            device: The device that every field is moved to.
            batch_dims: The maximum number of batch dimensions; implies ``auto_batch_size`` unless that is ``False``.
            names: A name (or ``None``) for each batch dimension.

        Raises:
            ValueError: A key is not a field.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        >>> Point.from_dict({"x": torch.zeros(2)}, auto_batch_size=True).batch_size
        torch.Size([2])
        """
        foreign = [key for key in input_dict if key not in cls._rules]
        if foreign:
            raise errors.foreign_keys(cls, map(str, foreign), cls._rules)
        values = {key: value for key, value in input_dict.items() if value is not None}
        return cls.from_tensordict(TensorDict.from_dict(values, **options))

    @classmethod
    def _from_entries(cls, entries: Mapping[Any, Any], **options: Any) -> Any:
        fields = [f for f in cls._declaration.fields if f.name not in entries and not has_no_default(f)]
        defaults = {f.name: value for f in fields if (value := default_of(f)) is not None}
        return cls.from_dict({**entries, **defaults}, **options)

    def to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
        """Return the fields that are set as a plain tensordict at every level; tensors are copied.

        Args:
            retain_none: ``True`` stores ``None`` for fields that are not set, ``False`` drops entries that are
                ``None``; by default only fields that are set have an entry.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        ...     label: str | None = None
        >>> point = Point(torch.zeros(2))
        >>> point.to_tensordict().sorted_keys, point.to_tensordict(retain_none=True).sorted_keys
        (['x'], ['label', 'x'])
        """
        td: TensorDict = super().to_tensordict(retain_none=retain_none)
        for name in self._rules if retain_none else ():
            if name not in td:
                td.set_non_tensor(name, None)
        return td

    def to_dict(
        self,
        *,
        retain_none: bool = True,
        convert_tensors: bool | Literal["numpy"] = False,
        tolist_first: bool = False,
    ) -> dict[str, Any]:
        """Return the fields as a dictionary, nested ones too.

        Args:
            retain_none: Whether fields that are not set are included as ``None``.
            convert_tensors: Whether tensors become nested lists (``True``) or arrays (``"numpy"``).
            tolist_first: Whether nested tensordicts that have a batch size become lists of dictionaries.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        ...     label: str | None = None
        >>> Point(torch.zeros(1)).to_dict()
        {'x': tensor([0.]), 'label': None}
        """
        found = super().to_dict(retain_none=retain_none, convert_tensors=convert_tensors, tolist_first=tolist_first)
        return {name: found.get(name) for name in self._rules} if retain_none else found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False, from_flatten: bool | None = None
    ) -> Self:
        """Load a state dict, see ``TensorDict.load_state_dict``; also nested ones of earlier releases.

        Args:
            state_dict: The state dict.
            strict: Whether the fields must be those that are set; otherwise others are ignored. A non-tensor field
                keeps its value if the state dict has none, as those of the reference without their ``_metadata``.
            assign: Whether the values replace the entries instead of being copied into them.
            from_flatten: Whether nested keys are joined by dots; by default if a key has a dot.

        Raises:
            KeyError: A key is no field, and ``strict`` is true; the error is a `RuntimeError`, too.
            RuntimeError: A tensor field that is set is missing, and ``strict`` is true.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        >>> nested = {"_tensordict": {"x": torch.ones(2)}, "_non_tensordict": {}}
        >>> Point(torch.zeros(2)).load_state_dict(nested).x
        tensor([1., 1.])
        """
        if "_tensordict" not in state_dict:
            state = loadable_state(self, state_dict, strict)
            return super().load_state_dict(state, strict, assign, from_flatten)
        values = state_dict.get("_non_tensordict") or {}
        super().load_state_dict(state_dict["_tensordict"], strict and not values, assign, from_flatten)
        for name, value in values.items():
            self._assign(name, value)
        return self

    def clear_refs_for_compile_(self) -> Any:
        """Return the wrapped tensordict; there are no references to clear before ``torch.compile``.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        >>> Point(torch.zeros(2)).clear_refs_for_compile_()["x"]
        tensor([0., 0.])
        """
        return self._tensordict

    # representation, copies ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Show the fields that are set in alphabetical order, those that are not set, and the metadata.

        >>> from tensordict_class import TensorClass
        >>> class Point(TensorClass):
        ...     x: torch.Tensor
        ...     label: str | None = None
        >>> from tensordict_core import set_printoptions
        >>> with set_printoptions(compact=True):
        ...     print(Point(torch.zeros(2)))
        Point(batch_size=[], fields={x: f32[2], label: None})
        >>> Point(torch.zeros(2))
        Point(
            x=Tensor(shape=torch.Size([2]), device=cpu, dtype=torch.float32, is_shared=False),
            label=None,
            batch_size=torch.Size([]),
            device=None,
            is_shared=False)
        """
        if get_printoptions()["compact"]:
            return self._repr_as(type(self).__name__)
        keys = set(self._keys())
        shown = [f.name for f in self._declaration.fields if f.repr]
        lines = [f"{name}={self._describe(name)}" for name in sorted(shown) if name in keys]
        lines += [f"{name}=None" for name in shown if name not in keys]
        # a field that hides metadata of its name is shown once
        hidden = {*self._rules, "exclusive_fields", "stack_dim"}
        lines += [line for line in self._repr_meta() if line.split("=")[0] not in hidden]
        text = ",\n".join(lines).replace("\n", "\n    ")
        return f"{type(self).__name__}(\n    {text})"

    def _unset_fields(self) -> list[str]:
        keys = set(self._keys())
        return [f.name for f in self._declaration.fields if f.repr and f.name not in keys]


def run_post_init(self: Any) -> None:
    """Run the ``__post_init__`` of an instance that no constructor made, if it needs no arguments."""
    if hasattr(type(self), "__post_init__") and not any(has_no_default(f) for f in self._declaration.init_vars):
        self.__post_init__(*[default_of(f) for f in self._declaration.init_vars])
