// Who this page is, and whether the program that answers is its console.
//
// The page has a name and a key, which never leaves it. Before it sends anything else it asks for a
// proof: only the console that knows the key can give one for this host. Then requests carry a
// signature that only that run of the console accepts. No cookie is used: browsers give cookies to
// whatever has taken the console's port.

// The console of a cluster is another matter: its page has the user's own bearer token, and sends it
// with each request. There, TLS proves who answers. The page knows which console it is of from its own
// head, as it was loaded: it never asks that of what answers later.

/** What this page shows: one machine, or a cluster. */
export const ofCluster = document.querySelector<HTMLMetaElement>('meta[name="aliquot-console"]')?.content === "cluster";

/** The program that answers is not the console that this page knows. Nothing was sent to it. */
export class ImpostorError extends Error {}

/** There is no session, or it has ended. */
export class SignedOutError extends Error {
  constructor(
    message = "",
    readonly hint: string | null = null,
  ) {
    super(message);
  }
}

interface Credential {
  name: string;
  key: CryptoKey;
  expires: number;
}

const PLACE = location.pathname;
const TOKEN = `aliquot-token ${PLACE}`; // in the storage of this tab, which ends with it
let credential: Credential | null = null;
let signature: string | null = null;

const words = new TextEncoder();
const hex = (content: ArrayBuffer) => [...new Uint8Array(content)].map((one) => one.toString(16).padStart(2, "0")).join("");
const sign = async (key: CryptoKey, text: string) => hex(await crypto.subtle.sign("HMAC", key, words.encode(text)));

/** Browsers compute signatures only on pages of this machine, or with TLS. */
export const canSign = typeof crypto !== "undefined" && crypto.subtle !== undefined;

/** A key that scripts can use and nobody can read. */
function keyOf(text: string): Promise<CryptoKey> {
  return crypto.subtle.importKey("raw", words.encode(text), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
}

function stored<T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("aliquot", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("keys");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const request = act(opening.result.transaction("keys", mode).objectStore("keys"));
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    };
  });
}

async function known(): Promise<Credential | null> {
  credential ??= (await stored("readonly", (store) => store.get(PLACE)).catch(() => undefined)) ?? null;
  return credential !== null && credential.expires * 1000 > Date.now() ? credential : null;
}

/** The signature of requests, after the console has proven to be the one that knows this key. */
async function proven({ name, key }: { name: string; key: CryptoKey }): Promise<string> {
  const challenge = hex(crypto.getRandomValues(new Uint8Array(16)).buffer);
  const answer = await fetch("api/v1/proof", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ name, challenge }),
    credentials: "omit",
  });
  const found = await answer.json().catch(() => ({}));
  if (answer.status === 401) throw new SignedOutError(found.detail, found.hint);
  const expected = await sign(key, `console:${location.host}\n${found.run}\n${challenge}`);
  if (!answer.ok || found.proof !== expected) throw new ImpostorError();
  return `${name} ${await sign(key, `page:${location.host}\n${found.run}`)}`;
}

/** Let the console prove itself again: its connection was lost. */
export function doubt(): void {
  signature = null;
}

/** What a request carries; asks for the proof first, where there is none. */
export async function signed(): Promise<Record<string, string>> {
  if (ofCluster) {
    const token = sessionStorage.getItem(TOKEN);
    if (token === null) throw new SignedOutError();
    return { authorization: `Bearer ${token}` };
  }
  if (signature === null) {
    const own = await known();
    if (own === null) throw new SignedOutError();
    signature = await proven(own);
  }
  return { "x-aliquot-key": signature };
}

/** Keep the user's token in this tab, if the API server accepts it. */
async function signInToCluster(token: string): Promise<void> {
  const answer = await fetch("api/v1/session", { headers: { authorization: `Bearer ${token}` }, credentials: "omit" });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new SignedOutError(found.detail, found.hint);
  sessionStorage.setItem(TOKEN, token);
}

/** Begin a session by the token or by the code of a link; of one machine, neither is sent. */
export async function signIn(given: { token: string } | { code: string }): Promise<void> {
  if (ofCluster) return signInToCluster("token" in given ? given.token : "");
  const text = "token" in given ? `token.${given.token}` : given.code;
  const cut = text.lastIndexOf(".");
  const name = text.slice(0, cut);
  const own = { name, key: await keyOf(text.slice(cut + 1)) };
  const answer = await fetch("api/v1/session", {
    method: "POST",
    headers: { "x-aliquot-key": await proven(own) },
    credentials: "omit",
  });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new SignedOutError(found.detail, found.hint);
  credential = { name: found.name, key: await keyOf(found.key), expires: found.expires };
  signature = null;
  await stored("readwrite", (store) => store.put(credential, PLACE)).catch(() => undefined); // in a private window
}

export async function forget(): Promise<void> {
  credential = null;
  signature = null;
  sessionStorage.removeItem(TOKEN);
  if (ofCluster) return;
  await stored("readwrite", (store) => store.delete(PLACE)).catch(() => undefined);
}
