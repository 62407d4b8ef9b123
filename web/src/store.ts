// What the page knows: the newest snapshot, and whether the console still answers.
import { useEffect, useState } from "preact/hooks";
import { eventsAddress, resume, type JobList, type Machine } from "./api";

export interface State {
  signedIn: boolean | null;
  connected: boolean;
  machine: Machine | null;
  jobs: JobList | null;
  seen: number;
}

let state: State = { signedIn: null, connected: false, machine: null, jobs: null, seen: 0 };
const listeners = new Set<() => void>();
let source: EventSource | null = null;
let again: number | undefined;

export function update(change: Partial<State>): void {
  state = { ...state, ...change };
  for (const one of listeners) one();
}

let moved = false;

/** Whether the reader has gone from one page to another: then the new page's heading is read. */
export function hasMoved(): boolean {
  return moved;
}

export function move(): void {
  moved = true;
  window.scrollTo(0, 0);
}

export function useStore(): State {
  const [, redraw] = useState(0);
  useEffect(() => {
    const listener = () => redraw((n) => n + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return state;
}

/** Follow the console's events, and begin again whenever they stop. */
export async function connect(): Promise<void> {
  source?.close();
  clearTimeout(again);
  let signedIn: boolean;
  try {
    signedIn = await resume();
  } catch {
    update({ connected: false });
    again = window.setTimeout(() => void connect(), 1000);
    return;
  }
  update({ signedIn });
  if (!signedIn) return;
  source = new EventSource(eventsAddress());
  source.addEventListener("machine", (event) =>
    update({ machine: JSON.parse(event.data) as Machine, connected: true, seen: Date.now() }),
  );
  source.addEventListener("jobs", (event) => update({ jobs: JSON.parse(event.data) as JobList }));
  source.addEventListener("error", () => {
    source?.close();
    update({ connected: false });
    again = window.setTimeout(() => void connect(), 1000);
  });
}

export function disconnect(): void {
  source?.close();
  clearTimeout(again);
  update({ signedIn: false, machine: null, jobs: null, connected: false });
}
