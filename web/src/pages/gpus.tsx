// Every GPU as a bar that is cut into its slices, or as a field of a map.
import type { ComponentChildren } from "preact";
import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, type ClusterNode, type Gpu, type Grant, type History, type Machine, type Slice } from "../api";
import { bytes, clock, percent, share } from "../format";
import { Badge, CommandLine, Heading, Lacks, Spans, computeText, memoryText, type Span } from "../parts";
import { ofCluster } from "../session";
import { holds, partsOf, type Part } from "../slices";
import { useChosen, useStore } from "../store";
import { t, type Key } from "../strings";
import { HeatView } from "./heat";
import { Lines } from "./slice";

/** Whose a grant is, and where to read more; a name that is null is another user's. */
function ownerOf(grant: Grant): { name: string | null; whose: string | null; link: string | undefined } {
  if (!ofCluster) return { name: grant.name, whose: grant.user, link: grant.name === null ? undefined : `#/slice/${encodeURIComponent(grant.name)}` };
  const pod = grant.pod ?? null;
  const part = [pod, grant.container && grant.container !== pod ? grant.container : null, grant.claim].filter(Boolean).join(" · ");
  return { name: part || null, whose: grant.namespace ?? null, link: pod === null ? undefined : `#/jobs/pods/${grant.namespace}/${pod}` };
}

const otherOne = () => t(ofCluster ? "otherNamespace" : "otherUser");

/** Redraws when more than figures changed. */
const useShape = (): Machine | null =>
  useChosen(({ machine }) => [machine?.gpus, machine?.grants, machine?.arbiter_is_up, machine?.notes.join("\n"), machine?.nodes, machine?.lacks?.join()]).machine;

export function GpusPage() {
  const machine = useShape();
  const [heat, setHeat] = useState(localStorage.getItem("heat") === "yes");
  const choose = (wanted: boolean) => {
    localStorage.setItem("heat", wanted ? "yes" : "no");
    setHeat(wanted);
  };
  if (machine === null) return <p class="muted">{t("loading")}</p>;
  if (machine.lacks?.includes("gpunodes.aliquot.io")) return <><Heading text={t("gpus")} /><Lacks kinds={["gpunodes.aliquot.io"]} /></>;
  const words = [machine.simulated ? t("simulated") : "", machine.driver_version ? t("driver", { version: machine.driver_version }) : ""];
  const taken = machine.grants.some((grant) => grant.slices.length > 0);
  return (
    <>
      <Heading text={t("gpus")}>
        <p class="muted">{[machine.name, ...words.slice(machine.simulated ? 1 : 0)].filter(Boolean).join(" · ")}</p>
        {machine.gpus.length > 0 && (
          <div class="tabs end" role="group" aria-label={t("view")}>
            <button type="button" aria-pressed={!heat} onClick={() => choose(false)}>{t("viewBars")}</button>
            <button type="button" aria-pressed={heat} onClick={() => choose(true)}>{t("viewHeat")}</button>
          </div>
        )}
      </Heading>
      {machine.arbiter_is_up === false && <p class="note">{t("noArbiter")}</p>}
      {machine.notes.length > 0 && (
        <section class="note wait" aria-label={t("attention")}>
          <h2>{t("attention")}</h2>
          <ul>{machine.notes.map((one) => <li key={one}>{one}</li>)}</ul>
        </section>
      )}
      {heat ? (
        <HeatView />
      ) : machine.nodes ? (
        nodesOf(machine).map(([node, gpus]) => (
          <section key={node.name} class="node" aria-labelledby={`node-${node.name}`}>
            <NodeHead node={node} />
            <GpuList machine={machine} gpus={gpus} />
          </section>
        ))
      ) : (
        <GpuList machine={machine} gpus={machine.gpus} />
      )}
      {machine.nodes?.length === 0 && <p class="note">{t("noNodes")}</p>}
      {machine.arbiter_is_up && !taken && (
        <div class="hint">
          <p class="muted">{t("nothingGranted")}</p>
          <CommandLine text={`aliquot run ${machine.simulated ? `--simulate ${machine.simulated} ` : ""}--memory 8GiB -- python train.py`} />
        </div>
      )}
    </>
  );
}

function GpuList({ machine, gpus }: { machine: Machine; gpus: Gpu[] }) {
  return (
    <div class="gpus">
      {gpus.map((gpu) => <GpuPlace key={gpu.uuid} uuid={gpu.uuid} place={placeOf(gpu)} index={gpu.index} lines={partsOf(machine, gpu.uuid).length} />)}
    </div>
  );
}

