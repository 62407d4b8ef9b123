// Requests to the console's API, and its answers. Addresses are relative: the page may be below any path.
import { ImpostorError, SignedOutError, doubt, signed } from "./session";

export interface Telemetry {
  busy_ratio: number | null;
  power_watts: number | null;
  power_limit_watts: number | null;
  celsius: number | null;
}
export interface Gpu {
  node?: string; // of a cluster
  why?: string | null;
  kind?: string | null;
  index: number;
  uuid: string;
  model: string;
  memory_bytes: number;
  used_bytes: number | null;
  granted_bytes: number;
  free_bytes: number | null;
  free_percent: number | null;
  healthy: boolean;
  context_bytes?: number | null;
  telemetry: Telemetry | null;
  outside?: { pid: number; name: string; bytes: number | null }[];
}
export interface Slice {
  gpu: string;
  gpu_index: number | null;
  memory_bytes: number;
  used_bytes: number | null;
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
  namespace?: string | null; // of a cluster: these four instead of a name and a user
  pod?: string | null;
  container?: string | null;
  claim?: string | null;
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
/** One machine, or in what is optional here, a cluster. */
export interface Machine {
  time: number;
  name?: string;
  simulated?: string | null;
  user: string;
  arbiter_is_up?: boolean;
  pool_is_up?: boolean;
  driver_version?: string | null;
  notes: string[];
  gpus: Gpu[];
  grants: Grant[];
  lacks?: string[];
  nodes?: ClusterNode[];
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
  queues?: Queue[];
}
export interface ClusterNode {
  name: string;
  driver_version: string | null;
  problem: string | null;
  unusable: string | null;
  reported: number | null;
  late: boolean;
}
export interface ClusterJob {
  id: string;
  kind: string;
  namespace: string;
  name: string;
  phase: string | null;
  reason: string | null;
  waits: boolean;
  expected_start: number | null;
  workers: number;
  ready: number | null;
  sizes: string | null;
  queue: string | null;
  created: number | null;
  since: number | null;
  topology: string | null;
  suspended: boolean;
  node: string | null;
}
export interface ClusterPod {
  name: string;
  phase: string;
  reason: string | null;
  node: string | null;
  rank: string | null;
  started: number | null;
  exit_code: number | null;
  containers: string[];
  memory: string | null;
  compute: string | null;
  plan: { container: string; kind: string; gpus: string[]; memory_bytes: number; compute_percent: number | null }[];
}
export interface ClusterJobDetails {
  job: ClusterJob;
  pods: ClusterPod[] | null;
  events: { at: number | null; about: string; type: string; reason: string; message: string; count: number }[] | null;
  history: { at: number | null; phase: string; workers: number; reason: string }[];
}
export interface Amounts {
  gpus: number | null;
  memory_bytes: number | null;
  compute_percent: number | null;
}
export interface Queue {
  name: string;
  parent: string | null;
  weight: number;
  quota: Amounts | null;
  limit: Amounts | null;
  used: Amounts | null;
  borrowed: Amounts | null;
  unused: Amounts | null;
  running_pods: number | null;
  running_gangs: number | null;
  waiting_pods: number | null;
  waiting_gangs: number | null;
  waiting_since: number | null;
  problem: string | null;
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
export interface Outcome {
  does: "starts" | "grows" | "shrinks" | "waits" | "runs" | "rests" | "ends";
  size?: number;
  reason?: string | null;
  place?: number;
  of?: number;
  expected_start?: number | null;
  gpus?: number[];
}
export interface WhatWould {
  asked: Outcome | null;
  jobs: { number: number; name: string | null; user: string; queue: string | null; before: Outcome | null; after: Outcome | null }[];
  commands: { user: string; name: string | null; before: Outcome | null; after: Outcome | null }[];
  ended_grants: string[];
  gpus: { uuid: string; index: number; granted_bytes: number | null }[];
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
export interface Points {
  gpu: string;
  times: number[];
  used_bytes: (number | null)[];
  part_bytes: (number | null)[];
  got_ratio: (number | null)[];
}
export interface History {
  step: number;
  since: number;
  slices: Points[];
}
export interface Waste {
  items: {
    month: string;
    user: string;
    queue: string | null;
    model: string;
    granted_hours: number;
    idle_hours: number;
    unknown_hours: number;
    idle_cost: number | null;
  }[];
  prices: Record<string, number>;
  problem: string | null;
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

/** A request after the console has proven itself; nothing is sent to what cannot. */
export async function request(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const content = body === undefined ? undefined : JSON.stringify(body);
  const kind: Record<string, string> = body === undefined ? {} : { "content-type": "application/json" };
  const attempt = async () => {
    const headers = { ...kind, ...(await signed()) };
    return fetch(`api/v1${path}`, { method, headers, body: content, credentials: "omit", signal });
  };
  let answer: Response;
  try {
    answer = await attempt();
    if (answer.status === 401) {
      doubt(); // another run of the console: it must prove itself, too
      answer = await attempt();
    }
  } catch (error) {
    doubt();
    if (error instanceof SignedOutError) throw new Problem(401, error.message, error.hint);
    if (error instanceof ImpostorError) throw error;
    throw new Problem(0, "the console does not answer", null);
  }
  return answer;
}

export async function ask<T>(method: string, path: string, body?: unknown): Promise<T> {
  const answer = await request(method, path, body);
  if (answer.status === 204) return undefined as T;
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(answer.status, found.detail ?? answer.statusText, found.hint ?? null);
  return found as T;
}

/** Save what the console answers as a file: a link could not sign its request. */
export async function download(path: string, name: string): Promise<void> {
  const answer = await request("GET", path);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
