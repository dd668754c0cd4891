/** Reading packed arrays back: the inverse of `packed_arrays.py`. */
import { unzlibSync } from "fflate";
import type { Packed, Sparse } from "./types";

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
    const start = (packed.own_apart ? 8 : 4) * rows;
    const floats = new DataView(data.buffer, data.byteOffset, start);
    for (let row = 0; row < rows; row++) {
      const top = floats.getFloat32(4 * row, true);
      for (let column = 0; column < columns; column++) {
        const code = data[start + row * columns + column] / 255;
        out[row * columns + column] = top * code * code;
      }
      if (packed.own_apart) out[row * columns + row] = floats.getFloat32(4 * (rows + row), true);
    }
  }
  return out;
}

/** One stored entry of `layer head query key`: places from 0, and the value. */
export interface Entry {
  layer: number;
  head: number;
  query: number;
  key: number;
  value: number;
}

/** The stored entries of a sparse array: columns of places, then the values. */
export function unpackSparse(sparse: Sparse): Entry[] {
  const data = bytes(sparse.data);
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const column = (which: number, index: number) => view.getUint32(4 * (which * sparse.kept + index), true);
  return Array.from({ length: sparse.kept }, (_, index) => ({
    layer: column(0, index), head: column(1, index), query: column(2, index), key: column(3, index),
    value: view.getFloat32(4 * (4 * sparse.kept + index), true),
  }));
}
