// What the page knows: the newest snapshot, and whether the console still answers.
import { useEffect, useState } from "preact/hooks";
import { Problem, ask, request, type JobList, type Machine } from "./api";
import { apply, type Delta } from "./deltas";
import { ImpostorError, doubt, forget } from "./session";

export interface State {
  signedIn: boolean | null;
  connected: boolean;
  impostor: boolean;
  machine: Machine | null;
  jobs: JobList | null;
  seen: number;
}

const AGAIN = 1000;
const SILENCE = 20_000; // the console says something at least every 15 s

let state: State = { signedIn: null, connected: false, impostor: false, machine: null, jobs: null, seen: 0 };
const listeners = new Set<() => void>();
let stream: AbortController | null = null;
let again: number | undefined;

export function update(change: Partial<State>): void {
  state = { ...state, ...change };
  for (const one of listeners) one();
}

/** The newest state, for what draws without a component. */
export function current(): State {
  return state;
}

export function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
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
  useEffect(() => subscribe(() => redraw((n) => n + 1)), []);
  return state;
}

/** Redraws only when one of these changes. */
export function useChosen(choose: (state: State) => unknown[]): State {
  const [, redraw] = useState(0);
  const first = choose(state);
  useEffect(() => {
    let before = first;
    return subscribe(() => {
      const now = choose(state);
      if (now.some((one, at) => one !== before[at])) redraw((n) => n + 1);
      before = now;
    });
  }, []);
  return state;
}

/** Follow the console's events, and begin again whenever they stop. */
export async function connect(): Promise<void> {
  stream?.abort();
  clearTimeout(again);
  const own = (stream = new AbortController());
  let silent: number | undefined;
  const awake = () => {
    clearTimeout(silent);
    silent = window.setTimeout(() => own.abort(), SILENCE);
  };
  try {
    await ask("GET", "/session"); // the console has proven itself, and accepts this page
    update({ signedIn: true, impostor: false });
    awake();
    const answer = await request("GET", "/events", undefined, own.signal);
    if (!answer.ok || answer.body === null) throw new Problem(answer.status, answer.statusText, null);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      awake();
      text += value;
      const end = text.lastIndexOf("\n\n");
      if (end < 0) continue;
      for (const one of text.slice(0, end).split("\n\n")) receive(one);
      text = text.slice(end + 2);
    }
  } catch (error) {
    if (stream !== own) return;
    if (error instanceof Problem && error.status === 401) {
      update({ signedIn: false, impostor: false, connected: false });
      return;
    }
    if (error instanceof ImpostorError) update({ impostor: true, signedIn: state.signedIn ?? false });
  } finally {
    clearTimeout(silent);
  }
  if (stream !== own) return;
  doubt();
  update({ connected: false });
  again = window.setTimeout(() => void connect(), AGAIN);
}

function receive(event: string): void {
  const name = /^event: (.*)$/m.exec(event)?.[1];
  const at = event.indexOf("\ndata: ");
  if (name === undefined || at < 0) return;
  const content = JSON.parse(event.slice(at + 7)) as never;
  if (name === "machine") update({ machine: content, connected: true, seen: Date.now() });
  else if (name === "jobs") update({ jobs: content });
  else if (name === "machine-delta" && state.machine !== null) {
    apply(state.machine, content as Delta);
    update({ connected: true, seen: Date.now() });
    document.dispatchEvent(new Event("aliquot-update")); // for bench/console
  } else if (name === "jobs-delta" && state.jobs !== null) {
    apply(state.jobs, content as Delta);
    update({});
  }
}

export function disconnect(): void {
  stream?.abort();
  stream = null;
  clearTimeout(again);
  void forget();
  update({ signedIn: false, impostor: false, machine: null, jobs: null, connected: false });
}
