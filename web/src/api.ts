// Requests to the console's API, and its answers. Addresses are relative: the page may be below any path.
export interface Telemetry {
  busy_ratio: number | null;
  power_watts: number | null;
  power_limit_watts: number | null;
  celsius: number | null;
}
export interface Gpu {
  index: number;
  uuid: string;
  model: string;
  memory_bytes: number;
  used_bytes: number | null;
  granted_bytes: number;
  free_bytes: number;
  free_percent: number;
  healthy: boolean;
  context_bytes: number | null;
  telemetry: Telemetry | null;
  outside: { pid: number; name: string; bytes: number | null }[];
}
export interface Slice {
  gpu: string;
  gpu_index: number | null;
  memory_bytes: number;
  used_bytes: number;
  compute_percent: number | null;
  weight_percent: number | null;
  got_ratio: number | null;
  policy: string;
  priority: string;
  idle_seconds: number | null;
  wait_p99_seconds: number | null;
}
export interface Grant {
  name: string | null;
  id: string;
  user: string;
  own: boolean;
  hidden: boolean;
  state: string;
  created: number;
  command: string | null;
  broken: string | null;
  swappable: boolean;
  away_bytes: number | null;
  slices: Slice[];
  processes: { pid: number; name: string; stopped: boolean; used_bytes: number }[];
}
export interface Machine {
  time: number;
  name: string;
  simulated: string | null;
  user: string;
  arbiter_is_up: boolean;
  pool_is_up: boolean;
  driver_version: string | null;
  notes: string[];
  gpus: Gpu[];
  grants: Grant[];
}
export interface Job {
  number: number | null;
  name: string | null;
  kind: string;
  user: string;
  hidden: boolean;
  phase: string;
  reason: string | null;
  place: number | null;
  of: number | null;
  expected_start: number | null;
  workers: number;
  next_workers: number | null;
  sizes: string;
  queue: string | null;
  command: string | null;
  directory: string | null;
  request: { gpus: number; memory_bytes: number | null; memory_percent: number | null; compute_percent: number | null };
  submitted: number;
  started: number | null;
  since: number | null;
  exit_code: number | null;
  step: number | null;
  samples_per_second: number | null;
  time_seconds: number | null;
}
export interface JobDetails extends Job {
  history: { at: number; phase: string; size: number; reason: string }[];
  worker_list: { rank: number; gpus: (number | null)[]; grant: string | null; pids: number[] }[];
  ranks: number[];
}
export interface JobList {
  up: boolean;
  items: Job[];
  left_out: number;
}
export interface Settings {
  memory_bytes: number;
  compute_percent: number | null;
  policy: string;
  priority: string;
}
export interface Resized {
  slices: { gpu_index: number; before: Settings; after: Settings; free_bytes: number; free_percent: number }[];
  command_line: string;
}
export interface Explained {
  fits: boolean;
  error: string | null;
  hint: string | null;
  waiting: { reason: string | null; place: number; of: number; expected_start: number | null } | null;
  slices: { index: number; memory_bytes: number }[];
  gpus: { index: number; name: string; free_bytes: number; free_percent: number; fits: boolean; why: string }[];
  command_line: string;
}
export interface Submitted {
  number: number;
  name: string;
}
export interface Log {
  start: number;
  end: number;
  text: string;
  phase: string | null;
}
export interface History {
  slices: { gpu: string; times: number[]; used_bytes: number[]; got_ratio: (number | null)[] }[];
}

/** A problem document of the console, or that it does not answer (status 0). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string | null,
  ) {
    super(message);
  }
}

// One half of a session: the cookie is the other. Browsers send cookies to every port of a host, and keep this for one.
const CSRF = `aliquot-csrf ${location.pathname}`;
let csrf = localStorage.getItem(CSRF) ?? "";

function keep(found: string): void {
  csrf = found;
  localStorage.setItem(CSRF, found);
}

export function eventsAddress(): string {
  return `api/v1/events?csrf=${encodeURIComponent(csrf)}`;
}

export async function ask<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { "x-aliquot-csrf": csrf };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer: Response;
  try {
    const content = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(`api/v1${path}`, { method, headers, body: content, credentials: "same-origin" });
  } catch {
    throw new Problem(0, "the console does not answer", null);
  }
  if (answer.status === 204) return undefined as T;
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, found.detail ?? answer.statusText, found.hint ?? null);
  return found as T;
}

/** Whether there is a session. */
export async function resume(): Promise<boolean> {
  try {
    await ask("GET", "/session");
    return true;
  } catch (error) {
    if (error instanceof Problem && (error.status === 401 || error.status === 403)) return false;
    throw error;
  }
}

export async function signIn(given: { token: string } | { code: string }): Promise<void> {
  keep((await ask<{ csrf: string }>("POST", "/session", given)).csrf);
}
