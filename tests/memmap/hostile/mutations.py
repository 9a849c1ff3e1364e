"""Mutations of saves, at the level of their structure or of their bytes."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import struct
import warnings
import zipfile

import torch

NUMBERS = [-1, 0, 1, 2, 3, 7, 8, 64, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 64]
DTYPES = [
    name for name in map(str, vars(torch).values()) if re.fullmatch(r"torch\.[a-z]+[0-9][a-z0-9_]*|torch\.bool", name)
]
DTYPES = sorted({*DTYPES, "torch.quint8", "torch.qint32", "torch.quint4x2", "torch.float", "torch", "float32", ""})
CODES = ["BOOL", "U8", "I8", "I16", "F16", "BF16", "F32", "F64", "I64", "U64", "C64", "F8_E4M3", "F8_E8M0", "F4", "X"]
TEXTS = [
    "", ".", "..", "../outside", "../../outside/canary", "/etc/passwd", "a\0b", "\ud800", "a", "b", "shape", "x" * 300,
    "TensorDict", "NonTensorData", "NonTensorStack", "LazyStackedTensorDict", "other.pickle", "pickle.pkl", "time",
    "<class 'tensordict._td.TensorDict'>", "<class 'tensordict._lazy.LazyStackedTensorDict'>", "<class 'os.system'>",
    "<class 'tensordict.tensorclass.NonTensorData'>", "<class 'tensordict.tensorclass.NonTensorStack'>", "torch.jagged",
    "nested", "jagged", "strided", "%-0", "meta.json", "<NJT_VALUES>j", "<NJT_OFFSETS>j", "<NJT_LENGTHS>j", "0", "1",
]  # fmt: skip  # shorter than one a line
LARGE_ARRAY = {
    "$": "array",
    "npy": "k05VTVBZAQB2AHsnZGVzY3InOiAnPGY4JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDEwMDAwMDAwMDAwMCwpfQo=",
}
OBJECTS = [
    None, True, False, 1.5, float("nan"), [], {}, [[]], [0], [2, 3], [0, 1 << 40], [1 << 40, 0], [1 << 31, 1 << 31],
    {"td": {}}, {"tensor": "a"}, {"type": "TensorDict"}, {"non_tensor": [1]}, {"$": "tuple", "items": [[], {}]},
    {"dtype": "torch.int8", "shape": [2, 2], "is_nested": True}, {"$": "bytes", "base64": "!"},
    {"dtype": "torch.int8", "shape": [0, 1 << 40], "is_nested": True, "layout": "torch.jagged"}, {"$": "path"},
    {"$": "size", "items": ["a"]}, {"$": "enum", "class": "os:system", "value": 1}, LARGE_ARRAY,
    {"$": "dataclass", "class": "x", "fields": {}}, {"$": "dict", "items": [[[], 1]]},
]  # fmt: skip


def places(record):
    """The containers of a JSON document with their keys or indices."""
    found, waiting = [], [record]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], dict | list):
                waiting.append(one[key])
    return found


def random_value(old, chance):
    """Another value, most often of the kind of the earlier one."""
    roll = chance.random()
    if type(old) is int and roll < 0.8:
        return chance.choice(NUMBERS) if roll < 0.4 else old + chance.choice([-8, -1, 1, 2, 8, 64])
    if isinstance(old, str) and roll < 0.8:
        if old.startswith("torch."):
            return chance.choice(DTYPES)
        return chance.choice(CODES) if old in CODES else chance.choice(TEXTS)
    if isinstance(old, list) and roll < 0.6 and all(type(n) is int for n in old):
        return [chance.choice(NUMBERS) for _ in range(chance.randrange(4))] if roll < 0.4 else old[::-1]
    kind = chance.random()
    return copy.deepcopy(chance.choice(OBJECTS if kind < 0.5 else NUMBERS if kind < 0.8 else TEXTS))


def mutate_json(text, chance):
    """A JSON document that was changed in one place or a few; documents inside it are changed too."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return flip(text, chance)
    depth = 0
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        found = places(record) if isinstance(record, dict | list) else []
        if not found:
            break
        holder, key = chance.choice(found)
        old, how = holder[key], chance.random()
        if isinstance(old, str) and old[:1] in ("{", "[") and how < 0.9:
            holder[key] = mutate_json(old.encode("utf-8", "replace"), chance).decode("utf-8", "replace")
        elif how < 0.6:
            holder[key] = random_value(old, chance)
        elif how < 0.7 and isinstance(holder, dict):
            del holder[key]
        elif how < 0.8 and isinstance(holder, dict):
            holder[chance.choice([*TEXTS, *list(holder)])] = holder.pop(key)
        elif how < 0.9:
            other, place = chance.choice(found)
            if not isinstance(other[place], dict | list) and not isinstance(old, dict | list):  # no circles
                holder[key], other[place] = other[place], old
            else:
                holder[key] = json.loads(json.dumps(other[place]))
        elif how < 0.95 and isinstance(holder, list):
            holder.insert(key, random_value(old, chance))
        else:
            depth = chance.choice([50, 210, 1000, 20_000])
            holder[key] = "@DEEP@"
    try:
        new = json.dumps(record, separators=(",", ":")).encode()
    except RecursionError:  # two deep values, one inside the other
        return flip(text, chance)
    if depth:
        start, end = chance.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'{"td":{"batch_size":[],"keys":{"a":', b"}}}")])
        new = new.replace(b'"@DEEP@"', start * depth + b"1" + end * depth)
    return new


