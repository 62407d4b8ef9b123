// Differences between snapshots, applied in place: what did not change stays the same object.
import type { Gpu, Grant, Job, JobList, Machine, Slice } from "./api";

type Row = Record<string, unknown>;
type Columns = { at: number[] } & Record<string, unknown[]>;

export interface Delta {
  view: Row;
  lists: Record<string, { gone?: number[]; set?: [number, never][] }>;
  moved: Record<string, Columns>;
}

const KEYS: Record<string, (item: never) => unknown> = {
  gpus: (gpu: Gpu) => gpu.uuid,
  grants: (grant: Grant) => grant.id,
  items: (job: Job & { id?: string }) => job.id ?? job.number ?? `${job.user} ${job.name} ${job.submitted}`,
};

/** The rows of a machine by their places, as deltas name them. */
interface Rows {
  gpus: Gpu[];
  slices: Slice[];
  processes: Grant["processes"];
}
let rows: { of: Machine; grants: Grant[]; found: Rows } | null = null;

function rowsOf(machine: Machine): Rows {
  if (rows === null || rows.of !== machine) {
    const found = { gpus: machine.gpus, slices: machine.grants.flatMap((one) => one.slices), processes: machine.grants.flatMap((one) => one.processes ?? []) };
    rows = { of: machine, grants: machine.grants, found };
  }
  return rows.found;
}

function place(items: never[], change: { gone?: number[]; set?: [number, never][] }, key: (item: never) => unknown): void {
  for (const at of [...(change.gone ?? [])].reverse()) items.splice(at, 1);
  const known = new Set(items.map(key));
  for (const [at, item] of change.set ?? []) items.splice(at, known.has(key(item)) ? 1 : 0, item);
}

function move(target: object[], columns: Columns): void {
  const { at, ...fields } = columns;
  for (const [field, values] of Object.entries(fields)) {
    for (let index = 0; index < at.length; index += 1) {
      const row = target[at[index] as number] as Row | null | undefined;
      if (row) row[field] = values[index];
    }
  }
}

/** Change a view. Whether more than figures changed: then its lists are new ones. */
export function apply(view: Machine | JobList, delta: Delta): boolean {
  Object.assign(view, delta.view);
  const target = view as unknown as Record<string, never[]>;
  const changed = Object.entries(delta.lists);
  for (const [name, change] of changed) {
    const items = [...(target[name] ?? [])] as never[];
    place(items, change, KEYS[name]!);
    target[name] = items;
  }
  if (changed.length > 0) rows = null;
  for (const [name, columns] of Object.entries(delta.moved)) {
    const found = rowsOf(view as Machine);
    move(name === "telemetry" ? found.gpus.map((one) => one.telemetry as object) : (found[name as keyof Rows] as object[]), columns);
  }
  return changed.length > 0;
}
