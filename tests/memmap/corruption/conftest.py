"""How files are damaged: by chance, bit by bit, and by someone who knows the formats and means harm."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile

import pytest
import torch

CANARY = b"CANARY!!"
"""What files outside of the save are full of."""


class Hostile:
    """What runs a program where it is unpickled."""

    def __reduce__(self):
        return (os.system, ("true",))


VALUES = [
    None, True, False, -1, 0, 1, 2, 7, 1 << 31, 1 << 40, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64,
    10**30, -(1 << 63), 1.0, 1.5, float("nan"), float("inf"), "", ".", "..", "../outside", "../outside/a", "/etc/x",
    "a\0b", "\ud800", "a", "shape", "torch.float32", "torch.int8", "torch.complex128", "torch.load", "os.system", "F64",
    [], {}, [[]], [None], [-1], [0], [2], [2, 3], [2, 1 << 62, 1 << 62], [1 << 32, 1 << 32], [0, 1 << 62, 1 << 62],
    {"type": "TensorDict"}, {"type": "NonTensorData"}, {"dtype": "torch.int8", "shape": [2], "is_nested": False},
    {"dtype": "torch.int8", "shape": [2, 2], "is_nested": True, "layout": "torch.jagged"},
    {"$": "enum", "class": "os:system", "value": 1}, {"$": "bytes", "base64": "!"}, {"$": []},
    {"$": "array", "npy": ""}, {"$": "dict", "items": [[[], 1]]}, {"$": "size", "items": [{}]}, {"$": "set"},
    "<class 'os.system'>", "<class 'tensordict._lazy.LazyStackedTensorDict'>", "<class 'tensordict.X.NonTensorStack'>",
    "<class 'tensordict.tensorclass.NonTensorData'>", "other.pickle", "data.pickle", [0, 1], [1, 0], "0" * 5000,
]  # fmt: skip  # shorter than one a line


def places(record, found):
    """Every container in a JSON document with each of its keys or indices."""
    if isinstance(record, dict):
        found.extend((record, key) for key in record)
        for value in record.values():
            places(value, found)
    elif isinstance(record, list):
        found.extend((record, index) for index in range(len(record)))
        for value in record:
            places(value, found)
    return found


def mutate(record, chance):
    """Changes a JSON document in one place."""
    holder, key = chance.choice(places(record, []) or [({"x": record}, "x")])
    old = holder[key]
    if isinstance(old, str) and old[:1] in ("{", "[") and chance.random() < 0.9:  # a document in a document
        with contextlib.suppress(ValueError):
            holder[key] = mutated_text(old.encode(), chance).decode("utf-8", "surrogateescape")
            return
    how = chance.choice(["value", "value", "value", "near", "near", "delete", "rename", "swap", "add", "deep"])
    if how == "value":
        holder[key] = chance.choice(VALUES)
    elif how == "near" and type(old) is int:
        holder[key] = old + chance.choice([-9, -8, -1, 1, 2, 8, 64, 1 << 32, -(1 << 32)])
    elif how == "delete" and isinstance(holder, dict):
        del holder[key]
    elif how == "rename" and isinstance(holder, dict):
        holder[
            chance.choice(["..", "../outside/a", "/etc/passwd", "a", "", "in", "x" * 5000, "a\0", "_type", "data"])
        ] = old
    elif how == "swap":
        other, place = chance.choice(places(record, []))
        holder[key], other[place] = other[place], old
    elif how == "add" and isinstance(holder, list):
        holder.insert(key, chance.choice(VALUES))
    elif how == "deep":
        holder[key] = "@DEEP@"


def mutated_text(text, chance):
    """A JSON document that was changed in some places."""
    raw = chance.random()
    if raw < 0.15:
        return flipped(text, chance)
    if raw < 0.2:
        return text.replace(b'"', b'"\xff', 1)
    if raw < 0.25:  # a name that occurs twice
        return text[:1] + text[1:].split(b",", 1)[0] + b"," + text[1:] if text[:1] == b"{" else text
    record = json.loads(text)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        mutate(record, chance)
    depth = chance.choice([100, 2000, 100_000])
    new = json.dumps(record).encode("utf-8", "surrogatepass")
    return new.replace(
        b'"@DEEP@"', chance.choice([b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth])
    )


def flipped(data, chance):
    data = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 3, 20])):
        if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def damage_bytes(data, chance):
    """Bytes of a file, damaged without regard to what they mean."""
    how = chance.choice(["flip", "flip", "cut", "extend", "zero", "remove", "insert"])
    if how == "flip":
        return flipped(data, chance)
    if how == "cut":
        return data[: chance.choice([0, 1, len(data) - 1, chance.randrange(len(data) + 1)])]
    if how == "extend":
        return data + bytes(chance.choice([1, 8, 4096]))
    start = chance.randrange(len(data) + 1)
    stop = min(len(data), start + chance.choice([1, 8, 64, 1000]))
    middle = {"zero": bytes(stop - start), "remove": b"", "insert": data[start:stop] * 2}[how]
    return data[:start] + middle + data[stop:]


def damage_safetensors(data, chance):
    length = int.from_bytes(data[:8], "little")
    if chance.random() < 0.3:
        return damage_bytes(data, chance)
    if chance.random() < 0.15:
        wrong = chance.choice(
            [0, 1, length - 1, length + 1, len(data) - 8, len(data), 100_000_001, 1 << 63, (1 << 64) - 1]
        )
        return wrong.to_bytes(8, "little") + data[8:]
    text = mutated_text(data[8 : 8 + length], chance)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def damage_consolidated(data, chance):
    length = int.from_bytes(data[-8:], "little")
    if chance.random() < 0.3:
        return damage_bytes(data, chance)
    if chance.random() < 0.15:
        wrong = chance.choice([0, 1, length - 1, length + 1, len(data) - 8, len(data), 1 << 62, 1 << 63, (1 << 64) - 1])
        return data[:-8] + wrong.to_bytes(8, "little")
    text = mutated_text(data[-8 - length : -8], chance)
    return data[: -8 - length] + text + len(text).to_bytes(8, "little")


def damage_archive(data, chance, anew=True):
    """A zip whose directory, headers or entries were changed; sometimes written anew with hostile entries."""
    how = chance.random() * (1 if anew else 0.5)
    if how < 0.15:
        return damage_bytes(data, chance)
    if how < 0.5:  # what the directory and the headers say
        spots = [match for mark in (b"PK\1\2", b"PK\3\4", b"PK\5\6") for match in find_all(data, mark)]
        for _ in range(chance.choice([1, 1, 2, 4])):
            spot = chance.choice(spots) + chance.randrange(4, 46)
            wide = chance.choice([1, 2, 4])
            value = chance.choice([0, 1, 8, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, chance.randrange(1 << 32), len(data)])
            data = data[:spot] + (value % (1 << 8 * wide)).to_bytes(wide, "little") + data[spot + wide :]
        return data
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        entries = [[info.filename, old.read(info), info.compress_type] for info in old.infolist()]
    one = chance.choice(entries)
    kind = chance.choice(["json", "json", "json", "bytes", "name", "twice", "bomb", "drop", "swap", "method", "folder"])
    if kind == "json":
        one = chance.choice([entry for entry in entries if entry[0].endswith("meta.json")])
        with contextlib.suppress(ValueError):
            one[1] = mutated_text(one[1], chance)
    elif kind == "bytes":
        one[1] = damage_bytes(one[1], chance)
    elif kind == "name":
        one[0] = chance.choice(
            ["../outside/a", "/etc/passwd", "a/../../b", "..", "a\\b", "C:\\a", "x" * 60_000, "a\0b", "./a"]
        )
    elif kind == "twice":
        entries.append([one[0], damage_bytes(one[1], chance), one[2]])
    elif kind == "bomb":
        one[1], one[2] = bytes(64 << 20), zipfile.ZIP_DEFLATED
    elif kind == "drop":
        entries.remove(one)
    elif kind == "swap":
        other = chance.choice(entries)
        one[1], other[1] = other[1], one[1]
    elif kind == "method":
        one[2] = chance.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
    else:
        one[0] += "/"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for name, payload, method in entries:
            new.writestr(zipfile.ZipInfo(name), payload, method)
    data = out.getvalue()
    if kind == "bomb" and chance.random() < 0.7:  # it says that it is as small as it was
        for spot in find_all(data, struct.pack("<I", 64 << 20)):
            data = data[:spot] + struct.pack("<I", 96) + data[spot + 4 :]
    return data


def find_all(data, mark):
    spots, spot = [], data.find(mark)
    while spot >= 0:
        spots.append(spot)
        spot = data.find(mark, spot + 1)
    return spots


def damage_meta_pt(data, chance):
    if chance.random() < 0.5:
        return damage_bytes(data, chance)
    out = io.BytesIO()
    if chance.random() < 0.5:
        torch.save(chance.choice([Hostile(), {"batch_size": Hostile()}, {"shape": [2], "dtype": "x"}]), out)
    else:
        record = torch.load(io.BytesIO(data), weights_only=True)
        key = chance.choice(list(record))
        record[key] = chance.choice([*VALUES, torch.Size([1 << 40]), torch.Size([2, 1 << 61, 8]), torch.float64])
        torch.save(record, out)
    return out.getvalue()


def damage_file(path, chance, anew=True):
    """Damages one file by what it is."""
    data = path.read_bytes()
    if path.suffix == ".json":
        new = mutated_text(data, chance) if chance.random() < 0.8 else damage_bytes(data, chance)
    elif path.suffix == ".safetensors":
        new = damage_safetensors(data, chance)
    elif path.suffix == ".tdz":
        new = damage_archive(data, chance, anew)
    elif path.suffix == ".bin":
        new = damage_consolidated(data, chance)
    elif path.name.endswith("meta.pt"):
        new = damage_meta_pt(data, chance)
    elif path.suffix == ".pickle":
        new = chance.choice([pickle.dumps(Hostile()), damage_bytes(data, chance)])
    else:
        new = damage_bytes(data, chance)
    path.write_bytes(new)


def damage_folder(folder, outside, chance):
    """Damages files of a folder, or which of them are where."""
    inside = sorted(path for path in folder.rglob("*"))
    files = [path for path in inside if path.is_file()]
    how = chance.choice(["content"] * 6 + ["swap", "missing", "link", "folder link", "folder", "pipe", "foreign"])
    one = chance.choice(files)
    if how == "content":
        documents = [path for path in files if path.suffix == ".json" or path.name.endswith("meta.pt")]
        damage_file(chance.choice(documents) if documents and chance.random() < 0.7 else one, chance)
    elif how == "swap":
        other = chance.choice(files)
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
    elif how == "missing":
        one = chance.choice(inside)
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    elif how == "link":
        data = one.read_bytes()
        if one.name == "meta.json":
            record = json.loads(data)
            record[CANARY.decode()] = {"dtype": "torch.int8", "shape": [2, 0], "is_nested": False}
            outer = json.dumps(record).encode()
        elif one.suffix == ".safetensors":
            outer = data[: 8 + int.from_bytes(data[:8], "little")]
            outer += (CANARY * len(data))[: len(data) - len(outer)]
        else:
            outer = (CANARY * (len(data) // 8 + 1))[: len(data)]
        (outside / "linked").write_bytes(outer)
        one.unlink()
        one.symlink_to(outside / "linked")
    elif how == "folder link":
        folders = [path for path in inside if path.is_dir()]
        if folders:
            one = chance.choice(folders)
            shutil.copytree(one, outside / "folder")
            for path in (outside / "folder").rglob("*.memmap"):
                path.write_bytes((CANARY * path.stat().st_size)[: path.stat().st_size])
            shutil.rmtree(one)
            one.symlink_to(outside / "folder")
    elif how == "folder":
        one.unlink()
        one.mkdir()
    elif how == "pipe":
        one.unlink()
        os.mkfifo(one)
    else:
        chance.choice([folder, *(path for path in inside if path.is_dir())]).joinpath(
            chance.choice(
                ["meta.json", "meta.pt", "0", "_tensordict", "other.pickle", "data.pickle", "model.safetensors"]
            )
        ).write_bytes(chance.choice([b"", b"{}", b'{"shape":[]}', pickle.dumps(Hostile())]))


def damage(path, outside, chance, anew):
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        with contextlib.suppress(Exception):  # it was damaged so that no damage of that kind can be done to it any more
            if path.is_dir():
                damage_folder(path, outside, chance)
            else:
                damage_file(path, chance, anew)


class Damage:
    """Damages a copy of a save, the same way for the same seed.

    Args:
        path: the file or folder.
        outside: a folder whose files must not be read through it.
        seed: a text.
        anew: whether archives are written anew too, with checksums that are right for what is wrong.
    """

    canary = CANARY

    def __call__(self, path, outside, seed, anew=True):
        damage(path, outside, random.Random(seed), anew)


@pytest.fixture(scope="session")
def damaged():
    """Damages files."""
    return Damage()
