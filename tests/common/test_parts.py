"""Files of records in parts."""

import io
import random
import struct
import zlib

import pytest

from plm_jax.common import parts


@pytest.mark.parametrize("num_parts, buffer", [(1, 2**25), (7, 2**25), (300, 2**12)])
def test_parts_contain_their_records_in_order(num_parts, buffer, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_BUFFER_BYTES", buffer)
    rng = random.Random(num_parts)
    records = [
        (rng.randrange(num_parts), rng.randbytes(rng.choice((1, 50, 400_000 if i % 99 == 0 else 9))))
        for i in range(999)
    ]
    writer = parts.PartsWriter(num_parts)
    for part, record in records:
        writer.add(part, record)
    path = tmp_path / "file"
    with open(path, "wb") as file:
        offsets = writer.write(file)
    assert offsets[0] == 0 and offsets[-1] == path.stat().st_size and len(offsets) == num_parts + 1
    for part in range(num_parts):
        expected = b"".join(record for number, record in records if number == part)
        each = parts.Slice(str(path), offsets[part], offsets[part + 1], writer.sizes[part])
        assert b"".join(parts.blocks(each)) == expected and writer.sizes[part] == len(expected)


def test_records_are_not_divided_among_blocks(tmp_path):
    writer = parts.PartsWriter(1)
    for number in range(2**16):
        writer.add(0, struct.pack("<2Q", number, number))
    with open(tmp_path / "file", "wb") as file:
        offsets = writer.write(file)
    blocks = list(parts.blocks(parts.Slice(str(tmp_path / "file"), *offsets, writer.sizes[0])))
    assert len(blocks) > 2 and all(len(block) % 16 == 0 for block in blocks)


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data[:20] + b"\xff" + data[21:]])
def test_damage_is_an_error(damage, tmp_path):
    writer, file = parts.PartsWriter(1), io.BytesIO()
    writer.add(0, b"text " * 99)
    offsets = writer.write(file)
    (tmp_path / "file").write_bytes(damage(file.getvalue()))
    with pytest.raises(ValueError, match="a file between two stages is"):
        list(parts.blocks(parts.Slice(str(tmp_path / "file"), *offsets, writer.sizes[0])))


def test_block_of_another_size_than_noted_is_an_error(tmp_path):
    compressed = zlib.compress(b"abc")
    (tmp_path / "file").write_bytes(struct.pack("<II", 4, len(compressed)) + compressed)
    with pytest.raises(ValueError, match="damaged"):
        list(parts.blocks(parts.Slice(str(tmp_path / "file"), 0, 8 + len(compressed), 4)))


def test_parts_that_are_stored_as_one_number_their_records(tmp_path):
    rng = random.Random(1)
    records = [(rng.randrange(10, 17), rng.randbytes(rng.choice((0, 1, 70_000)))) for _ in range(99)]
    writer = parts.PartsWriter(7, width=3, first=10)
    for part, record in records:
        writer.add(part, record)
    with open(tmp_path / "file", "wb") as file:
        offsets = writer.write(file)
    assert len(offsets) == 4 and len(writer.sizes) == 3
    for stored in range(3):
        each = parts.Slice(str(tmp_path / "file"), offsets[stored], offsets[stored + 1], writer.sizes[stored])
        expected = [(part, record) for part, record in records if (part - 10) // 3 == stored]
        assert list(parts.numbered_records(each)) == expected