/** Identifies a GPU on the page. */
const placeOf = (gpu: Gpu) => (gpu.node === undefined ? `gpu-${gpu.index}` : `gpu-${gpu.node}-${gpu.index}`);

function nodesOf(machine: Machine): [ClusterNode, Gpu[]][] {
  const found = new Map<string, Gpu[]>();
  for (const gpu of machine.gpus) {
    const own = found.get(gpu.node ?? "");
    if (own) own.push(gpu);
    else found.set(gpu.node ?? "", [gpu]);
  }
  return (machine.nodes ?? []).map((node) => [node, found.get(node.name) ?? []]);
}

function NodeHead({ node }: { node: ClusterNode }) {
  const why = node.problem ?? node.unusable;
  return (
    <>
      <div class="heading">
        <h2 id={`node-${node.name}`}>{node.name}</h2>
        {node.driver_version && <span class="muted">{t("driver", { version: node.driver_version })}</span>}
        {why !== null && <span class="badge bad">{t("nodeUnusable")}</span>}
        {node.late && <span class="badge wait">{t("nodeLate", { time: clock(node.reported) })}</span>}
      </div>
      {why !== null && <p class="note wait">{why}</p>}
    </>
  );
}

const LINE = 46; // of a slice, and of all else: what a panel takes before it is drawn
const REST = 160;

/** Where a GPU's panel is. It is drawn while it is on the screen or near it. */
const GpuPlace = memo(({ uuid, place, index, lines }: { uuid: string; place: string; index: number; lines: number }) => {
  const here = useRef<HTMLElement>(null);
  const [near, setNear] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((seen) => setNear(seen.at(-1)!.isIntersecting), { rootMargin: "400px" });
    if (here.current) observer.observe(here.current);
    return () => observer.disconnect();
  }, []);
  return (
    <section class="panel gpu" ref={here} aria-labelledby={place} style={near ? undefined : { minHeight: `${REST + LINE * lines}px` }}>
      {near ? <GpuPanel uuid={uuid} /> : <Title id={place}>GPU {index}</Title>}
    </section>
  );
});

/** GPUs of a cluster are below their nodes. */
function Title({ id, children }: { id: string; children: ComponentChildren }) {
  return ofCluster ? <h3 id={id}>{children}</h3> : <h2 id={id}>{children}</h2>;
}

