// The search runs in a worker. Browsers start none for a page that is read from the disk: there, a hidden frame runs it.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.reply = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.started = new Promise((resolve) => (this.inside.started = resolve));
      const page = this.inside.document;
      page.open();
      page.write(`<script>postMessage = reply</script><script src="${url}" onload="started()"></script>`);
      page.close();
    }

    async postMessage(data) {
      await this.started;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
