// A browser starts no Worker from file://, so there the search runs in a hidden frame of the page. The theme's offline
// plugin takes a script of this name for its own, which it would load from another host.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = (this.inside = frame.contentWindow)
      inside.document.write("<body></body>")
      inside.document.close()
      const load = (source) =>
        new Promise((done) => {
          const script = inside.document.createElement("script")
          script.onload = done
          script.src = source
          inside.document.body.append(script)
        })
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...sources) => sources.reduce((before, each) => before.then(() => load(each)), Promise.resolve())
      this.loaded = load(url)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