function GpuPanel({ uuid }: { uuid: string }) {
  const { machine } = useStore();
  const gpu = machine?.gpus.find((one) => one.uuid === uuid);
  if (!machine || !gpu) return null;
  const parts = partsOf(machine, uuid);
  const told = gpu.telemetry;
  const outside = gpu.outside ?? [];
  return (
    <>
      <header>
        <Title id={placeOf(gpu)}>
          {ofCluster ? `GPU ${gpu.index}` : <a href={`#/gpu/${gpu.index}`}>GPU {gpu.index}</a>} <span class="muted model">{gpu.model}</span>
        </Title>
        <p class="figures">
          {gpu.healthy ? (
            <>
              {gpu.kind && <span>{t(`kind_${gpu.kind}` as Key)}</span>}
              {told?.busy_ratio != null && <span>{t("busy", { percent: percent(told.busy_ratio) })}</span>}
              {told?.power_watts != null && <span>{Math.round(told.power_watts)} W</span>}
              {told?.celsius != null && <span>{told.celsius} °C</span>}
            </>
          ) : (
            <span class="badge bad">{t("unhealthy")}</span>
          )}
        </p>
      </header>
      {gpu.why && <p class="note bad">{gpu.why}</p>}
      <MemoryBar gpu={gpu} parts={parts} />
      <ComputeBar parts={parts} />
      <p class="below muted">
        <span>{t("granted", { part: bytes(gpu.granted_bytes), whole: bytes(gpu.memory_bytes) })}</span>
        {gpu.free_bytes !== null && <span>{t("free", { bytes: bytes(gpu.free_bytes) })}</span>}
        {gpu.free_percent !== null && <span>{t("freeCompute", { percent: `${gpu.free_percent} %` })}</span>}
      </p>
      {(parts.length > 0 || outside.length > 0) && (
        <ul class="slices">
          {parts.map((one) => <SliceRow key={one.grant.id} {...one} />)}
          {outside.map((one) => (
            <li key={one.pid}>
              <span class="swatch outside" aria-hidden="true" />
              <span class="who"><span>{one.name}</span><span class="muted">PID {one.pid}</span></span>
              <span class="muted">{t("outside")}</span>
              <span class="figure">{bytes(one.bytes)}</span>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

/** One GPU: its bar, and what it used. */
export function GpuPage({ index }: { index: string }) {
  const { machine } = useStore();
  const [span, setSpan] = useState<Span>("day");
  const [found, setFound] = useState<History | null>(null);
  const gpu = machine?.gpus.find((one) => `${one.index}` === index);
  const round = Math.floor((machine?.time ?? 0) / 15);
  useEffect(() => {
    let mine = true;
    if (gpu) void ask<History>("GET", `/gpus/${gpu.index}/history?span=${span}`).then((history) => mine && setFound(history)).catch(() => undefined);
    return () => {
      mine = false;
    };
  }, [gpu?.uuid, span, round]);
  if (!machine) return <p class="muted">{t("loading")}</p>;
  const points = found?.slices[0];
  return (
    <>
      <a class="back" href="#/">← {t("gpus")}</a>
      <Heading text={`GPU ${index}`}><Spans span={span} choose={setSpan} spans={["day", "month"]} /></Heading>
      {!gpu && <p class="note">{t("noGpu")}</p>}
      {gpu && (
        <div class="columns">
          <section class="panel gpu" aria-labelledby={`gpu-${gpu.index}`}><GpuPanel uuid={gpu.uuid} /></section>
          <section class="panel" aria-labelledby="history">
            <h2 id="history">{t("used_and_granted")}</h2>
            {found && points && <Lines points={points} history={found} now={machine.time} limit={null} memory={gpu.memory_bytes} />}
          </section>
        </div>
      )}
    </>
  );
}

function MemoryBar({ gpu, parts }: { gpu: Gpu; parts: Part[] }) {
  const width = (count: number) => `${(count / gpu.memory_bytes) * 100}%`;
  const outside = (gpu.outside ?? []).reduce((sum, one) => sum + (one.bytes ?? 0), 0);
  return (
    <div class="bar" aria-hidden="true">
      {parts.filter((one) => holds(one.grant)).map(({ grant, slice, hue }) => {
        const { name, whose, link } = ownerOf(grant);
        return (
          <a
            key={grant.id}
            tabIndex={-1}
            href={link}
            class={`cut hue-${hue}`}
            style={{ width: width(slice.memory_bytes) }}
            title={`${name ?? otherOne()}: ${limitText(slice)}`}
          >
            <span class="in-use" style={{ width: `${Math.min(100, ((slice.used_bytes ?? 0) / slice.memory_bytes) * 100)}%` }} />
            <span class="cut-name">{name ?? whose ?? otherOne()}</span>
          </a>
        );
      })}
      {outside > 0 && <span class="cut outside" style={{ width: width(outside) }} title={t("outside")} />}
    </div>
  );
}

function ComputeBar({ parts }: { parts: Part[] }) {
  const active = parts.filter((one) => holds(one.grant) && one.slice.weight_percent !== null);
  return (
    <div class="bar thin" aria-hidden="true">
      {active.map(({ grant, slice, hue }) => (
        <span
          key={grant.id}
          class={`cut hue-${hue}`}
          style={{ width: `${slice.weight_percent}%` }}
          title={`${ownerOf(grant).name ?? otherOne()}: ${sharesText(slice)}`}
        >
          <span class="in-use" style={{ width: `${Math.min(100, ((slice.got_ratio ?? 0) * 10000) / (slice.weight_percent || 1))}%` }} />
        </span>
      ))}
    </div>
  );
}

/** What a slice uses of its memory; in a cluster only its limit is known. */
const limitText = (slice: Slice) => (ofCluster ? bytes(slice.memory_bytes) : memoryText(slice.used_bytes, slice.memory_bytes));
const sharesText = (slice: Slice) => (ofCluster ? share(slice.compute_percent) : computeText(slice.got_ratio, slice.compute_percent));

function SliceRow({ grant, slice, hue }: Part) {
  const { name, whose, link } = ownerOf(grant);
  return (
    <li>
      <span class={`swatch hue-${hue}`} aria-hidden="true" />
      <span class="who">
        {name === null ? <span class="muted">{otherOne()}</span> : <a href={link}>{name}</a>}
        {whose !== null && <span class="muted">{whose}</span>}
      </span>
      <Badge word={grant.state} />
      <span class="figure"><span class="muted unit">{t("memory")}</span> {limitText(slice)}</span>
      <span class="figure"><span class="muted unit">{t("compute")}</span> {sharesText(slice)}</span>
    </li>
  );
}
