// The slices of each GPU, as its bars and its field of the map show them.
import type { Grant, Machine, Slice } from "./api";
import { huesOf } from "./parts";

export interface Part {
  grant: Grant;
  slice: Slice;
  hue: number;
}

export const holds = (grant: Grant) => grant.state !== "parked";

let index: { grants: Grant[]; parts: Map<string, Part[]> } | null = null;

/** The slices of each GPU. The list of grants is a new one whenever more than figures changed. */
export function partsOf(machine: Machine, uuid: string): Part[] {
  if (index?.grants !== machine.grants) {
    const parts = new Map<string, Part[]>();
    for (const grant of machine.grants) {
      for (const slice of grant.slices) {
        const own = parts.get(slice.gpu) ?? [];
        own.push({ grant, slice, hue: 0 });
        parts.set(slice.gpu, own);
      }
    }
    for (const own of parts.values()) {
      const hues = huesOf(own.map((one) => one.grant.id));
      for (const one of own) one.hue = hues.get(one.grant.id) ?? 0;
    }
    index = { grants: machine.grants, parts };
  }
  return index.parts.get(uuid) ?? [];
}
