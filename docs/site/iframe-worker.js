// Search from disk: browsers start no Worker from file://, so the site's search script runs in a hidden frame instead.
(() => {
  if (location.protocol !== "file:") return;
  // Runs in the frame, before the script: what the script says goes to the page, not to the frame itself.
  const inFrame = `
    const load = (url) => new Promise((done, failed) =>
      document.head.append(Object.assign(document.createElement("script"), { src: url, onload: done, onerror: failed })));
    window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => load(url)), Promise.resolve());
    window.postMessage = (data) => parent.postMessage(data, "*");`;
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true });
      frame.srcdoc = `<script>${inFrame}</script><script src="${new URL(url, location.href)}"></script>`;
      this.frame = new Promise((done) => frame.addEventListener("load", () => done(frame.contentWindow)));
      addEventListener("message", (event) => {
        if (event.source === frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.frame.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
})();
