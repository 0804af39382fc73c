// A page that is opened from disk may not start a worker, and the search runs in one: run it in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.frame = frame;
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.answer(structuredClone(data));
      const script = inner.document.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve, reject) => { script.onload = resolve; script.onerror = reject; });
      inner.document.body.append(script);
      this.loaded.catch(() => this.onerror && this.onerror(new ErrorEvent("error")));
    }
    answer(data) {
      setTimeout(() => {
        const event = new MessageEvent("message", { data });
        if (this.onmessage) this.onmessage(event);
        this.dispatchEvent(event);
      });
    }
    postMessage(message) {
      const data = structuredClone(message);  // as a worker gets it: a copy
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })), () => {});
    }
    terminate() {
      this.frame.remove();
    }
  };
}
