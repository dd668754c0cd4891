/** From number to colour and width: zero is always in it, linear or square root, and the end is written on the legend. */
import { format } from "d3-format";

export type Curve = "linear" | "sqrt";

export interface Scale {
  top: number;
  curve: Curve;
  share: boolean;
  /** Runs the scale to both sides of zero? */
  signed?: boolean;
}

/** Where a value stands between zero and the scale's end; to both sides of zero where the scale has two. */
export function position(scale: Scale, value: number): number {
  if (!(scale.top > 0)) return 0;
  const t = Math.min(1, Math.abs(value) / scale.top);
  const size = scale.curve === "sqrt" ? Math.sqrt(t) : t;
  return scale.signed && value < 0 ? -size : size;
}

/** The value that a place of the legend stands for: the inverse of `position`. */
export function valueAt(scale: Scale, t: number): number {
  return scale.top * (scale.curve === "sqrt" ? Math.sign(t) * t * t : t);
}

const three = format(".3~r");
const small = format(".2~e");

/** Three significant digits, and all before the point; shares as per cent. */
export function number(value: number, share = false): string {
  if (share) {
    const percent = 100 * value;
    return `${percent !== 0 && Math.abs(percent) < 0.01 ? small(percent) : Math.abs(percent) < 0.1 ? format(".2~f")(percent) : format(".1f")(percent)} %`;
  }
  if (value === 0) return "0";
  if (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6) return small(value);
  return Math.abs(value) >= 1000 ? format(",.0f")(value) : three(value);
}
