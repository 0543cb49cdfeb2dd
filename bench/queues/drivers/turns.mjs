// What the Node drivers share: the same as `Backlog` in turns.py.
import { createRequire } from "node:module";
import readline from "node:readline";

// Modules do not look in NODE_PATH; `require` does.
export const require = createRequire(import.meta.url);

const [url, callers, batch, body] = process.argv.slice(2);
export const given = { url, callers: Number(callers), batch: Number(batch), body };

export class Backlog {
  #most = 4 * Math.max(given.callers, given.batch);
  #added = 0;
  #done = 0;
  #waiting = [];

  // Called by every job.
  done() {
    this.#done += 1;
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const wake of waiting) wake();
  }

  // `add` adds a batch of jobs.
  async serve(add) {
    console.log("ready");
    for await (const line of readline.createInterface({ input: process.stdin })) {
      const before = this.#done;
      const deadline = performance.now() + Number(line) * 1000;
      await Promise.all(Array.from({ length: given.callers }, () => this.#produce(add, deadline)));
      await this.#untilLeft(0);
      console.log(this.#done - before);
    }
  }

  async #produce(add, deadline) {
    while (performance.now() < deadline) {
      await this.#untilLeft(this.#most);
      this.#added += given.batch;
      await add();
    }
  }

  async #untilLeft(most) {
    while (this.#added - this.#done > most) await new Promise((wake) => this.#waiting.push(wake));
  }
}
