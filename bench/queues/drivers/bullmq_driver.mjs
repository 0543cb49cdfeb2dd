// BullMQ: a job that does nothing. A worker that runs as many jobs at once as there are callers.
import { Backlog, given, require } from "./turns.mjs";

const { Queue, Worker } = require("bullmq");

const backlog = new Backlog();
const { hostname: host, port } = new URL(given.url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const job = () => ({ name: "work", data: JSON.parse(given.body), opts: { removeOnComplete: true } });

const queue = new Queue("bench", { connection });
const worker = new Worker("bench", async () => backlog.done(), { connection, concurrency: given.callers });
worker.on("error", (error) => console.error(error));
await Promise.all([queue.waitUntilReady(), worker.waitUntilReady()]);

const add = given.batch === 1
  ? () => { const { name, data, opts } = job(); return queue.add(name, data, opts); }
  : () => queue.addBulk(Array.from({ length: given.batch }, job));
await backlog.serve(add);
process.exit();
