// What was granted and did no work, by month, user and queue; and what that cost.
import { useEffect, useState } from "preact/hooks";
import { ask, download, type Waste } from "../api";
import { NOTHING } from "../format";
import { Heading, Refusal } from "../parts";
import { useStore } from "../store";
import { t } from "../strings";

const hours = (count: number) => count.toFixed(count < 10 ? 2 : count < 100 ? 1 : 0);
const sum = (found: Waste["items"], field: "granted_hours" | "idle_hours" | "unknown_hours") => found.reduce((all, one) => all + one[field], 0);

export function WastePage() {
  const { machine } = useStore();
  const [found, setFound] = useState<Waste | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [month, setMonth] = useState<string | null>(null);
  const load = () => void ask<Waste>("GET", "/waste").then((waste) => { setFound(waste); setError(null); }).catch(setError);
  const round = Math.floor((machine?.time ?? 0) / 15);
  useEffect(load, [round]);
  if (found === null) return <><Heading text={t("waste")} /><Refusal error={error} />{error === null && <p class="muted">{t("loading")}</p>}</>;
  const months = [...new Set(found.items.map((one) => one.month))];
  const shown = month ?? months[0] ?? null;
  const rows = found.items.filter((one) => one.month === shown);
  const cost = rows.some((one) => one.idle_cost !== null) ? rows.reduce((all, one) => all + (one.idle_cost ?? 0), 0).toFixed(2) : NOTHING;
  const most = Math.max(...rows.map((one) => one.granted_hours), 0.001);
  const models = [...new Set([...(machine?.gpus ?? []).map((one) => one.model), ...found.items.map((one) => one.model)])];
  return (
    <>
      <Heading text={t("waste")}>
        <p class="muted">{t("wasteText")}</p>
      </Heading>
      <Refusal error={error} />
      {found.problem && <p class="note bad">{found.problem}</p>}
      {rows.length === 0 ? <p class="note">{t("wasteNone")}</p> : (
        <section class="panel" aria-labelledby="waste-of">
          <div class="log-head">
            <h2 id="waste-of">{shown}</h2>
            {months.length > 1 && (
              <label class="inline">{t("month")} <select value={shown ?? ""} onChange={(event) => setMonth(event.currentTarget.value)}>{months.map((one) => <option key={one} value={one}>{one}</option>)}</select></label>
            )}
            <button type="button" class="quiet end" onClick={() => void download("/waste.csv", "aliquot-waste.csv").catch(setError)}>{t("saveCsv")}</button>
          </div>
          <div class="wide" tabIndex={0} role="region" aria-label={t("waste")}>
            <table>
              <thead>
                <tr><th>{t("user")}</th><th>{t("queue")}</th><th>{t("model")}</th><th class="bar-column" aria-hidden="true" /><th class="right">{t("grantedHours")}</th><th class="right">{t("idleHours")}</th><th class="right">{t("unknownHours")}</th><th class="right">{t("idleCost")}</th></tr>
              </thead>
              <tbody>
                {rows.map((one) => (
                  <tr key={`${one.user} ${one.queue} ${one.model}`}>
                    <td>{one.user}</td>
                    <td class={one.queue === null ? "muted" : undefined}>{one.queue ?? t("noQueue")}</td>
                    <td>{one.model}</td>
                    <td class="bar-column" aria-hidden="true"><div class="hours" style={{ width: `${(one.granted_hours / most) * 100}%` }}><div style={{ width: `${(one.idle_hours / (one.granted_hours || 1)) * 100}%` }} /></div></td>
                    <td class="right figure">{hours(one.granted_hours)}</td>
                    <td class="right figure">{hours(one.idle_hours)}</td>
                    <td class="right figure">{hours(one.unknown_hours)}</td>
                    <td class="right figure">{one.idle_cost === null ? NOTHING : one.idle_cost.toFixed(2)}</td>
                  </tr>
                ))}
              </tbody>
              <tfoot>
                <tr><th colSpan={4}>{t("total")}</th><td class="right figure">{hours(sum(rows, "granted_hours"))}</td><td class="right figure">{hours(sum(rows, "idle_hours"))}</td><td class="right figure">{hours(sum(rows, "unknown_hours"))}</td><td class="right figure">{cost}</td></tr>
              </tfoot>
            </table>
          </div>
        </section>
      )}
      <div class="columns">
        {models.length > 0 && <Prices models={models} prices={found.prices} saved={load} />}
        <section class="panel" aria-labelledby="csv">
          <h2 id="csv">{t("history")}</h2>
          <div class="actions">
            <button type="button" onClick={() => void download("/history.csv?kind=slice&span=day", "aliquot-slices-day.csv").catch(setError)}>{t("saveCsv")}: {t("pointsSlices")}</button>
            <button type="button" onClick={() => void download("/history.csv?kind=gpu&span=month", "aliquot-gpus-month.csv").catch(setError)}>{t("saveCsv")}: {t("pointsGpus")}</button>
          </div>
        </section>
      </div>
    </>
  );
}

function Prices({ models, prices, saved }: { models: string[]; prices: Record<string, number>; saved: () => void }) {
  const [values, setValues] = useState<Record<string, string>>({});
  const [message, setMessage] = useState("");
  const [error, setError] = useState<unknown>(null);
  const save = async (event: Event) => {
    event.preventDefault();
    try {
      for (const [model, text] of Object.entries(values)) {
        await ask("PUT", "/prices", { model, per_hour: text.trim() === "" ? null : Number(text.replace(",", ".")) });
      }
      setValues({});
      setMessage(t("saved"));
      setError(null);
      saved();
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <form class="panel" aria-labelledby="prices" onSubmit={(event) => void save(event)}>
      <h2 id="prices">{t("prices")}</h2>
      <p class="muted">{t("pricesText")}</p>
      {models.map((model) => (
        <label key={model}>
          <span>{model}</span>
          <input inputMode="decimal" autocomplete="off" value={values[model] ?? `${prices[model] ?? ""}`} onInput={(event) => { setMessage(""); setValues({ ...values, [model]: event.currentTarget.value }); }} />
        </label>
      ))}
      <Refusal error={error} />
      <div class="actions">
        <button type="submit" class="main" disabled={Object.keys(values).length === 0}>{t("save")}</button>
        <span class="muted" aria-live="polite">{message}</span>
      </div>
    </form>
  );
}
