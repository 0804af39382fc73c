"use strict";
// Sessions: type, have it continued, fork, roll back. Every request names the version it expects.

const at = (id) => document.getElementById(id);
const make = (name, text, parent) => {
  const element = document.createElement(name);
  element.textContent = text;
  if (parent) parent.append(element);
  return element;
};

const PLACEHOLDERS = {
  text: "more text",
  numbers: "rows of numbers: [[0.5], [1]]",
  rows: 'rows of columns: [{"ds": "2024-01-31", "y": 1.5}]',
};
let models = [];

function headers() {
  const found = {"content-type": "application/json"};
  if (at("key").value) found.authorization = "Bearer " + at("key").value;
  return found;
}

async function ask(method, path, body) {
  const answer = await fetch(path, {method, headers: headers(), body: body && JSON.stringify(body)});
  if (answer.ok) return answer;
  let message = answer.status + " " + answer.statusText;
  try { message = (await answer.json()).error.message; } catch { /* not JSON */ }
  throw new Error(message);
}

async function guarded(work) {
  at("message").textContent = "";
  try { await work(); } catch (error) { at("message").textContent = error.message; }
}

// The events of an answer, as [name, data].
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      const field = (name) => (lines.find((line) => line.startsWith(name)) || "").slice(name.length);
      yield [field("event: "), JSON.parse(field("data: "))];
    }
  }
}

class Session {
  constructor(about, text) {
    this.id = about.id;
    this.model = models.find((one) => one.id === about.model);  // another may be chosen above by now
    this.texts = [[about.position, text]];  // the text at each position that the page knows
    this.box = make("article", "", at("sessions"));
    this.box.dataset.session = this.id;
    this.facts = make("dl", "", this.box);
    this.view = make("pre", "", this.box);
    this.input = make("textarea", "", this.box);
    this.input.rows = 2;
    this.input.placeholder = PLACEHOLDERS[this.model.reads];
    const buttons = make("div", "", this.box);
    buttons.className = "buttons";
    for (const [name, act] of [["read", "read"], ["continue", "write"], ["fork", "fork"], ["roll back", "back"],
                               ["delete", "remove"]]) {
      if (act === "write" && !this.model.writes) continue;
      const button = make("button", name, buttons);
      button.dataset.act = act;
      button.onclick = () => guarded(() => this[act]());
    }
    this.show(about);
  }

  get text() { return this.texts[this.texts.length - 1][1]; }

  show(about) {
    Object.assign(this, {version: about.version, position: about.position});
    if (about.state_bytes) this.bytes = about.state_bytes;
    this.facts.replaceChildren();
    for (const [name, value] of [["model", this.model.id], ["version", this.version], ["position", this.position], ["state", this.bytes + " bytes"]]) {
      make("dt", name, this.facts);
      make("dd", String(value), this.facts).dataset.fact = name;
    }
    this.view.textContent = this.text;
  }

  async read() {
    const given = this.input.value;
    const isText = this.model.reads === "text";
    const inputs = isText ? given : JSON.parse(given);
    const answer = await (await ask("POST", `/v1/sessions/${this.id}/step`, {version: this.version, inputs})).json();
    const shown = isText ? given : answer.outputs.map((row) => JSON.stringify(row)).join("\n") + "\n";
    this.texts.push([answer.position, this.text + shown]);
    this.input.value = "";
    this.show(answer);
  }

  async write() {
    const body = {version: this.version, prompt: this.input.value, max_new_tokens: 100, stream: true};
    const before = this.text + this.input.value;
    const answer = await ask("POST", `/v1/sessions/${this.id}/generate`, body);
    this.view.textContent = before;
    const fresh = make("span", "", this.view);
    fresh.className = "new";
    for await (const [name, data] of events(answer)) {
      if (name === "token") fresh.textContent += data.text;
      if (name === "error") throw new Error(data.error.message);
      if (name === "done") {
        this.texts.push([data.position, before + data.text]);
        this.input.value = "";
        this.show(data);
      }
    }
  }

  async fork() {
    const seed = Math.floor(Math.random() * 2 ** 31);
    const about = await (await ask("POST", `/v1/sessions/${this.id}/fork`, {seed})).json();
    new Session(about, this.text);
  }

  async back() {
    if (this.texts.length < 2) throw new Error("this is where the session started");
    const position = this.texts[this.texts.length - 2][0];
    const answer = await ask("POST", `/v1/sessions/${this.id}/rollback`, {version: this.version, position});
    this.texts.pop();
    this.show(await answer.json());
  }

  async remove() {
    await ask("DELETE", `/v1/sessions/${this.id}`);
    this.box.remove();
  }
}

const model = () => models.find((one) => one.id === at("model").value);

function describe() {
  const one = model();
  at("about").textContent = one ? `${one.id} reads ${one.input}; its state has ${one.state_bytes} bytes` : "";
}

async function begin() {
  models = (await (await ask("GET", "/v1/models")).json()).data.filter((one) => one.sessions);
  at("model").replaceChildren(...models.map((one) => make("option", one.id)));
  describe();
}

at("model").onchange = describe;
at("key").onchange = () => guarded(begin);
at("new").onclick = () => guarded(async () => {
  const body = {model: at("model").value, checkpoints: {every: 1, keep: 32}};
  new Session(await (await ask("POST", "/v1/sessions", body)).json(), "");
});
guarded(begin).then(() => {
  at("key-label").hidden = models.length > 0;
  document.documentElement.dataset.ready = "yes";
});
