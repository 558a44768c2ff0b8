"use strict";
// The websocket: JSON to the server, frames of a header and raw bytes back. Of questions with the same key only one is on
// its way at a time, and of those that wait only the last is sent, so that a fast mouse never has to wait for an old place.
class Wire {
  constructor(hear, lost) {
    this.flying = new Set();
    this.waiting = new Map();
    this.socket = new WebSocket(new URL("live", location.href).href.replace(/^http/, "ws").split("#")[0]);
    this.socket.binaryType = "arraybuffer";
    this.open = new Promise((done) => this.socket.addEventListener("open", done));
    this.socket.addEventListener("close", lost);
    this.socket.addEventListener("message", (event) => {
      const frame = Wire.unpack(event.data);
      this.landed(frame.id);
      hear(frame);
    });
  }
  async send(message) { await this.open; this.socket.send(JSON.stringify(message)); }
  async upload(bytes) { await this.open; this.socket.send(bytes); }
  ask(key, message) {
    if (this.flying.has(key)) this.waiting.set(key, message);
    else {
      this.flying.add(key);
      this.send({ ...message, id: key });
    }
  }
  landed(key) {
    if (!this.flying.delete(key)) return;
    const next = this.waiting.get(key);
    this.waiting.delete(key);
    if (next) this.ask(key, next);
  }
  // when something happened last, for benchmarks
  static stamp(name) { performance.clearMarks(name); performance.mark(name); }
  static unpack(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const frame = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)), sightline.revive);
    const kinds = { uint8: Uint8Array, float32: Float32Array, int32: Int32Array };
    let at = 4 + length;
    frame.shapes = {};
    for (const about of frame.arrays) {
      const Kind = kinds[about.type], count = about.shape.reduce((a, b) => a * b, 1);
      frame.shapes[about.name] = about.shape;
      frame[about.name] = new Kind(buffer, at, count);
      at += Math.ceil((count * Kind.BYTES_PER_ELEMENT) / 4) * 4;
    }
    return frame;
  }
}
