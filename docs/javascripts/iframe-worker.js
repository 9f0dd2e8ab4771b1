// Search without a server. A browser starts no worker for a page that was opened from the disk; there, this class takes a worker's
// place and runs its script in a hidden frame. Pages from a server keep real workers.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.title = "search"
      document.body.append(this.frame)
      this.inside = this.frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inside.document.createElement("script")
      script.src = new URL(url, document.baseURI).href
      script.onload = () => {
        this.loaded = true
        this.waiting.splice(0).forEach(data => this.postMessage(data))
      }
      this.inside.document.body.append(script)
    }
    postMessage(data) {
      if (!this.loaded) this.waiting.push(data)
      else this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
