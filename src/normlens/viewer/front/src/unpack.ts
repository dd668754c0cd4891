/** Reading packed arrays back: the inverse of `pack.py`. */
import { unzlibSync } from "fflate";
import type { Packed } from "./types";

function bytes(text: string): Uint8Array {
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) out[i] = binary.charCodeAt(i);
  return unzlibSync(out);
}

/** All 65,536 float16 values, so that a cell is one look-up. */
let table: Float32Array | null = null;
function halves(): Float32Array {
  if (table) return table;
  table = new Float32Array(65536);
  for (let code = 0; code < 65536; code++) {
    const exponent = (code >> 10) & 31;
    const fraction = code & 1023;
    const size = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1 + fraction / 1024) * 2 ** (exponent - 15);
    table[code] = code & 0x8000 ? -size : size;
  }
  return table;
}

/** The numbers of one layer, in the order of the packed array's other axes. */
export function unpackLayer(packed: Packed, layer: number): Float32Array {
  const shape = packed.shape!;
  const data = bytes(packed.data![layer]);
  const size = shape.slice(1).reduce((a, b) => a * b, 1);
  const out = new Float32Array(size);
  if (packed.encoding === "f16") {
    const half = halves();
    const scale = packed.scale![layer];
    for (let i = 0; i < size; i++) out[i] = half[data[i] | (data[size + i] << 8)] * scale;
  } else {
    const columns = shape[shape.length - 1];
    const rows = size / columns;
    const tops = new DataView(data.buffer, data.byteOffset, 4 * rows);
    for (let row = 0; row < rows; row++) {
      const top = tops.getFloat32(4 * row, true);
      for (let column = 0; column < columns; column++) {
        const code = data[4 * rows + row * columns + column] / 255;
        out[row * columns + column] = top * code * code;
      }
    }
  }
  return out;
}
