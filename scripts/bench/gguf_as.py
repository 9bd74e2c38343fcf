"""Write a .gguf once more with all its matrices in one type, for llama.cpp to run.

    python -m scripts.bench.gguf_as bfloat16 OUT.gguf [FILE.gguf]

FILE is the embedded default model if not given.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize

from minisgl.models.hub import default_gguf

TYPES = {
    "float32": (torch.float32, GGMLQuantizationType.F32),
    "bfloat16": (torch.bfloat16, GGMLQuantizationType.BF16),
    "float16": (torch.float16, GGMLQuantizationType.F16),
}


def write_as(dtype: str, source: Path, out: Path) -> None:
    """`source` as `out`, its matrices in one of `TYPES`; norms stay float32, as llama.cpp wants."""
    to, kind = TYPES[dtype]
    reader = GGUFReader(source)
    writer = GGUFWriter(out, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        is_array = field.types[0] == GGUFValueType.ARRAY
        item = field.types[-1] if is_array else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=item)
    for tensor in reader.tensors:
        data = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if data.dim() == 1:
            writer.add_tensor(tensor.name, data.float().numpy())
        else:
            numbers = data.to(to).view(torch.uint8).numpy()
            writer.add_tensor(tensor.name, numbers, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dtype", choices=TYPES)
    parser.add_argument("out", type=Path)
    parser.add_argument("file", type=Path, nargs="?")
    args = parser.parse_args()
    write_as(args.dtype, args.file or default_gguf(), args.out)


if __name__ == "__main__":
    main()
