"""Ways to damage a file, for the fuzzer: its bytes, lines, JSON, compression or name."""

import gzip
import json
import os
import re
import shutil

WORDS = (
    b"\0",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",  # half of a surrogate pair
    b"\\ud800",
    b"\r",
    b"\r\n",
    b"\n",
    b"\t",
    b'"',
    b"'",
    b" ",
    b"\xff",
    b"\xc3",
    b"\\",
    b"{",
    b"]",
    b"=",
    b"#",
    b"\x0b",
    b"\x1c",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"nan",
    b"null",
)
NUMBERS = (
    *(
        str(sign * (2**bits - less)).encode()
        for sign in (1, -1)
        for bits in (31, 32, 53, 63, 64)
        for less in (0, 1)
    ),
    *(b"0", b"-0", b"-1", b"1.0", b"1.5", b"1e5", b"1e999", b"-1e999", b"NaN", b"Infinity", b"inf", b"1_0"),
    *(b"1" * 30, b"9" * 5000, b"0x10", b"1" * 12, b"\xd9\xa1"),
)
VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    1.5,
    -1e308,
    "",
    "x",
    "../..",
    "\0",
    [],
    {},
    [[]],
    ["x"],
)
LONG = 100_000_000


# ---------------------------------------------------------------- bytes


def flip(random, data):
    for _ in range(random.choice((1, 1, 1, 8))):
        if data:
            at = random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
    return data


def insert(random, data):
    at = random.randint(0, len(data))
    return data[:at] + random.choice(WORDS) * random.choice((1, 1, 2, 1000)) + data[at:]


def delete(random, data):
    at = random.randint(0, len(data))
    return data[:at] + data[at + random.choice((1, 1, 3, 20)) :]


def truncate(random, data):
    return data[: random.randint(0, len(data))]


def prepend_mark(random, data):
    return b"\xef\xbb\xbf" * random.choice((1, 1, 2)) + data


def carriage_returns(random, data):
    return data.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\r", b"\r\r\n")))


def other_encoding(random, data):
    return data.decode(errors="replace").encode(
        random.choice(("utf-16", "utf-16-le", "latin-1")), errors="replace"
    )


def change_number(random, data):
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", data))
    if not found:
        return data
    match = random.choice(found)
    return data[: match.start()] + random.choice(NUMBERS) + data[match.end() :]


def long_word(random, data):
    at = random.randint(0, len(data))
    word = random.choice((b"x", b"[", b'"', b"1", b" ", b"\t", b"a."))
    return data[:at] + word * random.choice((10_000, 300_000)) + data[at:]


def very_long_line(random, data):
    at = data.find(b"\n", random.randint(0, len(data))) + 1
    return data[:at] + b"x" * LONG + data[at:]


# ---------------------------------------------------------------- lines


def on_lines(change):
    """Make a mutation of a file from a mutation of its list of lines."""

    def changed(random, data):
        lines = data.split(b"\n")
        change(random, lines)
        return b"\n".join(lines)

    changed.__name__ = change.__name__
    return changed


def repeat_line(random, lines):
    lines.insert(random.randint(0, len(lines)), random.choice(lines))


def remove_line(random, lines):
    del lines[random.randrange(len(lines))]


def swap_lines(random, lines):
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


def empty_line(random, lines):
    lines.insert(random.randint(0, len(lines)), random.choice((b"", b" ", b"\t\t", b"#", b"{}", b"[]", b"null")))


def swap_fields(random, lines):
    at = random.randrange(len(lines))
    separator = random.choice((b"\t", b" ", b",", b"="))
    fields = lines[at].split(separator)
    random.shuffle(fields)
    lines[at] = separator.join(fields)


def empty_field(random, lines):
    at = random.randrange(len(lines))
    fields = lines[at].split(b"\t")
    fields[random.randrange(len(fields))] = random.choice((b"", b" ", b'"', b"x\ty"))
    lines[at] = b"\t".join(fields)


