"""GGUF headers that lie: the bytes, and what is said about them (place, expected, found)."""

from __future__ import annotations

import struct

U64 = 2**64 - 1


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def start(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def key(kind: int, value: bytes, name: str | bytes = "k") -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def items(kind: int, count: int, value: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + value


def tensor(
    shape: tuple[int, ...] = (2,), kind: int = 24, offset: int = 0, name: str | bytes = "t", rank: int = -1
) -> bytes:
    dimensions = len(shape) if rank < 0 else rank
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", dimensions, *shape, kind, offset)


END = " before the file ends at byte SIZE"  # which is the size of what is hostile
K = 24  # where the first key starts: behind magic, version and counts
KEY = 'a value type 0..12 for "k"'

HOSTILE: dict[str, tuple[bytes, int | str, str, str]] = {
    "nothing": (b"", 0, "4 bytes of magic", f"0{END}"),
    "another magic": (b"GGJT" + bytes(40), 0, '"GGUF"', '"GGJT"'),
    "version 0": (start(version=0), 4, "GGUF version 2 or 3, little-endian", "version 0"),
    "version 1": (start(version=1), 4, "GGUF version 2 or 3, little-endian", "version 1, whose lengths have 32 bits"),
    "version 4": (start(version=4), 4, "GGUF version 2 or 3, little-endian", "version 4"),
    "big-endian": (
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        4,
        "GGUF version 2 or 3, little-endian",
        "a big-endian file",
    ),
    "no counts": (start()[:12], 8, "8 bytes of the count of tensors", f"4{END}"),
    "tensors beyond the bytes left": (start(tensors=2) + bytes(39), 8, f"at most 1 tensors{END}", "2"),
    "tensors without end": (start(tensors=U64), 8, f"at most 0 tensors{END}", f"{U64}"),
    "keys beyond the bytes left": (start(keys=2) + bytes(25), 16, f"at most 1 keys{END}", "2"),
    "keys without end": (start(keys=U64), 16, f"at most 0 keys{END}", f"{U64}"),
    "tensors beyond the limit": (start(tensors=2**18 + 1) + bytes(2**23), 8, "at most 262144 tensors", "262145"),
    "keys beyond the limit": (start(keys=2**18 + 1) + bytes(2**23), 16, "at most 262144 keys", "262145"),
    "a key's name without end": (
        start(keys=1) + struct.pack("<Q", U64) + bytes(9),
        K,
        "a key of at most 65535 bytes",
        f"{U64}",
    ),
    "a key's name beyond the limit": (
        start(keys=1) + struct.pack("<Q", 65_536) + bytes(70_000),
        K,
        "a key of at most 65535 bytes",
        "65536",
    ),
    "a key's name beyond the end": (
        start(keys=1) + struct.pack("<Q", 9) + bytes(8),
        K + 8,
        "9 bytes of a key",
        f"8{END}",
    ),
    "a key that is not utf-8": (start(keys=1) + key(0, b"1", b"a\xffb"), K + 9, "UTF-8 in a key", "byte 0xff"),
    "a key twice": (start(keys=2) + key(0, b"1") + key(0, b"1"), K + 14, "each key once", '"k" again'),
    "a value type beyond the last": (start(keys=1) + key(13, bytes(8)), K + 9, KEY, "13"),
    "a value type of ones": (start(keys=1) + key(2**32 - 1, bytes(8)), K + 9, KEY, f"{2**32 - 1}"),
    "a bool of 2": (start(keys=1) + key(7, b"\2"), K + 13, '0 or 1 for a bool of "k"', "2"),
    "a bool of 2 in an array": (
        start(keys=1) + key(9, items(7, 4, b"\0\1\2\1")),
        K + 27,
        '0 or 1 for a bool of "k"',
        "2",
    ),
    "a number cut short": (start(keys=1) + key(10, b"1234567"), K + 13, '8 bytes of "k"', f"7{END}"),
    "a string beyond the end": (
        start(keys=1) + key(8, struct.pack("<Q", 2**40)),
        K + 21,
        f'{2**40} bytes of "k"',
        f"0{END}",
    ),
    "a string that is not utf-8": (start(keys=1) + key(8, text(b"abc\xc3")), K + 24, 'UTF-8 in "k"', "byte 0xc3"),
    "a string of half a surrogate pair": (
        start(keys=1) + key(8, text(b"\xed\xa0\x80")),
        K + 21,
        'UTF-8 in "k"',
        "byte 0xed",
    ),
    "an array of arrays": (
        start(keys=1) + key(9, items(9, 1, items(0, 0))),
        K + 13,
        'an array of scalars or strings in "k"',
        "an array of arrays",
    ),
    "an array of an unknown type": (start(keys=1) + key(9, items(99, 0)), K + 13, KEY, "99"),
    "an array beyond the end": (
        start(keys=1) + key(9, items(4, 3, bytes(11))),
        K + 17,
        f'at most 2 items of "k"{END}',
        "3",
    ),
    "an array whose bytes wrap to 4": (
        start(keys=1) + key(9, items(4, 2**62 + 1, bytes(4))),
        K + 17,
        f'at most 1 items of "k"{END}',
        f"{2**62 + 1}",
    ),
    "strings without end": (
        start(keys=1) + key(9, items(8, U64, bytes(16))),
        K + 17,
        f'at most 2 items of "k"{END}',
        f"{U64}",
    ),
    "the second string beyond the end": (
        start(keys=1) + key(9, items(8, 2, text("ab") + struct.pack("<Q", 7))),
        K + 43,
        '7 bytes of "k"',
        f"0{END}",
    ),
    "the second string not utf-8": (
        start(keys=1) + key(9, items(8, 2, text("ab") + text(b"a\xff"))),
        K + 44,
        'UTF-8 in "k"',
        "byte 0xff",
    ),
    "an alignment of zero": (
        start(keys=1) + key(4, bytes(4), "general.alignment"),
        K,
        "general.alignment as a power of two",
        "0",
    ),
    "an alignment of 48": (
        start(keys=1) + key(4, struct.pack("<I", 48), "general.alignment"),
        K,
        "general.alignment as a power of two",
        "48",
    ),
    "an alignment of 64 bits": (
        start(keys=1) + key(10, struct.pack("<Q", 32), "general.alignment"),
        K,
        "general.alignment as UINT32",
        "UINT64",
    ),
    "an alignment in words": (
        start(keys=1) + key(8, text("32"), "general.alignment"),
        K,
        "general.alignment as UINT32",
        "STRING",
    ),
    "a tensor twice": (start(tensors=2) + tensor() + tensor(), K + 33, "each tensor once", '"t" again'),
    "a tensor's name that is not utf-8": (
        start(tensors=1) + tensor(name=b"\x80"),
        K + 8,
        "UTF-8 in a tensor's name",
        "byte 0x80",
    ),
    "five dimensions": (start(tensors=1) + tensor((1,) * 5), K + 9, 'at most 4 dimensions for tensor "t"', "5"),
    "dimensions without end": (
        start(tensors=1) + tensor(rank=2**32 - 1),
        K + 9,
        'at most 4 dimensions for tensor "t"',
        f"{2**32 - 1}",
    ),
    "a shape cut short": (
        start(tensors=1) + tensor()[:17] + bytes(3),
        K + 13,
        '8 bytes of the shape of tensor "t"',
        f"7{END}",
    ),
    "an extent of 64 bits": (
        start(tensors=1) + tensor((2**63,)),
        K + 9,
        'tensor "t" counted in 63 bits',
        f"shape [{2**63}], offset 0",
    ),
    "a product of 65 bits": (
        start(tensors=1) + tensor((2**32, 2**33)),
        K + 9,
        'tensor "t" counted in 63 bits',
        f"shape [{2**32}, {2**33}], offset 0",
    ),
    "a product that wraps to 0": (
        start(tensors=1) + tensor((2**32, 2**32)),
        K + 9,
        'tensor "t" counted in 63 bits',
        f"shape [{2**32}, {2**32}], offset 0",
    ),
    "a huge extent beside a zero": (
        start(tensors=1) + tensor((0, U64)),
        K + 9,
        'tensor "t" counted in 63 bits',
        f"shape [0, {U64}], offset 0",
    ),
    "bytes of 64 bits": (
        start(tensors=1) + tensor((2**62,), kind=0),
        K + 9,
        'tensor "t" counted in 63 bits',
        f"shape [{2**62}], offset 0",
    ),
    "an offset of 64 bits": (
        start(tensors=1) + tensor(offset=U64 - 31),
        K + 9,
        'tensor "t" counted in 63 bits',
        f"shape [2], offset {U64 - 31}",
    ),
    "half a block": (
        start(tensors=1) + tensor((48,), kind=8),
        K + 9,
        'tensor "t" in rows of whole Q8_0 blocks of 32',
        "48",
    ),
    "a scalar of blocks": (
        start(tensors=1) + tensor((), kind=8),
        K + 9,
        'tensor "t" in rows of whole Q8_0 blocks of 32',
        "1",
    ),
    "a tensor past the end": (
        start(tensors=1) + tensor((264, 10)) + bytes(31 + 2639),
        'tensor "t"',
        "its bytes before the file's end at 2735",
        "up to 2736",
    ),
    "an unknown type past the end": (
        start(tensors=1) + tensor(kind=36, offset=3200) + bytes(39),
        'tensor "t"',
        "its bytes before the file's end at 96",
        "up to 3264",
    ),
    "a tensor off the alignment": (
        start(tensors=1) + tensor(offset=8) + bytes(39),
        'tensor "t"',
        "an offset that 32 divides",
        "8",
    ),
    "a tensor inside another": (
        start(tensors=2) + tensor((40,)) + tensor(offset=32, name="u") + bytes(100),
        'tensor "u"',
        'its bytes from 136 on, after "t"',
        "from 128 on",
    ),
    "the same bytes twice": (
        start(tensors=2) + tensor() + tensor(name="u") + bytes(100),
        'tensor "u"',
        'its bytes from 98 on, after "t"',
        "from 96 on",
    ),
}
