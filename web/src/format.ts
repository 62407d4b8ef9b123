// Figures for people. What is not known is a dash.
import { currentLanguage, t } from "./strings";

export const NOTHING = "–";

export function bytes(count: number | null | undefined): string {
  if (count == null) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

export function percent(ratio: number | null | undefined): string {
  return ratio == null ? NOTHING : `${Math.round(ratio * 100)} %`;
}

export function share(points: number | null | undefined): string {
  return points == null ? t("equal") : `${points} %`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds == null) return NOTHING;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  const [large, small, words] = whole < 86400 ? [3600, 60, ["h", "min"]] : [86400, 3600, ["d", "h"]];
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)} ${words[0]}${rest > 0 ? ` ${rest} ${words[1]}` : ""}`;
}

export function milliseconds(seconds: number | null | undefined): string {
  return seconds == null ? NOTHING : `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
}

export function clock(at: number | null | undefined): string {
  if (at == null) return NOTHING;
  const when = new Date(at * 1000);
  const today = when.toDateString() === new Date().toDateString();
  const locale = currentLanguage() === "zh" ? "zh-CN" : "en-GB";
  const time = when.toLocaleTimeString(locale);
  return today ? time : `${when.toLocaleDateString(locale)} ${time}`;
}