def deep(random, data):
    """Deeply nested brackets, in place of a line or of a JSON value."""
    depth = random.choice((50, 300, 490, 900, 5000, 100_000))
    opened, closed = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    nest = opened * depth + b"1" + closed * depth * random.choice((1, 1, 0))
    values = list(re.finditer(rb'(?<=[:=]) *("[^"\n]*"|\[[^]\n]*\]|[\w.]+)', data))
    if not values or random.random() < 0.2:
        return data + nest + b"\n"
    match = random.choice(values)
    return data[: match.start()] + nest + data[match.end() :]


# ---------------------------------------------------------------- JSON


def change_json(random, data):
    """Change the JSON of the file or of a line somewhere: another value or type, a missing key, or a new key."""
    try:
        return json.dumps(altered(random, json.loads(data)), ensure_ascii=random.random() < 0.5).encode(
            errors="surrogatepass"
        )
    except (ValueError, RecursionError):
        pass
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    try:
        lines[at] = json.dumps(altered(random, json.loads(lines[at]))).encode()
    except (ValueError, RecursionError):
        return flip(random, data)
    return b"\n".join(lines)


def altered(random, value):
    """Make one change somewhere in a JSON value; returns the new value."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(sorted(value))
        what = random.random()
        if what < 0.15:
            return {name: inner for name, inner in value.items() if name != key}
        if what < 0.25:
            return {**value, random.choice(("x", "", "auto_map", key + "s")): random.choice(VALUES)}
        return {**value, key: altered(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.7:
        at = random.randrange(len(value))
        return [*value[:at], altered(random, value[at]), *value[at + random.randrange(2) :]]
    if isinstance(value, str) and random.random() < 0.3:
        return random.choice((value * 2, value[:-1], value + "\0", value + "\ud800", value.upper(), " " + value))
    if isinstance(value, int) and random.random() < 0.5:
        return random.choice((value + 1, value - 1, -value, value * 1000, value * 10**9, float(value)))
    return random.choice(VALUES)


# ---------------------------------------------------------------- whole files


def compress(random, path):
    """Compress the file, under its name or with .gz, whole or damaged, in one or several gzip members."""
    data = path.read_bytes()
    cut = random.randint(0, len(data))
    members = [data] if random.random() < 0.6 else [data[:cut], b"", data[cut:]]
    packed = b"".join(gzip.compress(member, 1, mtime=0) for member in members)
    damage = random.choice((None, None, truncate, flip, delete, insert, prepend_mark))
    packed = damage(random, packed) if damage else packed
    if random.random() < 0.2:
        path.write_bytes(packed)
        return
    path.with_name(path.name + ".gz").write_bytes(packed if random.random() < 0.9 else data)
    if random.random() < 0.95:
        path.unlink()


def remove(random, path):
    path.unlink()


def empty(random, path):
    path.write_bytes(b"")


def make_folder(random, path):
    path.unlink()
    path.mkdir()


def dangle(random, path):
    path.unlink()
    os.symlink(random.choice(("nowhere", path.name, "/dev/null")), path)


def rename(random, path):
    names = ("x" + path.name, path.name + "x", path.name.upper(), "é " + path.name)
    path.rename(path.with_name(random.choice(names)))


def replace(random, path):
    others = sorted(other for other in path.parent.rglob("*") if other.is_file())
    shutil.copyfile(random.choice(others), path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


OF_DATA = (
    *(flip, insert, delete, truncate, prepend_mark, carriage_returns, other_encoding),
    *(change_number, change_number, change_number, long_word, deep),
    *(change_json, change_json, change_json, change_json),
    *map(on_lines, (repeat_line, repeat_line, remove_line, swap_lines, empty_line, swap_fields, empty_field)),
)
OF_FILES = (compress, compress, compress, compress, remove, empty, make_folder, dangle, rename, replace)


def mutate(random, folder):
    """Damage one or two files of a folder; returns what was done."""
    done = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = random.choice(files) if files else None
        if path is None:
            break
        if random.random() < 0.12:
            how = random.choice(OF_FILES)
            how(random, path)
        else:
            how = very_long_line if random.random() < 0.0003 else random.choice(OF_DATA)
            data = how(random, path.read_bytes())
            path.unlink()  # the file may be a link to the sound one
            path.write_bytes(data)
        done.append(f"{how.__name__} {path.relative_to(folder)}")
    return done
