// The console's page: sign-in, navigation, and the pages by the fragment of the address.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Problem, ask } from "./api";
import "./app.css";
import { duration } from "./format";
import { CommandLine, Heading, Refusal } from "./parts";
import { ClusterJobPage, ClusterJobsPage, QueuesPage } from "./pages/cluster";
import { GpuPage, GpusPage } from "./pages/gpus";
import { JobPage, JobsPage } from "./pages/jobs";
import { SlicePage } from "./pages/slice";
import { SubmitPage } from "./pages/submit";
import { WastePage } from "./pages/waste";
import { WhatIfPage } from "./pages/what-if";
import { ImpostorError, SignedOutError, canSign, ofCluster, signIn } from "./session";
import { connect, disconnect, move, useChosen } from "./store";
import { currentLanguage, setLanguage, t } from "./strings";

const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

function readTheme(): Theme {
  const stored = localStorage.getItem("theme") as Theme | null;
  return stored !== null && THEMES.includes(stored) ? stored : "system";
}

function showTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
}

function App() {
  const { signedIn, connected, impostor, machine, seen } = useChosen(({ signedIn, connected, impostor, machine }) => [signedIn, connected, impostor, machine === null]);
  const [path, setPath] = useState(location.hash);
  const [, redraw] = useState(0);
  const [theme, setTheme] = useState(readTheme());
  useEffect(() => {
    const go = () => {
      move();
      setPath(location.hash);
    };
    addEventListener("hashchange", go);
    return () => removeEventListener("hashchange", go);
  }, []);
  useEffect(() => {
    showTheme(theme);
    localStorage.setItem("theme", theme);
  }, [theme]);
  useEffect(() => {
    if (connected) return;
    const timer = setInterval(() => redraw((n) => n + 1), 1000); // the age of what is shown
    return () => clearInterval(timer);
  }, [connected]);
  const switchLanguage = () => {
    setLanguage(currentLanguage() === "en" ? "zh" : "en");
    redraw((n) => n + 1);
  };
  const links: [string, string][] = [["#/", t("gpus")], ["#/jobs", t("jobs")]];
  if (ofCluster) links.push(["#/queues", t("queues")]);
  else links.push(["#/submit", t("submit")], ["#/what-if", t("whatIf")], ["#/waste", t("waste")]);
  const here = (link: string) => (link === "#/" ? !links.some(([other]) => other !== "#/" && path.startsWith(other)) : path.startsWith(link));
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById("content")?.focus(); }}>{t("skip")}</a>
      <header class="top">
        <a class="brand" href="#/"><img src="./mark.svg" alt="" width="28" height="28" /> {t("title")}</a>
        {signedIn && (
          <nav aria-label={t("title")}>
            {links.map(([link, word]) => <a key={link} href={link} aria-current={here(link) ? "page" : undefined}>{word}</a>)}
          </nav>
        )}
        <div class="tools">
          {signedIn && machine && <span class={connected ? "pulse" : "pulse off"} role="status">{connected ? t("live") : t("reconnecting")}</span>}
          <button type="button" class="quiet" lang={currentLanguage() === "en" ? "zh" : "en"} onClick={switchLanguage}>{t("language")}</button>
          <button type="button" class="quiet" title={t("theme")} onClick={() => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system")}>{t(theme)}</button>
          {signedIn && <button type="button" class="quiet" onClick={() => (ofCluster ? disconnect() : void ask("DELETE", "/session").then(disconnect, disconnect))}>{t("signOut")}</button>}
        </div>
      </header>
      <main id="content" tabIndex={-1}>
        {impostor && <Impostor />}
        {signedIn && !connected && !impostor && machine && <p class="note bad" role="alert">{t("lost", { age: duration((Date.now() - seen) / 1000) })}</p>}
        {signedIn === null ? <p class="muted">{t("loading")}</p> : signedIn ? <Page key={path} path={path} /> : !impostor && <SignInPage />}
      </main>
    </>
  );
}

function Page({ path }: { path: string }) {
  const [, kind, name, ...rest] = path.split("/");
  if (ofCluster) {
    const [namespace, object] = rest.map(decodeURIComponent);
    if (kind === "jobs" && name && namespace && object) return <ClusterJobPage kind={name} namespace={namespace} name={object} />;
    return kind === "jobs" ? <ClusterJobsPage /> : kind === "queues" ? <QueuesPage /> : <GpusPage />;
  }
  if (kind === "slice" && name) return <SlicePage name={decodeURIComponent(name)} />;
  if (kind === "jobs") return name ? <JobPage number={decodeURIComponent(name)} /> : <JobsPage />;
  if (kind === "submit") return <SubmitPage />;
  if (kind === "what-if") return <WhatIfPage />;
  if (kind === "waste") return <WastePage />;
  if (kind === "gpu" && name) return <GpuPage index={name} />;
  return <GpusPage />;
}

/** Another program answers where the console was: nothing is sent to it. */
function Impostor() {
  return (
    <div class="note bad" role="alert">
      <h2>{t("impostor")}</h2>
      <p>{t("impostorText")}</p>
    </div>
  );
}

function SignInPage() {
  const [token, setToken] = useState("");
  const [error, setError] = useState<unknown>(refused);
  const submit = (event: Event) => {
    event.preventDefault();
    signIn({ token: token.trim() }).then(() => connect()).catch((problem: unknown) => setError(refusalOf(problem)));
  };
  if (!canSign) return <div class="sign-in panel"><Heading text={t("signInTitle")} /><p>{t(ofCluster ? "insecureCluster" : "insecure")}</p></div>;
  return (
    <div class="sign-in panel">
      <Heading text={t("signInTitle")} />
      <p>{t(ofCluster ? "signInCluster" : "signInText")}</p>
      <CommandLine text={ofCluster ? "kubectl create token ACCOUNT" : "aliquot console"} />
      <form onSubmit={submit}>
        <label>
          <span>{t(ofCluster ? "tokenOfYours" : "signInToken")}</span>
          <input type="password" name="token" autocomplete="off" required aria-label={t("token")} value={token} onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        <Refusal error={error} />
        <button type="submit" class="main">{t("signIn")}</button>
      </form>
    </div>
  );
}

let refused: unknown = null;

function refusalOf(error: unknown): unknown {
  if (error instanceof ImpostorError) return new Problem(0, t("tokenWrong"), null);
  return error instanceof SignedOutError ? new Problem(401, error.message, error.hint) : new Problem(0, t("noAnswer"), null);
}

/** A link signs in by its fragment, which is removed at once. */
async function begin(): Promise<void> {
  showTheme(readTheme());
  const code = /^#code=(.+)$/.exec(location.hash)?.[1];
  if (code !== undefined && !ofCluster) {
    history.replaceState(null, "", "#/");
    await signIn({ code }).catch((error: unknown) => (refused = refusalOf(error)));
  }
  render(<App />, document.getElementById("app")!);
  await connect();
}

void begin();
