// Every GPU as a bar that is cut into its slices.
import type { Gpu, Grant, Slice } from "../api";
import { bytes, percent } from "../format";
import { Badge, CommandLine, Heading, computeText, huesOf, memoryText } from "../parts";
import { useStore } from "../store";
import { t } from "../strings";

interface Part {
  grant: Grant;
  slice: Slice;
  hue: number;
}

const holds = (grant: Grant) => grant.state !== "parked";

export function GpusPage() {
  const { machine } = useStore();
  if (machine === null) return <p class="muted">{t("loading")}</p>;
  const found = machine.grants.flatMap((grant) => grant.slices.map((slice) => ({ grant, slice })));
  const partsOf = (gpu: Gpu): Part[] => {
    const own = found.filter((one) => one.slice.gpu === gpu.uuid);
    const hues = huesOf(own.map((one) => one.grant.id));
    return own.map((one) => ({ ...one, hue: hues.get(one.grant.id) ?? 0 }));
  };
  const words = [machine.simulated ? t("simulated") : "", machine.driver_version ? t("driver", { version: machine.driver_version }) : ""];
  return (
    <>
      <Heading text={t("gpus")}>
        <p class="muted">{[machine.name, ...words.slice(machine.simulated ? 1 : 0)].filter(Boolean).join(" · ")}</p>
      </Heading>
      {!machine.arbiter_is_up && <p class="note">{t("noArbiter")}</p>}
      {machine.notes.length > 0 && (
        <section class="note wait" aria-label={t("attention")}>
          <h2>{t("attention")}</h2>
          <ul>{machine.notes.map((one) => <li key={one}>{one}</li>)}</ul>
        </section>
      )}
      <div class="gpus">
        {machine.gpus.map((gpu) => (
          <GpuPanel key={gpu.uuid} gpu={gpu} parts={partsOf(gpu)} />
        ))}
      </div>
      {machine.arbiter_is_up && found.length === 0 && (
        <div class="hint">
          <p class="muted">{t("nothingGranted")}</p>
          <CommandLine text={`aliquot run ${machine.simulated ? `--simulate ${machine.simulated} ` : ""}--memory 8GiB -- python train.py`} />
        </div>
      )}
    </>
  );
}

function GpuPanel({ gpu, parts }: { gpu: Gpu; parts: Part[] }) {
  const told = gpu.telemetry;
  return (
    <section class={gpu.healthy ? "panel gpu" : "panel gpu unhealthy"} aria-labelledby={`gpu-${gpu.index}`}>
      <header>
        <h2 id={`gpu-${gpu.index}`}>
          GPU {gpu.index} <span class="muted model">{gpu.model}</span>
        </h2>
        <p class="figures">
          {gpu.healthy ? (
            <>
              {told?.busy_ratio != null && <span>{t("busy", { percent: percent(told.busy_ratio) })}</span>}
              {told?.power_watts != null && <span>{Math.round(told.power_watts)} W</span>}
              {told?.celsius != null && <span>{told.celsius} °C</span>}
            </>
          ) : (
            <span class="badge bad">{t("unhealthy")}</span>
          )}
        </p>
      </header>
      <MemoryBar gpu={gpu} parts={parts} />
      <ComputeBar parts={parts} />
      <p class="below muted">
        <span>{t("granted", { part: bytes(gpu.granted_bytes), whole: bytes(gpu.memory_bytes) })}</span>
        <span>{t("free", { bytes: bytes(gpu.free_bytes) })}</span>
        <span>{t("freeCompute", { percent: `${gpu.free_percent} %` })}</span>
      </p>
      {(parts.length > 0 || gpu.outside.length > 0) && (
        <ul class="slices">
          {parts.map((one) => <SliceRow key={one.grant.id} {...one} />)}
          {gpu.outside.map((one) => (
            <li key={one.pid}>
              <span class="swatch outside" aria-hidden="true" />
              <span class="who"><span>{one.name}</span><span class="muted">PID {one.pid}</span></span>
              <span class="muted">{t("outside")}</span>
              <span class="figure">{bytes(one.bytes)}</span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function MemoryBar({ gpu, parts }: { gpu: Gpu; parts: Part[] }) {
  const width = (count: number) => `${(count / gpu.memory_bytes) * 100}%`;
  const outside = gpu.outside.reduce((sum, one) => sum + (one.bytes ?? 0), 0);
  return (
    <div class="bar" aria-hidden="true">
      {parts.filter((one) => holds(one.grant)).map(({ grant, slice, hue }) => (
        <a
          key={grant.id}
          tabIndex={-1}
          href={grant.name === null ? undefined : `#/slice/${encodeURIComponent(grant.name)}`}
          class={`cut hue-${hue}`}
          style={{ width: width(slice.memory_bytes) }}
          title={`${grant.name ?? t("otherUser")}: ${memoryText(slice.used_bytes, slice.memory_bytes)}`}
        >
          <span class="in-use" style={{ width: `${Math.min(100, (slice.used_bytes / slice.memory_bytes) * 100)}%` }} />
          <span class="cut-name">{grant.name ?? grant.user}</span>
        </a>
      ))}
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
          title={`${grant.name ?? t("otherUser")}: ${computeText(slice.got_ratio, slice.compute_percent)}`}
        >
          <span class="in-use" style={{ width: `${Math.min(100, ((slice.got_ratio ?? 0) * 10000) / (slice.weight_percent || 1))}%` }} />
        </span>
      ))}
    </div>
  );
}

function SliceRow({ grant, slice, hue }: Part) {
  return (
    <li>
      <span class={`swatch hue-${hue}`} aria-hidden="true" />
      <span class="who">
        {grant.name === null ? <span class="muted">{t("otherUser")}</span> : <a href={`#/slice/${encodeURIComponent(grant.name)}`}>{grant.name}</a>}
        <span class="muted">{grant.user}</span>
      </span>
      <Badge word={grant.state} />
      <span class="figure"><span class="muted unit">{t("memory")}</span> {memoryText(slice.used_bytes, slice.memory_bytes)}</span>
      <span class="figure"><span class="muted unit">{t("compute")}</span> {computeText(slice.got_ratio, slice.compute_percent)}</span>
    </li>
  );
}