def flip(data, chance):
    """Bytes with a few changed, removed or added."""
    data, how = bytearray(data), chance.random()
    if how < 0.5:
        for _ in range(chance.choice([1, 1, 2, 8])):
            if data:
                data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    elif how < 0.7:
        del data[chance.randrange(len(data) + 1) :]
    elif how < 0.85:
        start = chance.randrange(len(data) + 1)
        del data[start : start + chance.choice([1, 2, 8, 100])]
    else:
        start = chance.randrange(len(data) + 1)
        data[start:start] = bytes(chance.choice([1, 8, 64])) if chance.random() < 0.5 else data[:64]
    return bytes(data)


def number_at(data, position, form, chance):
    """Bytes with another number at a position."""
    data = bytearray(data)
    with contextlib.suppress(struct.error):
        old = struct.unpack_from(form, data, position)[0]
        new = chance.choice([*NUMBERS, old - 1, old + 1, old + 8, old * 2])
        struct.pack_into(form, data, position, new % (1 << 8 * struct.calcsize(form)))
    return bytes(data)


def mutate_safetensors(data, chance):
    length = int.from_bytes(data[:8], "little")
    if chance.random() < 0.15:
        return flip(data, chance) if chance.random() < 0.5 else number_at(data, 0, "<Q", chance)
    header = mutate_json(data[8 : 8 + length].rstrip(), chance)
    if chance.random() < 0.9:
        header += b" " * (-(8 + len(header)) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def mutate_consolidated(data, chance):
    length = int.from_bytes(data[-8:], "little")
    if chance.random() < 0.15:
        return flip(data, chance) if chance.random() < 0.5 else number_at(data, len(data) - 8, "<Q", chance)
    body, text = data[: -8 - length], data[-8 - length : -8]
    start = body.find(b'{"tensordict_memmap":')
    roll = chance.random()
    if start >= 0 and roll < 0.4:
        body = body[:start] + mutate_json(body[start:].rstrip(), chance)
    elif roll < 0.5 and body:  # offsets and lengths of jagged tensors are among the bytes of the leaves
        body = number_at(body, chance.randrange(len(body)) // 8 * 8, "<Q", chance)
    else:
        text = mutate_json(text, chance)
    return body + text + len(text).to_bytes(8, "little")


def mutate_archive(data, chance):
    roll = chance.random()
    if roll < 0.1:
        return flip(data, chance)
    if roll < 0.5:  # a field of a record: local headers, the central directory, the end
        kinds = {b"PK\3\4": 30, b"PK\1\2": 46, b"PK\5\6": 22}
        spots = [(m.start(), kinds[m.group()]) for m in re.finditer(rb"PK(?:\x03\x04|\x01\x02|\x05\x06)", data)]
        for _ in range(chance.choice([1, 1, 2])):
            start, size = chance.choice(spots)
            data = number_at(data, start + chance.randrange(4, size - 1), chance.choice(["<H", "<I", "<B"]), chance)
        return data
    # the content of a member, in a valid archive
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(info, file.read(info)) for info in file.infolist()]
    target = chance.randrange(len(members))
    if chance.random() < 0.7:
        target = chance.choice([n for n, (info, _) in enumerate(members) if info.filename.endswith(".json")])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for number, (info, content) in enumerate(members):
            name, kind = info.filename, info.compress_type
            if number == target:
                if chance.random() < 0.1:
                    continue
                if chance.random() < 0.15:
                    name = chance.choice([text for text in TEXTS if text and "\0" not in text and text != "\ud800"])
                else:
                    content = mutate_json(content, chance) if name.endswith(".json") else flip(content, chance)
            kind = chance.choice([0, 8, 12, 14]) if chance.random() < 0.1 else kind
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                file.writestr(name, content, compress_type=kind)
    return out.getvalue()


def mutate_pt(data, chance):
    """A file of torch.save with another record, or other bytes."""
    if chance.random() < 0.4:
        return flip(data, chance)
    try:
        record = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # changed before
        return flip(data, chance)
    key = chance.choice([*record, "shape"])
    sizes = [torch.Size([chance.choice([0, 1, 2, 3, 1 << 31, 1 << 40, 1 << 62]) for _ in range(chance.randrange(4))])]
    dtypes = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    record[key] = chance.choice([None, -1, 0, 3, "a", [3], {}, *sizes * 4, *chance.sample(dtypes, 4)])
    if chance.random() < 0.2:
        record.pop(key)
    out = io.BytesIO()
    torch.save(record, out)
    return out.getvalue()


def mutate_files(files, chance):
    """A folder with one file changed, removed, copied or renamed."""
    files = dict(files)
    for _ in range(chance.choice([1, 1, 1, 2])):
        documents = [name for name in files if name.endswith(".json")]
        name = chance.choice(documents if documents and chance.random() < 0.7 else list(files))
        roll = chance.random()
        if roll < 0.06:
            del files[name]
        elif roll < 0.1:
            files[chance.choice(list(files))] = files[name]
        elif roll < 0.13:
            files[f"{name}.copy" if chance.random() < 0.5 else f"0/{name}"] = files.pop(name)
        elif name.endswith(".json"):
            files[name] = mutate_json(files[name], chance)
        elif name.endswith(".pt"):
            files[name] = mutate_pt(files[name], chance)
        elif name.endswith(".safetensors"):
            files[name] = mutate_safetensors(files[name], chance)
        elif name.endswith(".shape.memmap") and files[name] and chance.random() < 0.8:
            files[name] = number_at(files[name], chance.randrange(len(files[name])) // 8 * 8, "<Q", chance)
        else:
            files[name] = flip(files[name], chance)
        if not files:
            break
    return files


MUTATORS = {
    "safetensors": mutate_safetensors,
    "consolidated": mutate_consolidated,
    "archive": mutate_archive,
    "compressed": mutate_archive,
}
