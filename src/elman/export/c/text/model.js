// A model in WebAssembly. A state is a Uint8Array of yours: what elman.state.to_rows has in Python. slice() copies one.
//
//   const model = await Model.load(bytes);        // of the .wasm, or a response of fetch
//   const state = model.start();
//   const y = model.step(state, [0.1, 0.2]);      // or a symbol; the state moves on
class Model {
  static async load(source) {
    const { instance } = await (source instanceof Response
      ? WebAssembly.instantiateStreaming(source) : WebAssembly.instantiate(source));
    return new Model(instance.exports);
  }

  constructor(wasm) {
    this.wasm = wasm;
    this.fingerprint = "$fingerprint"; // of the model: a state is one of it alone
    this.inputs = $inputs, this.symbols = $symbols, this.outputs = $outputs;
    this.bytes = wasm.$name_state_bytes();
    this.end = (wasm.__heap_base.value + 15) & ~15;
    [this.state, this.x, this.y, this.seen, this.how, this.banned, this.room] =
      [this.bytes, 4 * this.inputs, 4 * this.outputs, this.symbols, 40, 4 * this.symbols, 16 * this.outputs].map((n) => this.take(n));
  }

  take(bytes) {
    const at = this.end, memory = this.wasm.memory;
    this.end = (at + bytes + 15) & ~15;
    const lacking = this.end - memory.buffer.byteLength;
    if (lacking > 0) memory.grow(Math.ceil(lacking / 65536));
    return at;
  }

  view(Kind, at, length) { return new Kind(this.wasm.memory.buffer, at, length); }

  start() {
    this.wasm.$name_reset(this.state);
    return this.view(Uint8Array, this.state, this.bytes).slice();
  }

  // One input: y, and the state after it in the place of the one before.
  step(state, x) {
    const here = this.view(Uint8Array, this.state, this.bytes);
    here.set(state);
    this.advance(x);
    state.set(here);
    return this.view(Float32Array, this.y, this.outputs).slice();
  }

  advance(x) {
    if (!this.symbols) this.view(Float32Array, this.x, this.inputs).set(x);
    if (this.wasm.$name_step(this.state, this.symbols ? x : this.x, this.y)) throw new RangeError(`there is no symbol $${x}`);
  }

  // Read symbols, then write `count` of them: carried = {state, symbol, seen, seed, number} moves on. `symbol` is the one
  // that has not been read yet. `how` = {temperature, top_p, repetition_penalty, top_k, banned, end}: nothing follows `end`.
  read(carried, symbols) {
    this.view(Uint8Array, this.state, this.bytes).set(carried.state);
    for (const symbol of symbols) {
      this.advance(carried.symbol);
      carried.symbol = symbol, carried.seen[symbol] = 1;
    }
    carried.state.set(this.view(Uint8Array, this.state, this.bytes));
  }

  write(carried, how, count) {
    this.view(Uint8Array, this.state, this.bytes).set(carried.state);
    this.view(Float64Array, this.how, 3).set([how.temperature ?? 1, how.top_p ?? 1, how.repetition_penalty ?? 1]);
    const banned = how.banned ?? [];
    this.view(Int32Array, this.how + 24, 3).set([how.top_k ?? 0, banned.length, this.banned]);
    this.view(Int32Array, this.banned, banned.length).set(banned);
    this.view(Uint8Array, this.seen, this.symbols).set(carried.seen);
    const written = [];
    for (let i = 0; i < count; ++i) {
      this.advance(carried.symbol);
      const u = this.wasm.$name_uniform(BigInt(carried.seed), BigInt(carried.number++));
      carried.symbol = this.wasm.$name_choose(this.how, this.y, this.seen, u, this.room);
      this.view(Uint8Array, this.seen, this.symbols)[carried.symbol] = carried.seen[carried.symbol] = 1;
      written.push(carried.symbol);
      if (carried.symbol === how.end) break;
    }
    carried.state.set(this.view(Uint8Array, this.state, this.bytes));
    return written;
  }
}
